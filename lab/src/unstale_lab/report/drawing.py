"""Shared by static plots and charts of the page: styles, legend, draw order, and what of a series is drawn."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

from ..analysis.formatting import capitalized, format_estimate, format_number
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
    FROZEN,
    PER_SAMPLE,
    GREY,
    DIAGONAL,
    BASELINE,
    FULL,
    replace(OURS, dashes=()),
    ORACLE,
    replace(WINDOW, dashes=()),
)
OWN_OPTIMIZERS = ("CorrectedAdam", "CorrectedSGD")
TICK_CHARACTERS = 40  # how many characters of tick labels fit along a horizontal axis
MAX_POINTS_ALL_MARKED = 16  # lines with more points have markers at a few of them
COINCIDENCE = 0.02  # lines that differ by less at every point are said to coincide
DIVERGENCE_LABEL = "share of diverged runs"  # of an axis
STUDY_NAMES = {"ms_pacman_memory": "long memory on MsPacman"}


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
    is_point: bool = False  # whether it has a single point in every panel, and no line

    @property
    def dashes(self) -> tuple[float, ...]:
        """Lengths of dashes and gaps; empty for a solid line."""
        return DASHED if self.dashed else self.style.dashes

    @property
    def is_wide(self) -> bool:
        """Whether the line is wider, so that it stays visible below others."""
        return self.style.layer < 1

    @property
    def width(self) -> float:
        """Width of the line in points, as in page.css."""
        return 2.6 if self.is_wide else 1.6


def legend(panels: Sequence[Panel]) -> list[LegendEntry]:
    """Return one entry per label, in order of appearance."""
    style = styles(panels)
    by_label: dict[tuple[str, bool], list[Series]] = {}
    for panel in panels:
        for series in panel.series:
            by_label.setdefault((series_label(series), series.dashed), []).append(series)
    return [
        LegendEntry(
            label,
            style[_style_key(lines[0])],
            dashed,
            is_point=all(len(line.x) == 1 for line in lines),
        )
        for (label, dashed), lines in by_label.items()
    ]


def entry_index(series: Series, entries: Sequence[LegendEntry]) -> int:
    """Return the index of a series' entry in the legend."""
    return next(i for i, e in enumerate(entries) if (e.label, e.dashed) == (series_label(series), series.dashed))


@dataclass(frozen=True)
class EndLabel:
    """The share of diverged runs, written right of the axes."""

    series: Series
    text: str  # "35 %"
    line_end: float  # height of the end of the line: 0 at the bottom, 1 at the top
    height: float  # of the label


def end_labels(panel: Panel, y: Axis, lines: Sequence[Series], line_height: float) -> list[EndLabel]:
    """Return the labels at the ends of learning curves, from the top, without overlap.

    Over a hyper-parameter there are none, because the share differs from point to point; a note has the total.

    Args:
        panel: the panel.
        y: its vertical axis.
        lines: the series that are drawn.
        line_height: of a label, as a share of the height of the axes.
    """
    if not is_over_time(panel) or panel.y_label == DIVERGENCE_LABEL:
        return []
    ends = [(y.position(finite_line(panel, s).y[-1]), divergence_share(s), s) for s in lines if divergence_share(s)]
    ends.sort(key=lambda end: end[0], reverse=True)
    heights = spread([height for height, _, _ in ends], line_height, high=1 - line_height)  # below a heading
    return [EndLabel(s, text, end, height) for (end, text, s), height in zip(ends, heights, strict=True)]


def spread(places: Sequence[float], distance: float, low: float = 0.0, high: float = math.inf) -> list[float]:
    """Move falling places apart: down where they are too close, and up again from the lower end.

    >>> [round(place, 2) for place in spread([0.9, 0.5, 0.48, 0.05, 0.04], 0.1)]
    [0.9, 0.5, 0.4, 0.1, 0.0]
    """
    apart: list[float] = []
    for place in places:
        apart.append(min(place, apart[-1] - distance if apart else high))
    for i in reversed(range(len(apart))):
        apart[i] = max(apart[i], apart[i + 1] + distance if i + 1 < len(apart) else low)
    return apart


def is_over_time(panel: Panel) -> bool:
    """Return whether lines are learning curves, not errors over a hyper-parameter."""
    return panel.x_label.startswith(("steps", "samples", "seconds", "environment"))


