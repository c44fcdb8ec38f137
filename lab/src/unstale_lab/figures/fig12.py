"""Figure 12: sparse kernels, with which there should be nothing to correct."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from ..records import Record
from .base import Figure, Verdict
from .curves import overview
from .grids import CELLS, FOUR, KERNELS
from .judging import compared, conclude, same
from .layout import lay_out
from .words import final_errors

GRID = KERNELS.varied(paper={"method": FOUR, "rbf_width": 1.0, "beta": [0.9, 0.99], "measure": ()}, smoke={"beta": 0.9})


def judge(records: Sequence[Record]) -> list[Verdict]:
    layout = lay_out(records)
    parts = [same(evidence) for evidence in compared(layout.final(), combinations(FOUR, 2), layout.worst())]
    cut = "The oracle's horizon, the paper's 2/(1-β), leaves out 12 to 14 % of its weight: it takes smaller steps."
    return [conclude(6, parts, records, f"{final_errors(records)} {cut}")]


FIGURE = Figure(
    name="fig12",
    title="RBF features: all methods",
    claims=(6,),
    settings="Mountain Car from replay; linear in RBF features on a grid of 10 by 10 and of 20 by 20, σ² 1; α 0.1 and "
    f"0.01; β 0.9 and 0.99; batches of 16; 10 seeds; 5,000 steps. {CELLS}",
    runs=GRID,
    panels=overview,
    judge=judge,
)
