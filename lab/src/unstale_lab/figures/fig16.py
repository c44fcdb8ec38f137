"""Figure 16: figure 3 with frozen targets beside, a copy of the network made every 100 steps."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Record
from .base import Figure, Verdict
from .curves import overview
from .grids import FIVE, REPLAY
from .judging import better, compared, conclude
from .layout import lay_out, select
from .words import final_errors, name

GRID = REPLAY.varied(paper={"method": [*FIVE, "frozen"]})
MUCH = 0.2


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Slower is a higher error at the end, and a higher mean error along training."""
    own = select(records, method=["momentum", "frozen"])
    layout = lay_out(own)
    measures = {"at the end": layout.final(), "along training": layout.along("evaluation")}
    errors = {f"{name(method)} {when}": of for when, each in measures.items() for method, of in each.items()}
    pairs = [(f"{name('momentum')} {when}", f"{name('frozen')} {when}") for when in measures]
    parts = [better(evidence, least=MUCH) for evidence in compared(errors, pairs, layout.worst(judged=errors))]
    return [conclude(12, parts, own, final_errors(records), reading="Mountain Car")]


FIGURE = Figure(
    name="fig16",
    title="Mountain Car from replay, with frozen targets beside",
    claims=(12,),
    settings="As figure 3; frozen targets are copied every 100 steps.",
    runs=GRID,
    panels=overview,
    judge=judge,
)
