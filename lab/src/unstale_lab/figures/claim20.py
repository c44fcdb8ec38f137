"""Claim 20: the second derivatives that the Taylor term leaves out."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Record
from .base import Figure, Verdict
from .curves import overview
from .grids import REPLAY, seeds
from .judging import compared, conclude, same
from .layout import lay_out, select
from .words import final_errors

GRID = REPLAY.varied(
    paper={"method": ["momentum", "full", "second_order"], "width": 8, "batch": 16, "alpha": [0.1, 0.05]},
    quick={"seed": seeds(5)},
    smoke={"width": 4, "batch": 4, "alpha": 0.1},
)


def judge(records: Sequence[Record]) -> list[Verdict]:
    own = select(records, method=["second_order", "full"])
    layout = lay_out(own)
    [evidence] = compared(layout.final(), [("second_order", "full")], layout.worst())
    return [conclude(20, [same(evidence)], own, final_errors(records))]


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
