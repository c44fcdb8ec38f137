"""Figure 11: the momentum β."""

from __future__ import annotations

from .figure import Figure
from .shared.grids import PAPER_METHODS, REPLAY_GRID, union
from .shared.readings import as_authors_ran
from .shared.sensitivity import sensitivity_panels, show_sensitivity

TEXT_GRID = REPLAY_GRID.vary(
    paper={"method": PAPER_METHODS, "beta": [0.8, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999], "batch": 4},
    quick={"alpha": 0.1},
    smoke={"alpha": 0.1, "beta": [0.8, 0.9, 0.99]},
)
CODE_GRID = as_authors_ran(TEXT_GRID, alpha=[0.01, 0.05], width=16, smoke={"width": 4, "alpha": 0.05})


FIGURE = Figure(
    name="fig11",
    title="Error over momentum β",
    claims=(15,),
    settings="Mountain Car from replay; β from 0.8 to 0.999; batches of 4; MLP of 4 layers, width 8, 16 and 32; α 0.5, "
    "0.1 and 0.05; 10 seeds; 5,000 steps. The authors' code: width 16, α 0.01 and 0.05, gradients of δ² with a Taylor "
    "term of half strength.",
    runs=union(TEXT_GRID, CODE_GRID),
    panels=lambda records: sensitivity_panels(records, "beta", "Figure 11"),
    judge=lambda records: show_sensitivity(15, records, "beta", "β"),
)
