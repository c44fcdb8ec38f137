"""Figure 10: the size of batches, and whether batches of one are what ails the diagonal correction online."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..records import Record
from .base import Figure, Panel, Verdict
from .curves import against, against_panel, divergence_panels, mean
from .grids import REPLAY, seeds
from .judging import better, compared, conclude, name, typical
from .layout import lay_out, select
from .trends import ratio

BATCHES = REPLAY.varied(
    paper={"batch": [1, 4, 16, 64], "seed": seeds(20)},
    quick={"alpha": 0.1, "seed": seeds(10)},
    smoke={"batch": [1, 16], "seed": seeds(2)},
)
# The same data in the order in which it happens, for the two methods that the claim is about.
ONLINE = BATCHES.varied(paper={"problem": "mountain_car_online", "method": ["full", "diagonal"], "batch": 1})


def panels(records: Sequence[Record]) -> list[Panel]:
    replay, online = (select(records, problem=problem) for problem in ("mountain_car", "mountain_car_online"))
    drawn = [against_panel(replay, "batch", mean), against_panel(replay, "batch")]
    beside = [replace(line, label=f"{name(line.method)}, online", dashed=True) for line in against(online, "batch")]
    return [drawn[0], replace(drawn[1], series=[*drawn[1].series, *beside]), *divergence_panels(replay, "batch")]


def judge(records: Sequence[Record]) -> list[Verdict]:
    replay, online = (select(records, problem=problem) for problem in ("mountain_car", "mountain_car_online"))
    layout = lay_out(select(replay, method="diagonal"), by=("batch",))
    by_batch = {f"batches of {line}": errors for line, errors in layout.final().items()}
    [hurt] = compared(by_batch, [("batches of 16", "batches of 1")])
    single = select(replay, batch=1, method=["full", "diagonal"])
    gaps = {
        f"μ̂ diag / μ̂, {where}": ratio(errors["diagonal"], errors["full"])
        for where, errors in (("replay", lay_out(single).final()), ("online", lay_out(online).final()))
    }
    [wider] = compared(gaps, [tuple(gaps)])  # type: ignore[list-item]
    note = " ".join(
        [
            "Of μ̂ diag, batches of 16 against 1; then, with batches of 1, the ratio of its error to that of μ̂.",
            typical(by_batch, "Interquartile means of μ̂ diag"),
            f"Median ratios: {', '.join(f'{where} {np.median(gap):.3g}' for where, gap in gaps.items())}.",
        ]
    )
    return [conclude(14, [better(hurt), better(wider, relation="is below")], records, note)]


FIGURE = Figure(
    name="fig10",
    title="Error against the size of batches",
    claims=(14,),
    settings="Mountain Car from replay; batches of 1, 4, 16 and 64; MLP of 4 layers, width 8, 16 and 32; β 0.9 and "
    "0.99; α 0.5, 0.1 and 0.05; 20 seeds; 5,000 steps. Beside it μ̂ and μ̂ diag online, in the same settings.",
    runs=lambda scale: [*BATCHES(scale), *ONLINE(scale)],
    panels=panels,
    judge=judge,
)
