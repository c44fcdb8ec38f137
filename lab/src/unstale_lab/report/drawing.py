"""Shared by static plots and charts of the page: styles, legend, draw order, and what of a series is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

from ..analysis.formatting import format_estimate, format_number
from ..analysis.formatting import label as line_label
from ..analysis.panels import Panel, Series
from ..methods import (
    BASELINE,
    DIAGONAL,
    FROZEN,
    FULL,
    METHODS,
    ORACLE,
    OURS,
    PER_SAMPLE,
    SECOND_ORDER,
    WINDOW,
    Style,
)
from .axes import MOMENTUM_LABEL, Axis, make_axis

DASHED = (5.0, 3.0)  # of series with ``dashed``
# Of lines that are variants of one method, such as "Adam", "Adam, annealed" and "Adam, TD(0.5), annealed".
VARIANT_DASHES = (DASHED, (1.5, 2.5), (9.0, 3.0, 1.5, 3.0, 1.5, 3.0))
# For lines that are not methods: activations, layers, kinds of features. First those that few methods use.
GREY = Style("#6b7280", "#a9b1bd", "h")
OTHER_STYLES = (
    SECOND_ORDER,
    WINDOW,
    FROZEN,
    PER_SAMPLE,
    GREY,
    DIAGONAL,
    BASELINE,
    FULL,
    replace(OURS, dashes=()),
    ORACLE,
)
OWN_OPTIMIZERS = ("CorrectedAdam", "CorrectedSGD")
TICK_CHARACTERS = 40  # how many characters of tick labels fit along a horizontal axis
MAX_POINTS_ALL_MARKED = 16  # lines with more points have markers at a few of them
MIN_LABELLED_SHARE = 0.05  # of diverged runs
DIVERGENCE_LABEL = "share of diverged runs"  # of an axis


def series_label(series: Series) -> str:
    """Return the label of a series; labels that are keys of ``METHODS`` become the method's label."""
    return line_label(series.label or series.method)


def styles(panels: Sequence[Panel]) -> dict[str, Style]:
    """Return the style of each ``series.method`` (or label, if it has no method), the same in every panel.

    Lines of one method have the colour of the method in all figures; their dashes differ.
    """
    keys = list(dict.fromkeys(_style_key(series) for panel in panels for series in panel.series))
    chosen = {key: METHODS[key].style for key in keys if key in METHODS}
    taken = set(chosen.values())
    for key in keys:
        if key not in chosen and (own := _method_style(key)) is not None:
            chosen[key] = next((s for s in _variants(own) if s not in taken), own)
            taken.add(chosen[key])
    colours = {style.light for style in taken}
    spare = cycle([style for style in OTHER_STYLES if style.light not in colours] or OTHER_STYLES)
    return {key: chosen[key] if key in chosen else next(spare) for key in keys}


def _style_key(series: Series) -> str:
    return series.method or series.label


def _method_style(label: str) -> Style | None:
    """Return the style of the method that a label names, as in "Adam, annealed"; ``None`` if it names none."""
    name = label.split(",")[0]
    if name.startswith(OWN_OPTIMIZERS):
        return OURS
    return next((m.style for key, m in METHODS.items() if name in (key, m.label)), None)


def _variants(style: Style) -> Iterable[Style]:
    return (style, *(replace(style, dashes=dashes) for dashes in VARIANT_DASHES))


@dataclass(frozen=True)
class LegendEntry:
    """An entry of the legend, for all series of that label in all panels."""

    label: str
    style: Style
    dashed: bool
    note: str  # number of diverged runs, if it is the same in every panel

    @property
    def dashes(self) -> tuple[float, ...]:
        """Lengths of dashes and gaps; empty for a solid line."""
        return DASHED if self.dashed else self.style.dashes

    @property
    def width(self) -> float:
        """Width of the line in points. Lines below others are wider, so that they stay visible."""
        return 2.6 if self.style.layer < 1 else 1.6


def legend(panels: Sequence[Panel]) -> list[LegendEntry]:
    """Return one entry per label, in order of appearance."""
    style = styles(panels)
    by_label: dict[tuple[str, bool], list[Series]] = {}
    for panel in panels:
        for series in panel.series:
            by_label.setdefault((series_label(series), series.dashed), []).append(series)
    return [
        LegendEntry(label, style[_style_key(lines[0])], dashed, _common([divergence_note(line) for line in lines]))
        for (label, dashed), lines in by_label.items()
    ]


def entry_index(series: Series, entries: Sequence[LegendEntry]) -> int:
    """Return the index of a series' entry in the legend."""
    return next(i for i, e in enumerate(entries) if (e.label, e.dashed) == (series_label(series), series.dashed))


def divergence_note(series: Series) -> str:
    """Return the number of diverged runs in words; empty if none diverged.

    >>> divergence_note(Series("μ̂", [0.0], [1.0], runs=60, diverged=12))
    '12 of 60 diverged'
    """
    return f"{series.diverged} of {series.runs} diverged" if series.diverged else ""


def shows_divergences(panel: Panel, series: Series) -> bool:
    """Return whether the share of diverged runs is written at the end of a line: over steps, and if it is not small.

    Over a hyper-parameter the share differs from point to point; the legend has the total.
    """
    is_shown = is_over_time(panel) and panel.y_label != DIVERGENCE_LABEL
    return is_shown and series.diverged > MIN_LABELLED_SHARE * series.runs


