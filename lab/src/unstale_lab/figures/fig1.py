"""Figure 1: regression, where targets are fixed and correcting momentum should gain little."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.formatting import describe_final_errors
from ..analysis.run_table import select, tabulate
from ..claims.judging import close_to, compare_pairs, differs, equivalent, make_verdict
from ..claims.verdict import Verdict
from ..figures.figure import Figure
from ..records import Record
from .shared import momentum_damping
from .shared.grids import REPLAY_GRID

MAX_SMALL_DIFFERENCE = 0.25  # relative; "by little"

GRID = REPLAY_GRID.vary(
    paper={
        "problem": "regression",
        "method": ["momentum", "oracle", "full", "default"],
        "alpha": [0.005, 0.01],
        "damped": [True, False],
    },
)


def _verdict(records: Sequence[Record], reading: str) -> Verdict:
    selected = select(records, method=["momentum", "oracle", "full"])
    table = tabulate(selected)
    oracle, full = compare_pairs(table.final(), [("oracle", "momentum"), ("full", "momentum")], table.worst_error())
    # The paper reports p ≈ 0.001 for the oracle.
    findings = [differs(oracle, threshold=0.01), close_to(oracle, MAX_SMALL_DIFFERENCE), equivalent(full)]
    return make_verdict(1, findings, selected, describe_final_errors(records), reading)


FIGURE = Figure(
    name="fig1",
    title="Regression: corrected momentum with fixed targets",
    claims=(1,),
    settings="Regression to a sum of sines; MLP of 4 layers, width 8, 16 and 32; β 0.9 and 0.99; α 0.005 and 0.01; "
    "batches of 4, 16 and 64; damped and undamped momentum; 10 seeds; 5,000 steps.",
    runs=GRID,
    panels=momentum_damping.panels,
    judge=momentum_damping.judge_readings(_verdict),
)
