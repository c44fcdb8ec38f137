"""Figure 4: Mountain Car online: transitions in temporal order, each used once.

At the paper's learning rates, damped momentum (as in its text) learns almost nothing in 20,000 steps. Undamped
momentum, with an effective rate of α / (1-β), does learn, and the paper's figure was probably made with it. Both are
run and judged.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.formatting import describe_best_settings, describe_final_errors
from ..analysis.run_table import select, tabulate
from ..claims.judging import better, compare_pairs, differs, equivalent, make_verdict
from ..claims.verdict import Verdict
from ..figures.figure import Figure
from ..records import Record
from .shared import momentum_damping
from .shared.grids import METHODS_WITH_DEFAULT, PAPER_METHODS, PAPER_ORDER, Grid, seeds

GRID = Grid(
    paper={
        "problem": "mountain_car_online",
        "method": METHODS_WITH_DEFAULT,
        "width": 16,
        "batch": 1,
        "alpha": [0.005, 0.001, 0.0005],
        "beta": [0.9, 0.99],
        "seed": seeds(50),
        "steps": 20_000,
        "damped": [True, False],
    },
    quick={"seed": seeds(10), "steps": 10_000},
    smoke={"width": 4, "beta": 0.9, "seed": seeds(2), "steps": 50},
)


def _verdict(records: Sequence[Record], reading: str) -> Verdict:
    selected = select(records, method=PAPER_METHODS)
    table = tabulate(selected)
    *ordered, different, equal = compare_pairs(table.final(), [*PAPER_ORDER, ("full", "oracle")], table.worst_error())
    findings = [*(better(each, threshold=0.001) for each in ordered), differs(different, threshold=0.001)]
    findings.append(equivalent(equal))
    note = f"{describe_final_errors(records)} {describe_best_settings(tabulate(records).final())}"
    return make_verdict(4, findings, selected, note, reading)


FIGURE = Figure(
    name="fig4",
    title="Mountain Car online",
    claims=(4,),
    settings="Mountain Car, transitions in temporal order, batches of 1; MLP of 4 layers of width 16; β 0.9 and 0.99; "
    "α 0.005, 0.001 and 0.0005; damped and undamped momentum; 50 seeds; 20,000 steps.",
    runs=GRID,
    panels=momentum_damping.panels,
    judge=momentum_damping.judge_readings(_verdict),
)
