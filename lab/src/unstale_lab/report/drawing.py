"""Shared by static and interactive plots: styles, the legend, and the finite part of a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from ..analysis.formatting import label as line_label
from ..analysis.panels import Panel, Series
from ..methods import METHOD_PALETTE, METHODS, Style

# For lines that are not methods: activations, layers, kinds of features.
OTHER_STYLES = (
    *METHOD_PALETTE,
    Style("#b3202c", "#ff8a8a", ">"),
    Style("#6b7280", "#a9b1bd", "h"),
)


def series_label(series: Series) -> str:
    """Return the label of a series; labels that are keys of ``METHODS`` become the method's label."""
    return line_label(series.label or series.method)


def styles(panels: Sequence[Panel]) -> dict[str, Style]:
    """Return the style of each ``series.method`` (or label, if it has no method), the same in every panel."""
    keys = list(dict.fromkeys(_style_key(series) for panel in panels for series in panel.series))
    chosen = {key: METHODS[key].style for key in keys if key in METHODS}
    spare = cycle([style for style in OTHER_STYLES if style not in chosen.values()] or OTHER_STYLES)
    return chosen | {key: next(spare) for key in keys if key not in chosen}


def _style_key(series: Series) -> str:
    return series.method or series.label


@dataclass(frozen=True)
class LegendEntry:
    """An entry of the legend, for all series of that label in all panels."""

    label: str
    style: Style
    dashed: bool
    note: str  # number of diverged runs, if it is the same in every panel


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


def panel_note(panel: Panel, entries: Sequence[LegendEntry]) -> str:
    """Return the numbers of diverged runs that are not in the legend, because they differ between panels."""
    legend_notes = (entries[entry_index(series, entries)].note for series in panel.series)
    pairs = zip(panel.series, legend_notes, strict=True)
    return "; ".join(f"{series_label(s)}: {divergence_note(s)}" for s, note in pairs if s.diverged and not note)


def _common(notes: Sequence[str]) -> str:
    return notes[0] if len(set(notes)) == 1 else ""


@dataclass(frozen=True)
class Line:
    """The finite part of a series, ready to draw."""

    x: list[float]
    y: list[float]
    band_x: list[float]
    low: list[float]
    high: list[float]
    end: tuple[float, float] | None  # the last finite point, if the line diverges after it


def finite_line(panel: Panel, series: Series) -> Line:
    """Return the finite part of a series; infinite upper ends of the band become the maximum of the panel."""
    points = [(x, y) for x, y in zip(series.x, series.y, strict=True) if math.isfinite(y)]
    heights = [v for s in panel.series for v in (*s.y, *s.high) if math.isfinite(v)]
    band = [
        (x, low, high if math.isfinite(high) else max(heights))
        for x, low, high in zip(series.x, series.low, series.high, strict=len(series.low) > 0)
        if math.isfinite(low) and not math.isnan(high)
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
