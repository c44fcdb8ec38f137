"""A panel as inline SVG for the page. It is complete without scripts; the page's script adds tooltips and zoom."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from ..analysis.formatting import format_number
from ..analysis.panels import Panel
from ..methods import Style
from .axes import Axis
from .drawing import (
    MAX_POINTS_ALL_MARKED,
    EndLabel,
    LegendEntry,
    Line,
    drawn_series,
    end_labels,
    entry_index,
    finite_line,
    panel_axes,
)
from .tables import describe_panel

WIDTH, HEIGHT = 360, 240
TOP, RIGHT, BOTTOM = 8, 12, 38
LABELLED_RIGHT = 62  # room right of the axes for labels at the ends of lines
LEADER = 10  # length of the lines from the axes to these labels
CHARACTER = 6.4  # width of a character of a tick label
LINE_HEIGHT = 12  # of the labels at the ends of lines
MARKED_POINTS = 4
# Shapes around (0, 0), by matplotlib marker.
MARKERS = {
    "o": "M-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0Z",
    "D": "M0,-3.6L3.6,0 0,3.6 -3.6,0Z",
    "s": "M-2.8,-2.8H2.8V2.8H-2.8Z",
    "^": "M0,-3.6L3.4,2.6H-3.4Z",
    "v": "M0,3.6L3.4,-2.6H-3.4Z",
    "<": "M-3.6,0L2.6,-3.4V3.4Z",
    ">": "M3.6,0L-2.6,-3.4V3.4Z",
    "P": "M-1.2,-3.5H1.2V-1.2H3.5V1.2H1.2V3.5H-1.2V1.2H-3.5V-1.2H-1.2Z",
    "X": "M-3.4,-1.7L-1.7,-3.4 0,-1.7 1.7,-3.4 3.4,-1.7 1.7,0 3.4,1.7 1.7,3.4 0,1.7 -1.7,3.4 -3.4,1.7 -1.7,0Z",
    "h": "M0,-3.5L3,-1.7V1.7L0,3.5 -3,1.7V-1.7Z",
    "*": "M0,-5L1.3,-1.6 4.8,-1.5 2,.7 3,4.1 0,2.1 -3,4.1 -2,.7 -4.8,-1.5 -1.3,-1.6Z",
}


def style_class(style: Style) -> str:
    """Return the CSS class that sets the colour of a style, for both themes."""
    return f"c-{style.light.removeprefix('#')}"


def marker_id(style: Style) -> str:
    """Return the id of the shape of a style's marker."""
    return f"m-{list(MARKERS).index(style.marker)}"


def colour_rules(entries: Iterable[LegendEntry]) -> str:
    """Return the CSS rules of the classes of all entries."""
    used = {style_class(entry.style): entry.style for entry in entries}
    return "\n".join(
        f".{name} {{ color: light-dark({used[name].light}, {used[name].dark}); }}" for name in sorted(used)
    )


def dash_array(entry: LegendEntry) -> str:
    """Return the value of ``stroke-dasharray``; empty for a solid line."""
    return " ".join(f"{length:g}" for length in entry.dashes)


Point = tuple[int, int]  # in tenths of a unit: coordinates have one decimal
MAX_DISTANCE = 6  # of a band's edge from the points it leaves out, in tenths of a unit


@dataclass(frozen=True)
class Frame:
    """The area inside the axes: its place in the chart, and the scales."""

    x: Axis
    y: Axis
    left: float
    right: float  # room right of the axes

    @property
    def width(self) -> float:
        return WIDTH - self.right - self.left

    @property
    def height(self) -> float:
        return HEIGHT - TOP - BOTTOM

    def point(self, x: float, y: float) -> Point:
        """Return the place of a point of the data, within the frame."""
        return round(10 * self.x.position(x) * self.width), round(10 * self.height_of(y))

    def height_of(self, y: float) -> float:
        """Return the vertical coordinate; what lies far outside is moved closer."""
        return (1 - min(max(self.y.position(y), -0.5), 1.5)) * self.height


