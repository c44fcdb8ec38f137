"""Figure 13: full correction of some layers only; the others are corrected diagonally or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..analysis.curves import MSE, Statistic, mean, series_with_band, survivors
from ..analysis.formatting import describe_iqm, format_times
from ..analysis.panels import Panel, Series
from ..analysis.run_table import RunTable, select, tabulate
from ..analysis.statistics import Array, iqm
from ..claims.contrast import MUCH, Contrast, compare_pairs
from ..claims.judging import better, make_verdict, no_better
from ..claims.sentences import describe_ratio, sentence
from ..claims.verdict import Reading, Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import REPLAY_GRID, seeds, union
from .shared.readings import ERROR_CURVES, as_authors_ran, by_reading, titled

LAYERS = 6
COUNTS = (1, 2, 3, 4, 5)
BOTTOM = {count: tuple(range(count)) for count in COUNTS}
TOP = {count: tuple(range(LAYERS - count, LAYERS)) for count in COUNTS}
ENDS = {2 * count: (*BOTTOM[count], *TOP[count]) for count in (1, 2)}


@dataclass(frozen=True)
class OtherLayers:
    """How the other layers are corrected."""

    name: str
    none: str  # method if no layer is corrected fully
    some: str  # method if some layers are corrected fully


OTHER_LAYERS = (
    OtherLayers("other layers uncorrected", "momentum", "layers"),
    OtherLayers("other layers corrected diagonally", "diagonal", "layers_diagonal"),
)
UNIFORM_METHODS = ["momentum", "diagonal", "full"]
SOME_LAYERS: dict[str, Any] = {
    "method": [rest.some for rest in OTHER_LAYERS],
    "corrected_layers": [*BOTTOM.values(), *TOP.values(), *ENDS.values()],
}
UNIFORM_GRID = REPLAY_GRID.vary(
    paper={
        "method": UNIFORM_METHODS,
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
GRIDS = (
    UNIFORM_GRID,
    UNIFORM_GRID.vary(paper=SOME_LAYERS),
    as_authors_ran(UNIFORM_GRID, method=UNIFORM_METHODS),
    as_authors_ran(UNIFORM_GRID, **SOME_LAYERS),
)


def panels(records: Sequence[Record]) -> list[Panel]:
    """Return the paper's panels, with means; then interquartile means, which show where runs diverge."""
    return [
        Panel(
            f"{titled('Figure 13' if statistic is mean else 'IQM', reading)}: {rest.name}",
            "fully corrected layers",
            MSE,
            _lines(_errors(_table(group, rest), rest, ERROR_CURVES[reading]), statistic),
            log_y=True,
        )
        for statistic in (mean, iqm)
        for reading, group in by_reading(records).items()
        for rest in OTHER_LAYERS
    ]


def _table(records: Sequence[Record], rest: OtherLayers) -> RunTable:
    return tabulate(select(records, method=[rest.none, rest.some, "full"]), by=("method", "corrected_layers"))


def _errors(table: RunTable, rest: OtherLayers, curve: str) -> dict[str, Array]:
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


def _lines(errors: dict[str, Array], statistic: Statistic) -> list[Series]:
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
        if statistic is mean:
            values = np.stack([survivors(each) for each in values])
        lines.append(series_with_band(label, list(points), values, statistic, **counts))
    return lines


def judge(records: Sequence[Record]) -> list[Verdict]:
    return [_verdict(group, reading, rest) for reading, group in by_reading(records).items() for rest in OTHER_LAYERS]


def _verdict(records: Sequence[Record], reading: Reading, rest: OtherLayers) -> Verdict:
    table, curve = _table(records, rest), ERROR_CURVES[reading]
    errors = _errors(table, rest, curve)
    bottom = [(f"bottom {count}", f"top {count}") for count in COUNTS]
    whole = [("all", "none"), *((f"{end} {count}", "all") for end in ("bottom", "top") for count in (3, 5))]
    ends = [(f"both ends, {2 * count}", f"bottom {count}") for count in (1, 2)]
    contrasts = compare_pairs(errors, [*bottom, *whole, *ends], table.worst_error(curve))
    much_lower, all_layers, not_lower = contrasts[: len(bottom)], contrasts[len(bottom)], contrasts[len(bottom) + 1 :]
    parts = [
        *(better(each, 1 / MUCH, f"correcting {each.a} is better than {each.b}") for each in much_lower),
        better(all_layers, statement="correcting all is better than none"),
        *(
            replace(no_better(each, f"correcting {each.a} is no better than {each.b}"), is_main=False)
            for each in not_lower
        ),
    ]
    selected = select(records, method=[rest.none, rest.some, "full"])
    ratios = sorted(each.ratio for each in much_lower if each.comparison is not None)
    counted = f" ({len(ratios)} of {len(COUNTS)} numbers of layers)" if len(ratios) < len(COUNTS) else ""
    between = f"{format_times(ratios[0])} to {format_times(ratios[-1])}" if ratios else ""
    why = sentence(
        f"bottom layers give {between} the error of as many top layers{counted}" if ratios else "",
        _describe_all_layers(all_layers),
    )
    return make_verdict(10, why, parts, selected, describe_iqm(errors), reading, scope=rest.name)


def _describe_all_layers(contrast: Contrast) -> str:
    """Say how correcting all layers compares with correcting none, or in how many runs one of the two diverges."""
    diverging = [
        f"correcting {each.line} diverges in {each.diverged} of {each.runs} runs" for each in contrast.instabilities
    ]
    return "; ".join(diverging) or describe_ratio("all layers give {} the error of none", contrast)


FIGURE = Figure(
    name="fig13",
    title="Correcting some layers only",
    claims=(10,),
    settings="Mountain Car from replay; MLP of 6 layers of width 16; α 0.1; β 0.9; batches of 16; full correction for "
    "none, the bottom or top 1 to 5, both ends, or all layers; 20 seeds; 5,000 steps. The authors' conventions: "
    "gradients of δ² with a Taylor term of half strength.",
    runs=union(*GRIDS),
    panels=panels,
    judge=judge,
)
