"""Figure 19: the learning rate α."""

from __future__ import annotations

from ..figures.figure import Figure
from .shared.grids import REPLAY_GRID, seeds
from .shared.sensitivity import judge_sensitivity, sensitivity_panels

GRID = REPLAY_GRID.vary(paper={"alpha": [0.001, 0.005, 0.01, 0.05, 0.1, 0.5]}, quick={"seed": seeds(5)})

FIGURE = Figure(
    name="fig19",
    title="Error over learning rate α",
    claims=(19,),
    settings="Mountain Car from replay; α from 0.001 to 0.5; MLP of 4 layers, width 8, 16 and 32; β 0.9 and 0.99; "
    "batches of 4, 16 and 64; 10 seeds; 5,000 steps.",
    runs=GRID,
    panels=lambda records: sensitivity_panels(records, "alpha"),
    judge=lambda records: [judge_sensitivity(19, records, "alpha", "α")],
)
