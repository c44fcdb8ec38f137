"""Figure 16: figure 3 with frozen targets beside, a copy of the network made every 100 steps."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Record
from .base import Figure, Verdict
from .curves import overview
from .grids import FIVE, REPLAY
from .judging import better, compared, conclude, typical
from .layout import lay_out

GRID = REPLAY.varied(paper={"method": [*FIVE, "frozen"]})
MUCH = 0.2


def judge(records: Sequence[Record]) -> list[Verdict]:
    layout = lay_out(records)
    ends, means = layout.final(), layout.along("evaluation")
    [at_the_end] = compared(ends, [("momentum", "frozen")])
    [on_the_way] = compared(means, [("momentum", "frozen")])
    parts = [better(at_the_end, least=MUCH), better(on_the_way, least=MUCH)]
    note = f"The first is of final errors, the second of mean errors along training. {typical(ends)}"
    return [conclude(12, parts, records, note, reading="Mountain Car")]


FIGURE = Figure(
    name="fig16",
    title="Mountain Car from replay, with frozen targets beside",
    claims=(12,),
    settings="As figure 3; frozen targets are copied every 100 steps.",
    runs=GRID,
    panels=overview,
    judge=judge,
)
