"""Static plots with matplotlib: panels in a grid with one legend, as PDF, SVG and PNG."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from ..analysis.panels import Panel
from ..files import write_file
from .axes import Axis
from .drawing import (
    MAX_POINTS_ALL_MARKED,
    LegendEntry,
    describe_note,
    drawn_series,
    end_labels,
    entry_index,
    finite_line,
    legend,
    panel_axes,
    panel_title,
)

TEXT_COLOUR, AXIS_COLOUR, GRID_COLOUR = "#222222", "#666666", "#e4e4e4"
MU, MU_HAT, DIAGONAL = r"\mu", r"\hat{\mu}", r"_\mathrm{diag}"
END_LABEL_HEIGHT = 0.065  # share of the height of the axes
END_LABEL_AT = 1.035  # right of the axes, relative to their width
NOTE_WIDTH, TITLE_WIDTH = 52, 34  # characters per line
# Without dates: the same data give the same bytes.
METADATA: dict[str, dict[str, str | None]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
    "png": {},
}


def draw(panels: Sequence[Panel], title: str) -> Figure:
    """Draw all panels, up to four per row."""
    count = max(len(panels), 1)
    columns = count if count <= 4 else 3 if count in (5, 6, 9) else 4
    rows = -(-count // columns)
    entries = legend(panels)
    width = max(3.3 * columns, 4.6)
    figure = Figure(figsize=(width, 2.75 * rows + 0.75), layout="constrained")
    figure.suptitle(mathtext(title), fontsize=11, color=TEXT_COLOUR)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, panel in zip(axes, panels, strict=False):
        _draw_panel(ax, panel, entries)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    if entries:
        handles = [_handle(entry) for entry in entries]
        longest = max(len(entry.label) for entry in entries)
        across = max(1, min(len(entries), int(width / (0.5 + 0.06 * longest))))
        figure.legend(
            handles=handles, loc="outside lower center", ncols=across, frameon=False, fontsize=8, handlelength=3
        )
    return figure


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name.pdf``, ``name.svg`` and ``name.png`` to the folder and return their paths."""
    with matplotlib.rc_context({"svg.hashsalt": name}):
        return [write_file(folder / f"{name}.{kind}", _render(figure, kind)) for kind in METADATA]


def mathtext(text: str) -> str:
    """Return the text with the paper's symbols in mathtext, because a combining hat is typeset badly.

    >>> mathtext("μ̂ diag, β = 0.9, $5")
    '$\\\\hat{\\\\mu}_\\\\mathrm{diag}$, β = 0.9, \\\\$5'
    """

    def symbol(found: re.Match[str]) -> str:
        hat, diagonal, star = found.groups()
        return f"${MU_HAT if hat else MU}{DIAGONAL if diagonal else ''}{'^{*}' if star else ''}$"

    return re.sub(r"μ(\u0302)?( ?diag\b)?(\*)?", symbol, text.replace("$", r"\$"))


def _wrapped(text: str, width: int) -> str:
    """Return lines of at most that many characters, for matplotlib; symbols are not broken."""
    unbroken = text.replace(" diag", "\N{NO-BREAK SPACE}diag")
    return mathtext(textwrap.fill(unbroken, width).replace("\N{NO-BREAK SPACE}", " "))


def _render(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=160, metadata=METADATA[kind])
    return buffer.getvalue()


