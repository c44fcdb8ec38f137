"""Figure 12: sparse RBF features, for which there should be nothing to correct."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from ..analysis.curves import overview_panels
from ..analysis.formatting import describe_final_errors
from ..analysis.run_table import tabulate
from ..claims.judging import compare_pairs, equivalent, make_verdict
from ..claims.verdict import Verdict
from ..figures.figure import Figure
from ..records import Record
from .shared.grids import PAPER_METHODS, RBF_GRID, RBF_WIDTH_NOTE

GRID = RBF_GRID.vary(
    paper={"method": PAPER_METHODS, "rbf_width": 1.0, "beta": [0.9, 0.99], "measure": ()}, smoke={"beta": 0.9}
)


def judge(records: Sequence[Record]) -> list[Verdict]:
    table = tabulate(records)
    findings = [
        equivalent(evidence)
        for evidence in compare_pairs(table.final(), combinations(PAPER_METHODS, 2), table.worst_error())
    ]
    note = (
        "The oracle's horizon, the paper's 2/(1-β), truncates 12 to 14 % of the weights, so that its steps are smaller."
    )
    return [make_verdict(6, findings, records, f"{describe_final_errors(records)} {note}")]


FIGURE = Figure(
    name="fig12",
    title="RBF features: all methods",
    claims=(6,),
    settings="Mountain Car from replay; linear in RBF features on a grid of 10 by 10 and of 20 by 20, σ² 1; α 0.1 and "
    f"0.01; β 0.9 and 0.99; batches of 16; 10 seeds; 5,000 steps. {RBF_WIDTH_NOTE}",
    runs=GRID,
    panels=overview_panels,
    judge=judge,
)
