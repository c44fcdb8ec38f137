"""Small charts as inline SVG, without JavaScript. Colours come from the page's CSS variables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 88, 28, 12, 42  # a number below the right end of the axis needs room for its half
Points = Sequence[tuple[float, float]]


@dataclass
class Chart:
    """A chart of two axes. Marks are drawn in the order in which they are added.

    Args:
        x, y: labels of the axes.
        title: what the chart shows, for screen readers.
    """

    x: str
    y: str
    title: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    marks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.x_range, self.y_range = _widened(self.x_range), _widened(self.y_range)

    def line(self, points: Points, colour: str, width: float = 1.8, opacity: float = 1.0, dashed: bool = False) -> None:
        look = f'fill="none" stroke="{colour}" stroke-width="{width}" opacity="{opacity}"'
        path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in points if math.isfinite(y))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.marks.append(f'<polyline points="{path}" {look}{dash}/>')

    def dots(self, points: Points, colour: str, radius: float = 2.0, opacity: float = 0.5) -> None:
        circles = "".join(f'<circle cx="{self._x(x):.1f}" cy="{self._y(y):.1f}" r="{radius}"/>' for x, y in points)
        self.marks.append(f'<g fill="{colour}" opacity="{opacity}">{circles}</g>')

    def band(self, low: float, high: float, colour: str) -> None:
        """A horizontal band over the whole width."""
        top, bottom = self._y(min(high, self.y_range[1])), self._y(max(low, self.y_range[0]))
        left, right = self._x(self.x_range[0]), self._x(self.x_range[1])
        self.marks.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{max(1.5, bottom - top):.1f}" '
            f'fill="{colour}" opacity="0.18"/>'
        )

    def cell(self, x: tuple[float, float], y: tuple[float, float], fill: str) -> None:
        left, right, bottom, top = self._x(x[0]), self._x(x[1]), self._y(y[0]), self._y(y[1])
        self.marks.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left + 0.4:.1f}" height="{bottom - top + 0.4:.1f}" '
            f'fill="{fill}"/>'
        )

    def svg(self) -> str:
        """The chart as text."""
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">',
            f"<title>{escape(self.title)}</title>",
        ]
        for tick in _ticks(*self.y_range):
            y = self._y(tick)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
        for tick in _ticks(*self.x_range):
            parts.append(
                f'<text x="{self._x(tick):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_number(tick)}</text>'
            )
        parts += self.marks
        middle = (TOP + HEIGHT - BOTTOM) / 2
        parts.append(
            f'<text class="label" x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{self.x}</text>'
        )
        place = f'transform="translate(13 {middle}) rotate(-90)" text-anchor="middle"'
        parts.append(f'<text class="label" {place}>{self.y}</text></svg>')
        return "".join(parts)

    def _x(self, value: float) -> float:
        low, high = self.x_range
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        low, high = self.y_range
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def span(values: Iterable[float], margin: float = 0.05) -> tuple[float, float]:
    """The range of the finite values, and a margin."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    return low - margin * (high - low), high + margin * (high - low)


def _widened(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if high - low > 1e-9 * max(abs(low), abs(high), 1e-300):
        return bounds
    half = 0.05 * max(abs(low), abs(high)) or 1.0
    return low - half, high + half


def _ticks(low: float, high: float) -> list[float]:
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:,.4f}".rstrip("0").rstrip(".").replace("-", "−")
    return f"{value:.0e}".replace("-", "−")
