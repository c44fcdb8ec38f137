"""Figure 16: figure 3 with frozen targets (a target network copied every 100 steps)."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.curves import overview_panels
from ..analysis.formatting import describe_final_errors, label
from ..analysis.run_table import select, tabulate
from ..claims.judging import better, compare_pairs, make_verdict
from ..claims.verdict import Verdict
from ..figures.figure import Figure
from ..records import Record
from .shared.grids import METHODS_WITH_DEFAULT, REPLAY_GRID

GRID = REPLAY_GRID.vary(paper={"method": [*METHODS_WITH_DEFAULT, "frozen"]})
MIN_REDUCTION = 0.2  # relative; "much more slowly"


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge whether frozen targets have higher errors, both at the end and on average over the training."""
    selected = select(records, method=["momentum", "frozen"])
    table = tabulate(selected)
    measures = {"at the end": table.final(), "over training": table.mean_over("evaluation")}
    errors = {f"{label(method)} {when}": of for when, each in measures.items() for method, of in each.items()}
    pairs = [(f"{label('momentum')} {when}", f"{label('frozen')} {when}") for when in measures]
    findings = [
        better(evidence, min_reduction=MIN_REDUCTION)
        for evidence in compare_pairs(errors, pairs, table.worst_error(judged=errors))
    ]
    return [make_verdict(12, findings, selected, describe_final_errors(records), reading="Mountain Car")]


FIGURE = Figure(
    name="fig16",
    title="Mountain Car from replay, with frozen targets",
    claims=(12,),
    settings="As figure 3; the target network is copied every 100 steps.",
    runs=GRID,
    panels=overview_panels,
    judge=judge,
)
