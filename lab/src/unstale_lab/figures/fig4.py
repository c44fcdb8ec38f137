"""Figure 4: Mountain Car online, one transition after another, each seen once.

At the paper's learning rates, momentum damped as its text has it learns next to nothing in 20,000 steps. Undamped, at
α / (1-β), it does, and the paper's own figure was probably made so. Both are run, and each has its verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Record
from . import damping
from .base import Figure, Verdict
from .grids import FIVE, FOUR, ORDER, Grid, seeds
from .judging import better, compared, conclude, differs, same
from .layout import lay_out, select
from .words import at_best, final_errors

GRID = Grid(
    paper={
        "problem": "mountain_car_online",
        "method": FIVE,
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
    own = select(records, method=FOUR)
    layout = lay_out(own)
    *leads, apart, equal = compared(layout.final(), [*ORDER, ("full", "oracle")], layout.worst())
    parts = [*(better(lead, threshold=0.001) for lead in leads), differs(apart, threshold=0.001), same(equal)]
    note = f"{final_errors(records)} {at_best(lay_out(records).final())}"
    return conclude(4, parts, own, note, reading)


FIGURE = Figure(
    name="fig4",
    title="Mountain Car online, one transition after another",
    claims=(4,),
    settings="Mountain Car, transitions in order, one at a time; MLP of 4 layers of width 16; β 0.9 and 0.99; α 0.005, "
    "0.001 and 0.0005; damped and undamped momentum; 50 seeds; 20,000 steps.",
    runs=GRID,
    panels=damping.panels,
    judge=damping.judged(_verdict),
)
