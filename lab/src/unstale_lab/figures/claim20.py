"""Claim 20: the effect of the second derivatives that the Taylor term leaves out."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.formatting import describe_final_errors
from ..analysis.run_table import select, tabulate
from ..claims.judging import compare_methods, equivalent, make_verdict
from ..claims.verdict import Verdict
from ..experiment import Run, Scale
from ..records import Record
from .figure import Figure
from .shared.grids import REPLAY_GRID, seeds
from .shared.readings import ERROR_CURVES, as_authors_ran, by_reading, overview_panels

METHODS = ["momentum", "full", "second_order"]
TEXT_GRID = REPLAY_GRID.vary(
    paper={"method": METHODS, "width": 8, "batch": 16, "alpha": [0.1, 0.05]},
    quick={"seed": seeds(5)},
    smoke={"width": 4, "batch": 4, "alpha": 0.1},
)
CODE_GRID = as_authors_ran(TEXT_GRID, method=METHODS)


def runs(scale: Scale) -> list[Run]:
    return [*TEXT_GRID(scale), *CODE_GRID(scale)]


def judge(records: Sequence[Record]) -> list[Verdict]:
    verdicts = []
    for reading, group in by_reading(records).items():
        selected = select(group, method=["second_order", "full"])
        [contrast] = compare_methods(tabulate(selected), [("full", "second_order")], ERROR_CURVES[reading])
        verdicts.append(make_verdict(20, [equivalent(contrast)], selected, describe_final_errors(group), reading))
    return verdicts


FIGURE = Figure(
    name="claim20",
    title="Correction with second derivatives",
    claims=(20,),
    settings="Mountain Car from replay; MLP of 4 layers of width 8; α 0.1 and 0.05; β 0.9 and 0.99; batches of 16; "
    "10 seeds; 5,000 steps. The authors' conventions: gradients of δ² with a Taylor term of half strength.",
    runs=runs,
    panels=lambda records: overview_panels(records, "Errors", methods=METHODS),
    judge=judge,
)
