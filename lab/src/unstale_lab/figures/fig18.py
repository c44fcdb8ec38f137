"""Figure 18: figure 3 with ten times the steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..records import Record
from .base import Figure, Verdict
from .curves import overview
from .grids import FIVE, FOUR, REPLAY, seeds
from .judging import below, better, compared, conclude
from .layout import lay_out, select
from .words import final_errors, name

GRID = REPLAY.varied(
    paper={"method": FIVE, "steps": 50_000},
    quick={"steps": 20_000, "alpha": 0.1, "seed": seeds(5)},
    smoke={"steps": 50},
)
LEFT = 0.01  # of the error before the first step


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Converging is taken to be a lower error at the end than after a tenth of the steps, and an end at 1 % or less of
    the error before the first step."""
    own = select(records, method=FOUR)
    layout = lay_out(own)
    curves = {str(line): of for line, of in layout.curves().items()}
    tenth = int(np.searchsorted(layout.at, layout.at[-1] / 10))
    moments = {
        f"{name(method)} {when}": curves[method][place]
        for method in FOUR
        for when, place in (("at the end", -1), ("after a tenth", tenth))
    }
    pairs = [(f"{name(method)} at the end", f"{name(method)} after a tenth") for method in FOUR]
    falling = [better(evidence) for evidence in compared(moments, pairs, layout.worst())]
    left = [
        below(f"what is left of the error of {name(method)}", curves[method][-1] / curves[method][0], LEFT)
        for method in FOUR
    ]
    return [conclude(18, [*falling, *left], own, final_errors(records))]


FIGURE = Figure(
    name="fig18",
    title="Mountain Car from replay, 50,000 steps",
    claims=(18,),
    settings="As figure 3, with 50,000 steps.",
    runs=GRID,
    panels=overview,
    judge=judge,
)
