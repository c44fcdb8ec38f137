"""Figure 10: batch size, and whether batches of one explain the poor online result of the diagonal correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..analysis.curves import divergence_panels, mean, sensitivity_curves, sensitivity_panel
from ..analysis.formatting import describe_iqm, format_number, label
from ..analysis.panels import Panel
from ..analysis.run_table import select, tabulate
from ..analysis.trends import ratio
from ..claims.judging import better, compare_pairs, holm_corrected, make_verdict
from ..claims.verdict import Verdict
from ..figures.figure import Figure
from ..records import Record
from .shared.grids import REPLAY_GRID, seeds

BATCHES = REPLAY_GRID.vary(
    paper={"batch": [1, 4, 16, 64], "seed": seeds(20)},
    quick={"alpha": 0.1, "seed": seeds(10)},
    smoke={"batch": [1, 16], "seed": seeds(2)},
)
# The same data in temporal order. The reference is the oracle, because μ̂ diverges too often.
ONLINE = BATCHES.vary(paper={"problem": "mountain_car_online", "method": ["oracle", "full", "diagonal"], "batch": 1})


def panels(records: Sequence[Record]) -> list[Panel]:
    replay, online = (select(records, problem=problem) for problem in ("mountain_car", "mountain_car_online"))
    by_batch = [sensitivity_panel(replay, "batch", mean), sensitivity_panel(replay, "batch")]
    online_lines = [
        replace(line, label=f"{label(line.method)}, online", dashed=True)
        for line in sensitivity_curves(online, "batch")
    ]
    return [
        by_batch[0],
        replace(by_batch[1], series=[*by_batch[1].series, *online_lines]),
        *divergence_panels(replay, "batch"),
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge two statements about the diagonal correction.

    Batches of one hurt if the error is lower with batches of 16. They do not explain everything if, with batches of
    one, the diagonal correction is further behind the oracle online than from replay.
    """
    replay, online = (select(records, problem=problem) for problem in ("mountain_car", "mountain_car_online"))
    diagonal = tabulate(select(replay, method="diagonal", batch=[1, 16]), by=("batch",))
    both = {"replay": select(replay, batch=1), "online": online}
    single = {where: tabulate(select(group, method=["oracle", "diagonal"])) for where, group in both.items()}
    worst = max(table.worst_error() for table in (diagonal, *single.values()))
    ends = {where: table.final() for where, table in single.items()}
    gaps = {
        f"μ̂ diag / μ*, {where}": ratio(errors["diagonal"], errors["oracle"], worst) for where, errors in ends.items()
    }
    by_batch = {f"batches of {batch}": errors for batch, errors in diagonal.final().items()}
    from_one = compare_pairs(by_batch, [("batches of 16", "batches of 1")], worst)
    (hurt, wider), _ = holm_corrected([*from_one, *compare_pairs(gaps, [tuple(gaps)], math.inf)])  # type: ignore[list-item]
    ratios = [f"{name} {format_number(float(np.median(gap)))}" for name, gap in gaps.items()]
    note = " ".join(
        [
            "The first comparison is of μ̂ diag with batches of 16 and of 1; the second is of the ratio of its error to "
            "that of μ*, with batches of 1.",
            describe_iqm(by_batch, "Final errors of μ̂ diag (IQM)"),
            *(describe_iqm(tabulate(group).final(), f"Batches of 1, {where} (IQM)") for where, group in both.items()),
            f"Median ratios: {', '.join(ratios)}.",
        ]
    )
    from_replay = [*select(replay, method="diagonal", batch=[1, 16]), *select(replay, method="oracle", batch=1)]
    judged = [*from_replay, *select(online, method=["oracle", "diagonal"])]
    return [make_verdict(14, [better(hurt), better(wider, relation="is below")], judged, note)]


FIGURE = Figure(
    name="fig10",
    title="Error over batch size",
    claims=(14,),
    settings="Mountain Car from replay; batches of 1, 4, 16 and 64; MLP of 4 layers, width 8, 16 and 32; β 0.9 and "
    "0.99; α 0.5, 0.1 and 0.05; 20 seeds; 5,000 steps. In addition μ*, μ̂ and μ̂ diag online with batches of "
    "1, in the same settings.",
    runs=lambda scale: [*BATCHES(scale), *ONLINE(scale)],
    panels=panels,
    judge=judge,
)