def chart(panel: Panel, entries: Sequence[LegendEntry]) -> str:
    """Return the chart of a panel; empty if there is no line to draw."""
    lines = drawn_series(panel, entries)
    if not lines:
        return ""
    x, y = panel_axes(panel, entries)
    left = round(22 + CHARACTER * max(len(tick.text) for tick in y.ticks), 1)
    labels = end_labels(panel, y, lines, LINE_HEIGHT / (HEIGHT - TOP - BOTTOM))
    frame = Frame(x, y, left, LABELLED_RIGHT if labels else RIGHT)
    drawn = [(series, finite_line(panel, series), entry_index(series, entries)) for series in lines]
    # Bands first, so that no band covers a line.
    bands = [_band(frame, line, index, entries[index]) for _, line, index in drawn if len(line.band_x) > 1]
    curves = [_curve(frame, line, index, entries[index]) for _, line, index in drawn]
    xs = sorted({value for line in lines for value in line.x})
    data = {"x": _axis_data(x), "y": _axis_data(y), "at": [_rounded(value) for value in xs]}
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(describe_panel(panel))}"'
        f' data-chart="{escape(json.dumps(data, separators=(",", ":")))}">'
        f"{_ticks(frame)}{_titles(frame)}"
        f'<svg class="plot" x="{_short(frame.left)}" y="{TOP}" width="{_short(frame.width)}" height="{frame.height}">'
        f"{''.join(bands)}{''.join(curves)}</svg>{_end_labels(frame, labels, entries)}</svg>"
    )


def _axis_data(axis: Axis) -> list[float | bool]:
    return [_rounded(axis.low), _rounded(axis.high), axis.is_log, axis.is_complement]


def _rounded(value: float) -> float:
    """Return the number with six digits, as an integer if it is one, which is shorter."""
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded


def _ticks(frame: Frame) -> str:
    right, bottom = _short(WIDTH - frame.right), HEIGHT - BOTTOM
    grid, texts = [], []
    for tick in frame.x.ticks:
        at = _short(frame.left + frame.x.position(tick.value) * frame.width)
        grid.append(f"M{at},{TOP}V{bottom}")
        texts.append(f'<text class="tick-x" x="{at}" y="{bottom + 14}">{escape(tick.text)}</text>')
    for tick in frame.y.ticks:
        height = TOP + (1 - frame.y.position(tick.value)) * frame.height
        grid.append(f"M{_short(frame.left)},{_short(height)}H{right}")
        place = f'x="{_short(frame.left - 4)}" y="{_short(height + 3.5)}"'
        texts.append(f'<text class="tick-y" {place}>{escape(tick.text)}</text>')
    edges = f"M{_short(frame.left)},{TOP}V{bottom}H{right}"
    return (
        f'<g class="ticks"><path class="grid" d="{"".join(grid)}"/>{"".join(texts)}</g><path class="edge" d="{edges}"/>'
    )


def _titles(frame: Frame) -> str:
    middle_x, middle_y = frame.left + frame.width / 2, TOP + frame.height / 2
    return (
        f'<text class="title" x="{_short(middle_x)}" y="{HEIGHT - 6}">{escape(frame.x.title)}</text>'
        f'<text class="title" transform="translate(11 {_short(middle_y)}) rotate(-90)">{escape(frame.y.title)}</text>'
    )


def _band(frame: Frame, line: Line, index: int, entry: LegendEntry) -> str:
    upper = [frame.point(x, y) for x, y in zip(line.band_x, line.high, strict=True)]
    lower = [frame.point(x, y) for x, y in zip(line.band_x, line.low, strict=True)]
    # In whole units, to save a twentieth of the page.
    corners = [(round(x, -1), round(y, -1)) for x, y in _straightened(upper) + _straightened(lower[::-1])]
    path = _path(corners)
    return f'<path class="band {style_class(entry.style)}" data-entry="{index}" d="{path}Z"/>'


