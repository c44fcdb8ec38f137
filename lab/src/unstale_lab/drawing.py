"""What every drawing needs, whatever draws it: colours, the legend, and which part of a line can be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from .figures.base import Panel, Series
from .figures.words import name


@dataclass(frozen=True)
class Style:
    """How a method looks. The colours are told apart by colour-blind eyes, the markers without any colour."""

    light: str  # the colour on a light ground, at least 3 : 1 against it
    dark: str  # and on a dark one
    marker: str  # in matplotlib's letters


_STYLES: dict[str, Style] = {
    "momentum": Style("#c85200", "#ff9142", "o"),
    "oracle": Style("#3a3a3a", "#e6e6e6", "D"),
    "full": Style("#0067a5", "#5ab4f0", "s"),
    "diagonal": Style("#008060", "#35c79a", "^"),
    "default": Style("#b0328a", "#f08fce", "v"),
    "frozen": Style("#8a6a00", "#e3bc3c", "P"),
    "second_order": Style("#6f42c1", "#b99cf5", "X"),
    "adam_linearized": Style("#00829b", "#5fd3e8", "<"),
}
# What is never drawn beside one of these looks like its next of kin.
METHOD_STYLE: dict[str, Style] = _STYLES | {
    "window": _STYLES["full"],
    "adam": _STYLES["momentum"],
    "adam_oracle": _STYLES["oracle"],
    "adam_dense": _STYLES["default"],
    "adam_window": _STYLES["full"],
    "adam_diagonal_literal": _STYLES["second_order"],
    "adam_diagonal": _STYLES["diagonal"],
    "adam_frozen": _STYLES["frozen"],
}
# For lines that are no method: activations, layers, kinds of features.
OTHER_STYLES = (
    *_STYLES.values(),
    Style("#b3202c", "#ff8a8a", ">"),
    Style("#6b7280", "#a9b1bd", "h"),
)


method_label = name  # the notes' own: a method has one label everywhere


def label(series: Series) -> str:
    return name(series.label or series.method)


def styles(panels: Sequence[Panel]) -> dict[str, Style]:
    """The style of each ``series.method`` (or, without one, of each label), the same in every panel."""
    keys = list(dict.fromkeys(_style_key(series) for panel in panels for series in panel.series))
    chosen = {key: METHOD_STYLE[key] for key in keys if key in METHOD_STYLE}
    spare = cycle([style for style in OTHER_STYLES if style not in chosen.values()] or OTHER_STYLES)
    return chosen | {key: next(spare) for key in keys if key not in chosen}


def _style_key(series: Series) -> str:
    return series.method or series.label


@dataclass(frozen=True)
class Entry:
    """A line of the legend, which stands for the lines of that name in all panels."""

    label: str
    style: Style
    dashed: bool
    note: str  # how many runs diverged, where every panel has the same number


def legend(panels: Sequence[Panel]) -> list[Entry]:
    """One entry for each label, in order of appearance."""
    look = styles(panels)
    named: dict[tuple[str, bool], list[Series]] = {}
    for panel in panels:
        for series in panel.series:
            named.setdefault((label(series), series.dashed), []).append(series)
    return [
        Entry(name, look[_style_key(lines[0])], dashed, _agreed([divergences(line) for line in lines]))
        for (name, dashed), lines in named.items()
    ]


def entry_of(series: Series, entries: Sequence[Entry]) -> int:
    """Where in the legend a line is."""
    return next(i for i, e in enumerate(entries) if (e.label, e.dashed) == (label(series), series.dashed))


def divergences(series: Series) -> str:
    """
    >>> divergences(Series("μ̂", [0.0], [1.0], runs=60, diverged=12))
    '12 of 60 diverged'
    """
    return f"{series.diverged} of {series.runs} diverged" if series.diverged else ""


def panel_note(panel: Panel, entries: Sequence[Entry]) -> str:
    """The divergences that the legend leaves out because they differ from panel to panel."""
    told = (entries[entry_of(series, entries)].note for series in panel.series)
    pairs = zip(panel.series, told, strict=True)
    return "; ".join(f"{label(s)}: {divergences(s)}" for s, note in pairs if s.diverged and not note)


def _agreed(notes: Sequence[str]) -> str:
    return notes[0] if len(set(notes)) == 1 else ""


@dataclass(frozen=True)
class Line:
    """The finite part of a series."""

    x: list[float]
    y: list[float]
    band_x: list[float]
    low: list[float]
    high: list[float]
    end: tuple[float, float] | None  # the last point before it diverges


def finite_line(panel: Panel, series: Series) -> Line:
    """What can be drawn. A band whose upper end is infinite reaches as high as anything in its panel."""
    points = [(x, y) for x, y in zip(series.x, series.y, strict=True) if math.isfinite(y)]
    reach = [v for s in panel.series for v in (*s.y, *s.high) if math.isfinite(v)]
    band = [
        (x, low, high if math.isfinite(high) else max(reach))
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
