"""Figure 8: how well Taylor-corrected gradients agree with the true ones.

What is compared is the disagreement, 1 - cosine: 0 is perfect, 2 the opposite, and infinite a run that diverged.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Record
from ..statistics import iqm
from .agreement import KINDS, OPPOSITE, cosines, disagreement
from .base import Figure, Panel, Verdict
from .curves import ERROR, learning
from .grids import REPLAY, seeds
from .judging import below, better, compared, conclude
from .layout import select
from .words import final_errors, number

GRID = REPLAY.varied(
    paper={
        "method": ["momentum", "full", "default"],
        "width": 16,
        "batch": 16,
        "alpha": 0.1,
        "beta": 0.95,
        "seed": seeds(40),
        "measure": ("agreement",),
    },
    quick={"seed": seeds(10)},
    smoke={"width": 4, "batch": 4, "seed": seeds(2)},
)
CLOSE = 0.1  # "close to 1" is a cosine of 0.9


def panels(records: Sequence[Record]) -> list[Panel]:
    return [
        *(Panel(f"cosine, {kind}", "steps", "cosine with the true gradient", cosines(records, kind)) for kind in KINDS),
        Panel("error", "steps", ERROR, learning(records, iqm), log_y=True),
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    own = select(records, method="full")
    close = below("1 - cosine of μ̂'s samples in the first half", disagreement(own, end=0.5)["full"], CLOSE)
    quarters = {"the first quarter": disagreement(own, end=0.25)["full"], "the last": disagreement(own, 0.75)["full"]}
    [falling] = compared(quarters, [("the first quarter", "the last")], OPPOSITE)
    means = ", ".join(f"{kind} {number(1 - float(iqm(disagreement(own, kind=kind)['full'])))}" for kind in KINDS)
    note = f"All of 1 - cosine. Mean cosines along the training of μ̂: {means}. {final_errors(records)}"
    return [conclude(9, [close, better(falling, relation="is below")], own, note)]


FIGURE = Figure(
    name="fig8",
    title="Agreement of corrected gradients with the true ones",
    claims=(9,),
    settings="Mountain Car from replay; MLP of 4 layers of width 16; α 0.1; β 0.95; batches of 16; 40 seeds; 5,000 "
    "steps. Cosines over the last 2/(1-β) batches, of samples and of whole batches.",
    runs=GRID,
    panels=panels,
    judge=judge,
)
