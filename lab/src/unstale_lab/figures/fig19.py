"""Figure 19: the learning rate α."""

from __future__ import annotations

from .figure import Figure
from .shared.grids import PAPER_METHODS, REPLAY_GRID, seeds, union
from .shared.readings import as_authors_ran
from .shared.sensitivity import sensitivity_panels, show_sensitivity

TEXT_GRID = REPLAY_GRID.vary(
    paper={"method": PAPER_METHODS, "alpha": [0.001, 0.005, 0.01, 0.05, 0.1, 0.5]}, quick={"seed": seeds(5)}
)
CODE_GRID = as_authors_ran(TEXT_GRID, width=32, beta=0.9, batch=4, quick={"width": 16}, smoke={"width": 4})


FIGURE = Figure(
    name="fig19",
    title="Error over learning rate α",
    claims=(19,),
    settings="Mountain Car from replay; α from 0.001 to 0.5; MLP of 4 layers, width 8, 16 and 32; β 0.9 and 0.99; "
    "batches of 4, 16 and 64; 10 seeds; 5,000 steps. The authors' code: width 32, β 0.9, batches of 4, gradients of δ² "
    "with a Taylor term of half strength.",
    runs=union(TEXT_GRID, CODE_GRID),
    panels=lambda records: sensitivity_panels(records, "alpha", "Figure 19"),
    judge=lambda records: show_sensitivity(19, records, "alpha", "α"),
)
