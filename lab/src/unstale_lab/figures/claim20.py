"""Claim 20: the effect of the second derivatives that the Taylor term leaves out."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.formatting import describe_final_errors
from ..analysis.run_table import select, tabulate
from ..claims.contrast import compare_methods
from ..claims.judging import equivalent, make_verdict
from ..claims.sentences import describe_errors, sentence
from ..claims.verdict import Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import REPLAY_GRID, seeds
from .shared.readings import overview_panels

METHODS = ["momentum", "full", "second_order"]
GRID = REPLAY_GRID.vary(
    paper={"method": METHODS, "width": 8, "batch": 16, "alpha": [0.1, 0.05]},
    quick={"seed": seeds(5)},
    smoke={"width": 4, "batch": 4, "alpha": 0.1},
)


def judge(records: Sequence[Record]) -> list[Verdict]:
    selected = select(records, method=["second_order", "full"])
    contrasts = compare_methods(tabulate(selected), [("full", "second_order")])
    parts = [equivalent(contrast) for contrast in contrasts]
    return [make_verdict(20, sentence(describe_errors(contrasts)), parts, selected, describe_final_errors(records))]


FIGURE = Figure(
    name="claim20",
    title="Correction with second derivatives",
    claims=(20,),
    settings="Mountain Car from replay; MLP of 4 layers of width 8; α 0.1 and 0.05; β 0.9 and 0.99; batches of 16; "
    "10 seeds; 5,000 steps.",
    runs=GRID,
    panels=lambda records: overview_panels(records, "Errors", methods=METHODS),
    judge=judge,
)