def divergence_share(series: Series) -> str:
    """Return the share of diverged runs in percent; empty if none diverged.

    >>> divergence_share(Series("μ̂", [0.0], [1.0], runs=60, diverged=12))
    '20 %'
    >>> divergence_share(Series("μ̂", [0.0], [1.0], runs=540, diverged=2))
    '0.4 %'
    """
    if not series.diverged or not series.runs:
        return ""
    percent = 100 * series.diverged / series.runs
    return f"{percent:.0f} %" if percent >= 1 else f"{percent:.1f} %"


def panel_title(panel: Panel) -> str:
    """Return the title with a capital."""
    return capitalized(panel.title)


def section_title(name: str) -> str:
    """Return the name of a figure as a reader knows it.

    >>> [section_title(name) for name in ("fig3", "fig9_tuned", "claim13", "long_memory")]
    ['Figure 3', 'Figure 9, tuned', 'Claim 13', 'Study: long memory']
    """
    found = re.fullmatch(r"(fig|claim)(\d+)_?(.*)", name)
    if found is None:
        return f"Study: {STUDY_NAMES.get(name, name.replace('_', ' '))}"
    kind, number, rest = found.groups()
    title = f"{'Figure' if kind == 'fig' else 'Claim'} {number}"
    return f"{title}, {rest.replace('_', ' ')}" if rest else title


def panel_note(panel: Panel) -> str:
    """Return the numbers of diverged runs of all lines; empty if none diverged.

    >>> lines = [Series("a", [0.0], [1.0], runs=60, diverged=12), Series("b", [0.0], [1.0], runs=60, diverged=3)]
    >>> panel = Panel("", "", "", lines)
    >>> panel_note(panel)
    'a 12, b 3 of 60 runs'
    """
    by_runs: dict[int, list[str]] = {}
    for series in panel.series:
        if series.diverged:
            by_runs.setdefault(series.runs, []).append(f"{series_label(series)} {series.diverged:,}")
    return "; ".join(f"{', '.join(counts)} of {runs:,} runs" for runs, counts in by_runs.items())


def describe_note(panel: Panel, entries: Sequence[LegendEntry]) -> str:
    """Describe what lines do not show: which are not drawn, which coincide, and diverged runs over a setting."""
    diverged = "" if is_over_time(panel) or panel.y_label == DIVERGENCE_LABEL else panel_note(panel)
    texts = (describe_undrawn(panel), describe_coinciding(panel, entries), diverged and f"Diverged: {diverged}.")
    return " ".join(text for text in texts if text)


def describe_coinciding(panel: Panel, entries: Sequence[LegendEntry]) -> str:
    """Name the lines that differ by less than ``COINCIDENCE`` at every point, of which a reader sees the topmost."""
    drawn = drawn_series(panel, entries)
    if panel.y_label == DIVERGENCE_LABEL or not panel.log_y:
        return ""
    groups: list[list[Series]] = []
    for series in (series for series in panel.series if series in drawn and len(series.x) > 1):
        same = next((group for group in groups if all(_coincide(series, other) for other in group)), None)
        groups.append([series]) if same is None else same.append(series)
    several = [group for group in groups if len(group) > 1]
    if len(several) == 1 and len(several[0]) == len(drawn) > 2:
        return f"All lines coincide within {100 * COINCIDENCE:g} %."
    named = [" ≈ ".join(series_label(series) for series in group) for group in several]
    return f"Within {100 * COINCIDENCE:g} % at every point: {'; '.join(named)}." if named else ""


def _coincide(a: Series, b: Series) -> bool:
    return list(a.x) == list(b.x) and all(
        math.isclose(y, other, rel_tol=COINCIDENCE) for y, other in zip(a.y, b.y, strict=True)
    )


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
    flat = [s for s in panel.series if is_constant(s)]
    zeros = [series_label(s) for s in flat if s.y[0] == 0]
    constants = [f"{series_label(s)} {_constant(s)}" for s in flat if s.y[0] != 0]
    infinite = [series_label(s) for s in panel.series if not _finite(s)]
    outside = [series_label(s) for s in panel.series if _finite(s) and not finite_line(panel, s).x]
    texts = [f"Not drawn because constant: {', '.join(constants)}."] if constants else []
    texts += [f"Not drawn because 0 at every point: {', '.join(zeros)}."] if zeros else []
    texts += [f"Not drawn because too many runs diverged: {', '.join(infinite)}."] if infinite else []
    texts += [f"Not drawn because a logarithmic axis cannot show it: {', '.join(outside)}."] if outside else []
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
