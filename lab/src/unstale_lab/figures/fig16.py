"""Figure 16: figure 3 with frozen targets (a target network copied every 100 steps)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..analysis.formatting import describe_final_errors, label
from ..analysis.run_table import select, tabulate
from ..claims.contrast import MUCH, compare_pairs
from ..claims.judging import make_verdict, worse
from ..claims.sentences import describe_ratios, sentence
from ..claims.verdict import Reading, Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import METHODS_WITH_DEFAULT, PAPER_METHODS, REPLAY_GRID, union
from .shared.readings import ERROR_CURVES, as_authors_ran, each_reading, overview_panels

METHODS = [*PAPER_METHODS, "frozen"]
TEXT_GRID = REPLAY_GRID.vary(paper={"method": [*METHODS_WITH_DEFAULT, "frozen"]})
CODE_GRID = as_authors_ran(TEXT_GRID, method=METHODS, width=[16, 32], quick={"width": 16}, smoke={"width": 4})


def _verdict(records: Sequence[Record], reading: Reading) -> Verdict:
    """Judge whether frozen targets learn much more slowly. That they are still behind at the end follows from it."""
    selected = select(records, method=["momentum", "frozen"])
    table, curve = tabulate(selected), ERROR_CURVES[reading]
    measures = {"over the training": table.mean_over(curve), "at the end": table.final(curve)}
    errors = {f"{label(method)} {when}": of for when, each in measures.items() for method, of in each.items()}
    pairs = [(f"{label('frozen')} {when}", f"{label('momentum')} {when}") for when in measures]
    contrasts = compare_pairs(errors, pairs, table.worst_error(curve, errors), table.values("alpha"))
    over_training, at_the_end = contrasts
    parts = [
        worse(over_training, MUCH, "frozen targets have a higher error over the training"),
        replace(worse(at_the_end, statement="frozen targets have a higher error at the end"), is_main=False),
    ]
    by_measure = dict(zip(measures, contrasts, strict=True))
    why = sentence(describe_ratios("frozen targets have {} the error of μ", by_measure))
    return make_verdict(12, why, parts, selected, describe_final_errors(records), reading, scope="Mountain Car")


FIGURE = Figure(
    name="fig16",
    title="Mountain Car from replay, with frozen targets",
    claims=(12,),
    settings="As figure 3; the target network is copied every 100 steps.",
    runs=union(TEXT_GRID, CODE_GRID),
    panels=lambda records: overview_panels(records, "Figure 16", methods=METHODS),
    judge=each_reading(_verdict),
)