def is_over_time(panel: Panel) -> bool:
    """Return whether lines are learning curves, not errors over a hyper-parameter."""
    return panel.x_label.startswith(("steps", "samples", "seconds", "environment"))


def divergence_share(series: Series) -> str:
    """Return the share of diverged runs, to be written at the end of the line; empty if none diverged.

    >>> divergence_share(Series("μ̂", [0.0], [1.0], runs=60, diverged=12))
    '20 % diverged'
    >>> divergence_share(Series("μ̂", [0.0], [1.0], runs=540, diverged=2))
    '0.4 % diverged'
    """
    if not series.diverged or not series.runs:
        return ""
    percent = 100 * series.diverged / series.runs
    return f"{percent:.0f} % diverged" if percent >= 1 else f"{percent:.1f} % diverged"


def panel_note(panel: Panel, entries: Sequence[LegendEntry]) -> str:
    """Return the numbers of diverged runs that are not in the legend, because they differ between panels."""
    legend_notes = (entries[entry_index(series, entries)].note for series in panel.series)
    pairs = zip(panel.series, legend_notes, strict=True)
    return "; ".join(f"{series_label(s)}: {divergence_note(s)}" for s, note in pairs if s.diverged and not note)


def describe_note(panel: Panel, entries: Sequence[LegendEntry]) -> str:
    """Describe what lines do not show: those that are not drawn, and diverged runs over a hyper-parameter."""
    diverged = "" if is_over_time(panel) or panel.y_label == DIVERGENCE_LABEL else panel_note(panel, entries)
    return " ".join(text for text in (describe_undrawn(panel), diverged and f"{diverged}.") if text)


def _common(notes: Sequence[str]) -> str:
    return notes[0] if len(set(notes)) == 1 else ""


# What is drawn, and what is said in words instead.


def drawn_series(panel: Panel, entries: Sequence[LegendEntry]) -> list[Series]:
    """Return the series that are drawn as lines, from the lowest to the topmost."""
    lines = [series for series in panel.series if finite_line(panel, series).x and not is_constant(series)]
    return sorted(lines, key=lambda series: entries[entry_index(series, entries)].style.layer)


def is_constant(series: Series) -> bool:
    """Return whether all of several values are equal and none is missing: no curve is needed to show that."""
    values = list(series.y)
    return len(values) > 1 and all(math.isclose(y, values[0], rel_tol=1e-9) for y in values) and bool(_finite(series))


def describe_undrawn(panel: Panel) -> str:
    """Describe the series that are not drawn: constants, and those without a finite value."""
    constants = [f"{series_label(s)} {_constant(s)}" for s in panel.series if is_constant(s)]
    infinite = [series_label(s) for s in panel.series if not _finite(s)]
    outside = [series_label(s) for s in panel.series if _finite(s) and not finite_line(panel, s).x]
    texts = [f"Constant: {', '.join(constants)}."] if constants else []
    texts += [f"Not drawn, because too many runs diverged: {', '.join(infinite)}."] if infinite else []
    texts += [f"Not drawn, because a logarithmic axis cannot show them: {', '.join(outside)}."] if outside else []
    return " ".join(texts)


def _constant(series: Series) -> str:
    if len(series.low) and series.low[0] < series.high[0]:
        return format_estimate(series.y[0], (series.low[0], series.high[0]))
    return format_number(series.y[0])


def _finite(series: Series) -> list[float]:
    return [y for y in series.y if math.isfinite(y)]


def panel_axes(panel: Panel, entries: Sequence[LegendEntry]) -> tuple[Axis, Axis]:
    """Return the axes on which all drawn lines and bands fit."""
    lines = [finite_line(panel, series) for series in drawn_series(panel, entries)]
    x = make_axis(panel.x_label, [value for line in lines for value in line.x], panel.log_x, TICK_CHARACTERS)
    y = [value for line in lines for value in (*line.y, *line.low, *line.high)]
    return x, make_axis(panel.y_label, y, panel.log_y)


@dataclass(frozen=True)
class Line:
    """The part of a series that can be drawn."""

    x: list[float]
    y: list[float]
    band_x: list[float]
    low: list[float]
    high: list[float]
    end: tuple[float, float] | None  # the last finite point, if the line diverges after it


def finite_line(panel: Panel, series: Series) -> Line:
    """Return the finite part of a series, on a logarithmic axis the positive part.

    Infinite upper ends of the band become the maximum of the panel.
    """

    def can_draw(x: float) -> bool:
        at = 1 - x if panel.x_label == MOMENTUM_LABEL else x
        return math.isfinite(x) and (at > 0 or not (panel.log_x or panel.x_label == MOMENTUM_LABEL))

    points = [
        (x, y)
        for x, y in zip(series.x, series.y, strict=True)
        if can_draw(x) and math.isfinite(y) and (y > 0 or not panel.log_y)
    ]
    heights = [v for s in panel.series for v in (*s.y, *s.high) if math.isfinite(v)]
    band = [
        (x, low, high if math.isfinite(high) else max(heights))
        for x, low, high in zip(series.x, series.low, series.high, strict=len(series.low) > 0)
        if can_draw(x) and math.isfinite(low) and not math.isnan(high)
    ]
    diverges = bool(points) and series.y[-1] == math.inf
    return Line(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        band_x=[x for x, _, _ in band],
        low=[low for _, low, _ in band],
        high=[high for _, _, high in band],
        end=points[-1] if diverges else None,
    )
