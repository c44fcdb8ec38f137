"""Figure 13: full correction of some layers only; the others are corrected diagonally or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..analysis.curves import MSE, series_with_band
from ..analysis.formatting import describe_iqm
from ..analysis.panels import Panel, Series
from ..analysis.run_table import RunTable, select, tabulate
from ..analysis.statistics import Array, iqm
from ..claims.judging import better, compare_pairs, make_verdict, no_better
from ..claims.verdict import Verdict
from ..experiment import Run, Scale
from ..figures.figure import Figure
from ..records import Record
from .shared.grids import REPLAY_GRID, seeds

LAYERS = 6
BOTTOM = {count: tuple(range(count)) for count in (1, 2, 3)}
TOP = {count: tuple(range(LAYERS - count, LAYERS)) for count in (1, 2, 3)}
ENDS = {2 * count: (*BOTTOM[count], *TOP[count]) for count in (1, 2)}


@dataclass(frozen=True)
class OtherLayers:
    """How the other layers are corrected."""

    reading: str
    none: str  # method if no layer is corrected fully
    some: str  # method if some layers are corrected fully


OTHER_LAYERS = (
    OtherLayers("other layers uncorrected", "momentum", "layers"),
    OtherLayers("other layers corrected diagonally", "diagonal", "layers_diagonal"),
)

UNIFORM_GRID = REPLAY_GRID.vary(
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
SOME_LAYERS_GRID = UNIFORM_GRID.vary(
    paper={
        "method": [rest.some for rest in OTHER_LAYERS],
        "corrected_layers": [*BOTTOM.values(), *TOP.values(), *ENDS.values()],
    }
)


def runs(scale: Scale) -> list[Run]:
    return [*UNIFORM_GRID(scale), *SOME_LAYERS_GRID(scale)]


def panels(records: Sequence[Record]) -> list[Panel]:
    return [
        Panel(rest.reading, "fully corrected layers", MSE, _lines(_errors(_table(records, rest), rest)), log_y=True)
        for rest in OTHER_LAYERS
    ]


def _table(records: Sequence[Record], rest: OtherLayers) -> RunTable:
    return tabulate(select(records, method=[rest.none, rest.some, "full"]), by=("method", "corrected_layers"))


def _errors(table: RunTable, rest: OtherLayers, curve: str = "evaluation") -> dict[str, Array]:
    """Return final errors ``[settings, seeds]`` by which layers are corrected fully."""
    curves = table.curves(curve)
    chosen = {
        "none": (rest.none, ()),
        **{f"bottom {count}": (rest.some, layers) for count, layers in BOTTOM.items()},
        **{f"top {count}": (rest.some, layers) for count, layers in TOP.items()},
        **{f"both ends, {count}": (rest.some, layers) for count, layers in ENDS.items()},
        "all": ("full", ()),
    }
    return {label: curves[line][-1] for label, line in chosen.items()}


def _lines(errors: dict[str, Array]) -> list[Series]:
    """Return lines from no layer to all layers, through the bottom, the top and both ends."""
    paths = {
        "bottom": {count: f"bottom {count}" for count in BOTTOM},
        "top": {count: f"top {count}" for count in TOP},
        "both ends": {count: f"both ends, {count}" for count in ENDS},
    }
    lines = []
    for label, between in paths.items():
        points = {0: "none", **between, LAYERS: "all"}
        values = np.stack([errors[point] for point in points.values()])
        counts = {"runs": values.size, "diverged": int(np.isinf(values).sum())}
        lines.append(series_with_band(label, list(points), values, iqm, **counts))
    return lines


def judge(records: Sequence[Record]) -> list[Verdict]:
    return [_verdict(records, rest) for rest in OTHER_LAYERS]


def _verdict(records: Sequence[Record], rest: OtherLayers) -> Verdict:
    table = _table(records, rest)
    errors = _errors(table, rest)
    bottom = [(f"bottom {count}", f"top {count}") for count in BOTTOM]
    whole = [("all", "bottom 3"), ("all", "top 3")]
    ends = [(f"both ends, {2 * count}", f"bottom {count}") for count in (1, 2)]
    evidence = compare_pairs(errors, [*bottom, *whole, *ends], table.worst_error())
    findings = [*map(better, evidence[: len(bottom + whole)]), *map(no_better, evidence[len(bottom + whole) :])]
    note = f"{describe_iqm(errors)} {describe_iqm(_errors(table, rest, 'training'), 'On the training distribution')}"
    return make_verdict(10, findings, select(records, method=[rest.some, "full"]), note, rest.reading)


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
