"""Claim 20: the second derivatives that the Taylor term leaves out."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Record
from .base import Figure, Verdict
from .curves import overview
from .grids import REPLAY, seeds
from .judging import compared, conclude, same, typical
from .layout import lay_out

GRID = REPLAY.varied(
    paper={"method": ["momentum", "full", "second_order"], "width": 8, "batch": 16, "alpha": [0.1, 0.05]},
    quick={"seed": seeds(5)},
    smoke={"width": 4, "batch": 4, "alpha": 0.1},
)


def judge(records: Sequence[Record]) -> list[Verdict]:
    errors = lay_out(records).final()
    [evidence] = compared(errors, [("second_order", "full")])
    return [conclude(20, [same(evidence)], records, typical(errors))]


FIGURE = Figure(
    name="claim20",
    title="Second derivatives kept in the correction",
    claims=(20,),
    settings="Mountain Car from replay; MLP of 4 layers of width 8; α 0.1 and 0.05; β 0.9 and 0.99; batches of 16; "
    "10 seeds; 5,000 steps.",
    runs=GRID,
    panels=overview,
    judge=judge,
)
