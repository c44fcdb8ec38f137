"""Figure 11: the momentum β."""

from __future__ import annotations

from ..analysis.run_table import without
from ..figures.figure import Figure
from .fig3 import LARGEST_ALPHA, WITHOUT_LARGEST_ALPHA
from .shared.grids import REPLAY_GRID
from .shared.sensitivity import judge_sensitivity, sensitivity_panels

GRID = REPLAY_GRID.vary(
    paper={"beta": [0.8, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999], "batch": 4},
    quick={"alpha": 0.1},
    smoke={"alpha": 0.1},
)

FIGURE = Figure(
    name="fig11",
    title="Error over momentum β",
    claims=(15,),
    settings="Mountain Car from replay; β from 0.8 to 0.999; batches of 4; MLP of 4 layers, width 8, 16 and 32; α 0.5, "
    "0.1 and 0.05; 10 seeds; 5,000 steps.",
    runs=GRID,
    panels=lambda records: sensitivity_panels(records, "beta"),
    judge=lambda records: [
        judge_sensitivity(15, records, "beta", "β"),
        judge_sensitivity(15, without(records, alpha=LARGEST_ALPHA), "beta", "β", WITHOUT_LARGEST_ALPHA),
    ],
)