def _curve(frame: Frame, line: Line, index: int, entry: LegendEntry) -> str:
    points = [frame.point(x, y) for x, y in zip(line.x, line.y, strict=True)]
    dashes = f' stroke-dasharray="{dash_array(entry)}"' if entry.dashes else ""
    every = max(1, len(points) // MARKED_POINTS) if len(points) > MAX_POINTS_ALL_MARKED else 1
    hollow = " hollow" if entry.dashed else ""
    # Not all lines are marked at the same points, so that markers of lines that coincide are seen.
    begin = index % every
    marks = "".join(_use(marker_id(entry.style), point) for point in points[begin::every])
    cross = _use("m-end", frame.point(*line.end)) if line.end else ""
    wide = " wide" if entry.is_wide else ""
    values = " ".join(format_number(y).replace("0.", ".", 1) if abs(y) < 1 else format_number(y) for y in line.y)
    return (
        f'<g class="series {style_class(entry.style)}{hollow}{wide}" data-entry="{index}" data-values="{values}">'
        f'<path d="{_path(points)}"{dashes}/>{marks}{cross}</g>'
    )


def _straightened(points: Sequence[Point]) -> list[Point]:
    """Return the edge of a band without the points that it passes closely anyway (Ramer, Douglas and Peucker).

    >>> _straightened([(0, 0), (10, 1), (20, 0), (30, 40)])
    [(0, 0), (20, 0), (30, 40)]
    """
    if len(points) < 3:
        return list(points)
    (x, y), (end_x, end_y) = points[0], points[-1]
    across, down = end_x - x, end_y - y
    length = math.hypot(across, down) or 1.0
    distances = [abs(across * (py - y) - down * (px - x)) / length for px, py in points[1:-1]]
    farthest = max(range(len(distances)), key=distances.__getitem__) + 1
    if distances[farthest - 1] <= MAX_DISTANCE:
        return [points[0], points[-1]]
    return _straightened(points[: farthest + 1])[:-1] + _straightened(points[farthest:])


def _path(points: Sequence[Point]) -> str:
    """Return a path through all points, each relative to the one before, which is shorter.

    >>> _path([(100, 205), (150, 200), (200, 200)])
    'M10,20.5l5,-.5 5,0'
    """
    steps = [f"{_short((b[0] - a[0]) / 10)},{_short((b[1] - a[1]) / 10)}" for a, b in pairwise(points)]
    start = f"M{_short(points[0][0] / 10)},{_short(points[0][1] / 10)}"
    return f"{start}l{' '.join(steps)}" if steps else start


def _use(name: str, point: Point) -> str:
    return f'<use href="#{name}" x="{_short(point[0] / 10)}" y="{_short(point[1] / 10)}"/>'


def _end_labels(frame: Frame, labels: Sequence[EndLabel], entries: Sequence[LegendEntry]) -> str:
    """Return the shares of diverged runs right of the axes, with lines that lead to the heights of the lines' ends."""
    if not labels:
        return ""
    right = WIDTH - frame.right
    texts = [f'<text x="{right + LEADER}" y="{_short(_height(frame, labels[0].height) - 8)}">diverged</text>']
    for label in labels:
        index = entry_index(label.series, entries)
        end, height = (_height(frame, share) for share in (label.line_end, label.height))
        texts.append(
            f'<g class="{style_class(entries[index].style)}" data-entry="{index}">'
            f'<path d="M{right},{_short(end)}L{right + LEADER - 2},{_short(height)}"/>'
            f'<text x="{right + LEADER}" y="{_short(height + 3.5)}">{label.text}</text></g>'
        )
    return f'<g class="ends">{"".join(texts)}</g>'


def _height(frame: Frame, share: float) -> float:
    """Return the vertical coordinate within the chart of a share of the height of the axes."""
    return TOP + (1 - share) * frame.height


def _short(value: float) -> str:
    """Return a coordinate with at most one decimal.

    >>> _short(12.04), _short(-0.55), _short(-0.04)
    ('12', '-.6', '0')
    """
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else re.sub(r"^(-?)0\.", r"\1.", text)
