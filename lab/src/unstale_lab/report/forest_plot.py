"""The static plot of the main effects, with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..claims.verdict import ANSWERS, READING_NAMES, READINGS, Answer, Reading
from .forest import HIGH, LOW, TICKS, ForestRow, forest_groups
from .overview import ANSWER_SIGNS
from .plots import AXIS_COLOUR, GRID_COLOUR, TEXT_COLOUR, mathtext

# By answer: the colours of the page on a light background.
COLOURS: dict[Answer, str] = {
    "holds": "#0f6b3a",
    "holds in part": "#4a6300",
    "does not hold": "#a1191f",
    "undecided": "#7a5200",
    "shown": "#555962",
    "not run": "#555962",
}
SUPPORT_COLOUR = "#eeeeeb"
MARKERS: dict[Reading, str] = {"text": "o", "code": "D"}


def draw_forest(rows: Sequence[ForestRow]) -> Figure:
    """Draw all rows from top to bottom: circles as described in the text, hollow diamonds as the authors ran it."""
    groups = forest_groups(rows)
    count = len(rows) + len(groups)
    figure = Figure(figsize=(8.6, 0.2 * count + 1.2), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_xlim(LOW, HIGH)
    axes.set_ylim(count - 0.4, -0.6)
    axes.axvline(1, color=AXIS_COLOUR, linewidth=1)
    ticks: list[tuple[int, str]] = []
    for heading, group in groups.items():
        ticks.append((len(ticks), heading))
        for before, row in zip([None, *group], group, strict=False):
            _draw_row(axes, row, len(ticks))
            is_first = before is None or before.claim != row.claim
            text = f"{row.claim}  {row.subject}: {row.name}" if is_first else READING_NAMES[row.reading]
            ticks.append((len(ticks), mathtext(text)))
    axes.set_yticks([height for height, _ in ticks], [text for _, text in ticks])
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() in groups else "normal")
    axes.xaxis.set_major_locator(FixedLocator(list(TICKS)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ratio [95 % CI]; shaded: supports the claim", fontsize=8.5, color=TEXT_COLOUR)
    axes.tick_params(colors=TEXT_COLOUR, labelsize=7.5, length=0, pad=7)
    axes.grid(axis="x", color=GRID_COLOUR, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(handles=_handles(rows), loc="outside upper center", ncols=6, frameon=False, fontsize=8)
    return figure


def _handles(rows: Sequence[ForestRow]) -> list[Line2D]:
    readings = [
        Line2D([], [], **_marker(reading, TEXT_COLOUR), linestyle="", label=READING_NAMES[reading])
        for reading in READINGS
    ]
    found = [answer for answer in ANSWERS if any(row.answer == answer for row in rows)]
    return [*readings, *(Line2D([], [], color=COLOURS[answer], linewidth=1.6, label=answer) for answer in found)]


def _draw_row(axes: Axes, row: ForestRow, height: int) -> None:
    colour = COLOURS[row.answer]
    for start, end in row.supporting:
        low, high = (min(max(x, LOW), HIGH) for x in (start, end))
        axes.fill_between([low, high], height - 0.5, height + 0.5, color=SUPPORT_COLOUR, linewidth=0, zorder=0)
    if row.is_drawn:
        low, high = (min(max(end, LOW), HIGH) for end in row.ends)
        axes.plot([low, high], [height, height], color=colour, linewidth=1.6, solid_capstyle="butt")
    if LOW <= row.value <= HIGH:
        axes.plot([row.value], [height], **_marker(row.reading, colour), zorder=3)
    for is_clipped, end, arrow in ((row.is_clipped_left, LOW, "<"), (row.is_clipped_right, HIGH, ">")):
        if is_clipped:
            axes.plot([end], [height], **{**_marker("text", colour), "marker": arrow}, clip_on=False)
    style: dict[str, Any] = {"va": "center", "fontsize": 7.5, "color": colour}
    number = row.text if row.is_drawn else "no ratio"
    axes.annotate(f"{ANSWER_SIGNS[row.answer]}  {number}", (1.03, height), xycoords=("axes fraction", "data"), **style)
    if not row.is_drawn:
        axes.text(1.04, height, mathtext(row.text), **style)


def _marker(reading: Reading, colour: str) -> dict[str, Any]:
    return {
        "marker": MARKERS[reading],
        "markersize": 3.6,
        "color": colour,
        "markerfacecolor": colour if reading == "text" else "white",
        "markeredgecolor": colour,
    }
