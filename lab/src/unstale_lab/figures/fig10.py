"""Figure 10: the size of batches, and whether batches of one are what ails the diagonal correction online."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..records import Record
from .base import Figure, Panel, Verdict
from .curves import against, against_panel, divergence_panels, mean
from .grids import REPLAY, seeds
from .judging import better, compared, conclude, corrected
from .layout import lay_out, select
from .trends import ratio
from .words import name, number, typical

BATCHES = REPLAY.varied(
    paper={"batch": [1, 4, 16, 64], "seed": seeds(20)},
    quick={"alpha": 0.1, "seed": seeds(10)},
    smoke={"batch": [1, 16], "seed": seeds(2)},
)
# The same data in the order in which it happens. The yardstick is the oracle: μ̂ diverges too often to be one.
ONLINE = BATCHES.varied(paper={"problem": "mountain_car_online", "method": ["oracle", "full", "diagonal"], "batch": 1})


def panels(records: Sequence[Record]) -> list[Panel]:
    replay, online = (select(records, problem=problem) for problem in ("mountain_car", "mountain_car_online"))
    drawn = [against_panel(replay, "batch", mean), against_panel(replay, "batch")]
    beside = [replace(line, label=f"{name(line.method)}, online", dashed=True) for line in against(online, "batch")]
    return [drawn[0], replace(drawn[1], series=[*drawn[1].series, *beside]), *divergence_panels(replay, "batch")]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Batches of one hurt if the error is lower with batches of 16. They do not explain all if the diagonal correction
    is, with batches of one, further behind the oracle online than from replay."""
    replay, online = (select(records, problem=problem) for problem in ("mountain_car", "mountain_car_online"))
    diagonal = lay_out(select(replay, method="diagonal", batch=[1, 16]), by=("batch",))
    both = {"replay": select(replay, batch=1), "online": online}
    single = {where: lay_out(select(own, method=["oracle", "diagonal"])) for where, own in both.items()}
    worst = max(layout.worst() for layout in (diagonal, *single.values()))
    ends = {where: layout.final() for where, layout in single.items()}
    gaps = {f"μ̂ diag / μ*, {where}": ratio(own["diagonal"], own["oracle"], worst) for where, own in ends.items()}
    by_batch = {f"batches of {batch}": errors for batch, errors in diagonal.final().items()}
    from_one = compared(by_batch, [("batches of 16", "batches of 1")], worst)
    (hurt, wider), _ = corrected([*from_one, *compared(gaps, [tuple(gaps)], math.inf)])  # type: ignore[list-item]
    note = " ".join(
        [
            "Of μ̂ diag, batches of 16 against 1; then, with batches of 1, the ratio of its error to that of μ*.",
            typical(by_batch, "Interquartile means of μ̂ diag"),
            *(typical(lay_out(own).final(), f"Batches of 1, {where}") for where, own in both.items()),
            f"Median ratios: {', '.join(f'{where} {number(float(np.median(gap)))}' for where, gap in gaps.items())}.",
        ]
    )
    own = [*select(replay, method="diagonal", batch=[1, 16]), *select(replay, method="oracle", batch=1)]
    judged = [*own, *select(online, method=["oracle", "diagonal"])]
    return [conclude(14, [better(hurt), better(wider, relation="is below")], judged, note)]


FIGURE = Figure(
    name="fig10",
    title="Error against the size of batches",
    claims=(14,),
    settings="Mountain Car from replay; batches of 1, 4, 16 and 64; MLP of 4 layers, width 8, 16 and 32; β 0.9 and "
    "0.99; α 0.5, 0.1 and 0.05; 20 seeds; 5,000 steps. Beside it μ*, μ̂ and μ̂ diag online, in the same settings.",
    runs=lambda scale: [*BATCHES(scale), *ONLINE(scale)],
    panels=panels,
    judge=judge,
)
