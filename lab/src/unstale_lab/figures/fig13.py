"""Figure 13: the full correction for some layers only, the rest corrected diagonally or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..experiment import Run, Scale
from ..records import Record
from ..statistics import Array, iqm
from .base import Figure, Panel, Series, Verdict
from .curves import ERROR, banded
from .grids import REPLAY, seeds
from .judging import better, compared, conclude, no_better
from .layout import Layout, lay_out, select
from .words import typical

LAYERS = 6
BOTTOM = {count: tuple(range(count)) for count in (1, 2, 3)}
TOP = {count: tuple(range(LAYERS - count, LAYERS)) for count in (1, 2, 3)}
ENDS = {2 * count: (*BOTTOM[count], *TOP[count]) for count in (1, 2)}


@dataclass(frozen=True)
class Rest:
    """What is done about the other layers."""

    reading: str
    none: str  # the method that does this to all layers
    some: str  # and that to the others


RESTS = (
    Rest("the rest uncorrected", "momentum", "layers"),
    Rest("the rest corrected diagonally", "diagonal", "layers_diagonal"),
)

WHOLE = REPLAY.varied(
    paper={
        "method": ["momentum", "diagonal", "full"],
        "layers": LAYERS,
        "width": 16,
        "batch": 16,
        "alpha": 0.1,
        "beta": 0.9,
        "seed": seeds(20),
    },
    quick={"seed": seeds(10)},
    smoke={"width": 4, "batch": 4, "seed": seeds(2)},
)
SOME = WHOLE.varied(
    paper={
        "method": [rest.some for rest in RESTS],
        "corrected_layers": [*BOTTOM.values(), *TOP.values(), *ENDS.values()],
    }
)


def runs(scale: Scale) -> list[Run]:
    return [*WHOLE(scale), *SOME(scale)]


def panels(records: Sequence[Record]) -> list[Panel]:
    return [
        Panel(rest.reading, "layers corrected fully", ERROR, _lines(_errors(_layout(records, rest), rest)), log_y=True)
        for rest in RESTS
    ]


def _layout(records: Sequence[Record], rest: Rest) -> Layout:
    return lay_out(select(records, method=[rest.none, rest.some, "full"]), by=("method", "corrected_layers"))


def _errors(layout: Layout, rest: Rest, curve: str = "evaluation") -> dict[str, Array]:
    """Final errors ``[settings, seeds]`` by which layers are corrected fully."""
    curves = layout.curves(curve)
    chosen = {
        "none": (rest.none, ()),
        **{f"bottom {count}": (rest.some, layers) for count, layers in BOTTOM.items()},
        **{f"top {count}": (rest.some, layers) for count, layers in TOP.items()},
        **{f"both ends, {count}": (rest.some, layers) for count, layers in ENDS.items()},
        "all": ("full", ()),
    }
    return {label: curves[line][-1] for label, line in chosen.items()}


def _lines(errors: dict[str, Array]) -> list[Series]:
    """From no layer to all of them, by way of the bottom, of the top, and of both ends."""
    by_way_of = {
        "bottom": {count: f"bottom {count}" for count in BOTTOM},
        "top": {count: f"top {count}" for count in TOP},
        "both ends": {count: f"both ends, {count}" for count in ENDS},
    }
    lines = []
    for label, between in by_way_of.items():
        points = {0: "none", **between, LAYERS: "all"}
        values = np.stack([errors[point] for point in points.values()])
        about = {"runs": values.size, "diverged": int(np.isinf(values).sum())}
        lines.append(banded(label, list(points), values, iqm, **about))
    return lines


def judge(records: Sequence[Record]) -> list[Verdict]:
    return [_verdict(records, rest) for rest in RESTS]


def _verdict(records: Sequence[Record], rest: Rest) -> Verdict:
    layout = _layout(records, rest)
    errors = _errors(layout, rest)
    bottom = [(f"bottom {count}", f"top {count}") for count in BOTTOM]
    whole = [("all", "bottom 3"), ("all", "top 3")]
    ends = [(f"both ends, {2 * count}", f"bottom {count}") for count in (1, 2)]
    evidence = compared(errors, [*bottom, *whole, *ends], layout.worst())
    parts = [*map(better, evidence[: len(bottom + whole)]), *map(no_better, evidence[len(bottom + whole) :])]
    note = f"{typical(errors)} {typical(_errors(layout, rest, 'training'), 'On states as in training')}"
    return conclude(10, parts, select(records, method=[rest.some, "full"]), note, rest.reading)


FIGURE = Figure(
    name="fig13",
    title="Correcting some layers only",
    claims=(10,),
    settings="Mountain Car from replay; MLP of 6 layers of width 16; α 0.1; β 0.9; batches of 16; full correction for "
    "none, the bottom or top 1 to 3, both ends, or all layers; 20 seeds; 5,000 steps.",
    runs=runs,
    panels=panels,
    judge=judge,
)
