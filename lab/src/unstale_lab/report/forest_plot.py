"""The static plot of the main effects, with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..claims.verdict import READING_NAMES, READINGS, Reading
from .forest import HIGH, LOW, TICKS, ForestRow
from .plots import AXIS_COLOUR, GRID_COLOUR, TEXT_COLOUR, mathtext

COLOUR = "#0b5cad"
MARKERS: dict[Reading, str] = {"text": "o", "code": "D"}


def draw_forest(rows: Sequence[ForestRow]) -> Figure:
    """Draw all rows from top to bottom: circles as described in the text, hollow diamonds as the authors ran it."""
    figure = Figure(figsize=(8.6, 0.26 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_xlim(LOW, HIGH)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.axvline(1, color=AXIS_COLOUR, linewidth=1)
    for height, row in enumerate(rows):
        _draw_row(axes, row, height)
    axes.set_yticks(range(len(rows)), [mathtext(f"{row.claim}  {row.subject}: {row.quantity}") for row in rows])
    axes.xaxis.set_major_locator(FixedLocator(list(TICKS)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ratio, 95 % CI", fontsize=8.5, color=TEXT_COLOUR)
    axes.tick_params(colors=TEXT_COLOUR, labelsize=7.5, length=0, pad=7)
    axes.grid(axis="x", color=GRID_COLOUR, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    handles = [Line2D([], [], **_marker(reading), linestyle="", label=READING_NAMES[reading]) for reading in READINGS]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False, fontsize=8)
    return figure


def _draw_row(axes: Axes, row: ForestRow, height: int) -> None:
    if not math.isnan(row.value):
        low, high = (min(max(end, LOW), HIGH) for end in row.ends)
        axes.plot([low, high], [height, height], color=COLOUR, linewidth=1.6, solid_capstyle="butt")
    if LOW <= row.value <= HIGH:
        axes.plot([row.value], [height], **_marker(row.reading), zorder=3)
    for is_clipped, end, arrow in ((row.is_clipped_left, LOW, "<"), (row.is_clipped_right, HIGH, ">")):
        if is_clipped:
            axes.plot([end], [height], **{**_marker(row.reading), "marker": arrow}, clip_on=False)
    axes.annotate(
        mathtext(row.text),
        (1.04, height),
        xycoords=("axes fraction", "data"),
        va="center",
        fontsize=7.5,
        color=TEXT_COLOUR,
    )


def _marker(reading: Reading) -> dict[str, Any]:
    face = COLOUR if reading == "text" else "white"
    return {
        "marker": MARKERS[reading],
        "markersize": 5,
        "color": COLOUR,
        "markerfacecolor": face,
        "markeredgecolor": COLOUR,
    }