def _draw_panel(axes: Axes, panel: Panel, entries: Sequence[LegendEntry]) -> None:
    lines = drawn_series(panel, entries)
    x, y = panel_axes(panel, entries)
    # Set the scales first, so that the limits of a logarithmic axis ignore points that are not positive.
    axes.set_xscale("log" if x.is_log else "linear")
    axes.set_yscale("log" if y.is_log else "linear")
    for series in lines:
        entry, line = entries[entry_index(series, entries)], finite_line(panel, series)
        band_x = [x.drawn(value) for value in line.band_x]
        axes.fill_between(band_x, line.low, line.high, color=entry.style.light, alpha=0.16, linewidth=0)
        axes.plot(
            [x.drawn(value) for value in line.x],
            line.y,
            **_line_style(entry),
            markevery=max(1, len(line.x) // 6) if len(line.x) > MAX_POINTS_ALL_MARKED else 1,
        )
        if line.end:
            end = x.drawn(line.end[0]), line.end[1]
            axes.plot(*end, marker="x", color=entry.style.light, markersize=7, markeredgewidth=1.8)
    _write_end_labels(axes, panel, y, entries)
    axes.set_xlabel(mathtext(x.title), fontsize=8.5, color=TEXT_COLOUR)
    axes.set_ylabel(mathtext(y.title), fontsize=8.5, color=TEXT_COLOUR)
    axes.set_title(_wrapped(panel_title(panel), TITLE_WIDTH), fontsize=9.5, color=TEXT_COLOUR)
    # Below the axes, so that the panels of a row stay in line.
    note = _wrapped(describe_note(panel, entries), NOTE_WIDTH)
    place: dict[str, Any] = {"xycoords": "axes fraction", "xytext": (0, -32), "textcoords": "offset points"}
    axes.annotate(note, (0.5, 0), **place, ha="center", va="top", fontsize=7, color=AXIS_COLOUR)
    if lines:
        _style_axes(axes, x, y)
    else:
        axes.set_axis_off()


def _write_end_labels(axes: Axes, panel: Panel, y: Axis, entries: Sequence[LegendEntry]) -> None:
    """Write shares of diverged runs right of the axes, with lines that lead to the heights of the lines' ends."""
    labels = end_labels(panel, y, drawn_series(panel, entries), END_LABEL_HEIGHT)
    style: dict[str, Any] = {"transform": axes.transAxes, "fontsize": 6.5, "va": "center"}
    for label in labels:
        colour = entries[entry_index(label.series, entries)].style.light
        leader = [1, END_LABEL_AT - 0.01], [label.line_end, label.height]
        axes.add_artist(Line2D(*leader, transform=axes.transAxes, color=colour, linewidth=0.7, clip_on=False))
        axes.text(END_LABEL_AT, label.height, label.text, color=colour, **style)
    if labels:
        axes.text(END_LABEL_AT, labels[0].height + END_LABEL_HEIGHT, "diverged", color=AXIS_COLOUR, **style)


def _style_axes(axes: Axes, x: Axis, y: Axis) -> None:
    """Set limits and ticks, and style axes and grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(AXIS_COLOUR)
    axes.tick_params(colors=AXIS_COLOUR, labelsize=7.5)
    axes.grid(color=GRID_COLOUR, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xlim(*((x.high, x.low) if x.is_complement else (x.low, x.high)))
    axes.set_ylim(y.low, y.high)
    for own, axis in ((axes.xaxis, x), (axes.yaxis, y)):
        own.set_major_locator(FixedLocator([axis.drawn(tick.value) for tick in axis.ticks]))
        own.set_major_formatter(FixedFormatter([tick.text for tick in axis.ticks]))
        own.set_minor_locator(NullLocator())


def _line_style(entry: LegendEntry) -> dict[str, Any]:
    return {
        "color": entry.style.light,
        # In points: matplotlib multiplies the lengths of dashes by the width of the line.
        "linestyle": (0, [length / entry.width for length in entry.dashes]) if entry.dashes else "-",
        "linewidth": entry.width,
        "marker": entry.style.marker,
        "markersize": 7 if entry.style.marker == "*" else 4,
        # Hollow, to distinguish a dashed line of a single point.
        "markerfacecolor": "white" if entry.dashed else entry.style.light,
        "markeredgewidth": 1 if entry.dashed else 0,
    }


def _handle(entry: LegendEntry) -> Line2D:
    style = _line_style(entry) | ({"linestyle": ""} if entry.is_point else {})
    return Line2D([], [], label=mathtext(entry.label), **style)
