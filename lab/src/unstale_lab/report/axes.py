"""Axes of all plots: range, scale and ticks, the same in static plots and on the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

MIN_TICKS, MAX_LOG_TICKS, MAX_LINEAR_TICKS = 3, 8, 6
PADDING = 0.04  # share of the axis left free at both ends
MOMENTUM_LABEL = "momentum β"
# First digits of the ticks in a decade, from fine to coarse.
LOG_DIGITS = ((1, 2, 5), (1, 3), (1,))
MOMENTUM_DIGITS = ((1,), (1, 2, 5))  # of 1 - β, from coarse to fine; 3 would give β = 0.97

MIN_POSITIVE, MAX_MAGNITUDE = 1e-290, 1e290  # of what an axis shows, far from the limits of floats


@dataclass(frozen=True)
class Tick:
    """A labelled position, in the units of the data."""

    value: float
    text: str


@dataclass(frozen=True)
class Axis:
    """Range and scale of an axis."""

    label: str
    low: float  # of ``drawn`` values
    high: float
    is_log: bool
    is_complement: bool = False  # 1 - value is drawn, from right to left, so that the value grows to the right
    room: float = math.inf  # how many characters of tick labels fit along the axis

    @property
    def title(self) -> str:
        """The label, with the scale if it is unusual."""
        return f"{self.label} (log scale of 1 − β)" if self.is_complement else self.label

    @property
    def ticks(self) -> list[Tick]:
        """At least three labelled ticks; of the possible choices, the finest one whose labels do not overlap."""
        if self.is_complement:
            return self._momentum_ticks()
        choices = log_tick_choices(self.low, self.high) if self.is_log else [linear_ticks(self.low, self.high)]
        labelled = [self._labelled(values) for values in choices]
        return next((ticks for ticks in labelled if self._fits(ticks)), labelled[0])

    def _momentum_ticks(self) -> list[Tick]:
        """Return ticks at 0.9, 0.99 and so on, and between them those whose labels fit."""
        chosen: list[float] = []
        for digits in MOMENTUM_DIGITS:
            for value in log_tick_choices(self.low, self.high, [digits])[0]:
                extended = sorted({*chosen, value})
                if self._fits(self._labelled(extended)):
                    chosen = extended
        return self._labelled(chosen)

    def _labelled(self, values: Sequence[float]) -> list[Tick]:
        if self.is_complement:
            return [Tick(1 - value, f"{1 - value:.10g}") for value in reversed(values)]
        largest = max(map(abs, values), default=0)
        return [Tick(value, format_tick(value, largest)) for value in values]

    def _fits(self, ticks: Sequence[Tick]) -> bool:
        return all(
            self.room * (self.position(b.value) - self.position(a.value)) > (len(a.text) + len(b.text)) / 2 + 1
            for a, b in pairwise(ticks)
        )

    def drawn(self, value: float) -> float:
        """Return the number that is drawn for a value of the data."""
        return 1 - value if self.is_complement else value

    def position(self, value: float) -> float:
        """Return where a value of the data is: 0 at the left or bottom end, 1 at the other end."""
        low, high, at = self.low, self.high, self.drawn(value)
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(at) if at > 0 else -math.inf
        share = (at - low) / (high - low)
        return 1 - share if self.is_complement else share


def make_axis(label: str, values: Iterable[float], is_log: bool, room: float = math.inf) -> Axis:
    """Return an axis on which all finite values fit (on a logarithmic axis, all positive ones)."""
    is_complement = label == MOMENTUM_LABEL
    finite = [_clamped(1 - value if is_complement else value) for value in values if math.isfinite(value)]
    positive = [value for value in finite if value > MIN_POSITIVE]
    is_log = (is_log or is_complement) and bool(positive)
    low, high = _padded(positive if is_log else finite, is_log)
    return Axis(label, low, high, is_log, is_complement, room)


def _clamped(value: float) -> float:
    return min(max(value, -MAX_MAGNITUDE), MAX_MAGNITUDE)


def _padded(values: Sequence[float], is_log: bool) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if is_log:
        low, high = math.log(low), math.log(high)
    if low == high:
        low, high = low - 0.5, high + 0.5
    margin = PADDING * (high - low)
    low, high = low - margin, high + margin
    return (math.exp(low), math.exp(high)) if is_log else (low, high)


def log_tick_choices(low: float, high: float, digits: Sequence[Sequence[int]] = LOG_DIGITS) -> list[list[float]]:
    """Return possible ticks of a logarithmic axis: 1, 2 and 5 in each decade, then coarser ones.

    >>> log_tick_choices(0.015, 0.2)[0], log_tick_choices(0.01, 2000)[0]
    ([0.02, 0.05, 0.1, 0.2], [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0])
    >>> log_tick_choices(0.38, 0.57)  # less than a decade
    [[0.4, 0.45, 0.5, 0.55]]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    strides = range(2, last - first + 2)  # every second decade, every third, and so on
    choices = []
    for chosen, stride in [*((each, 1) for each in digits), *(((1,), stride) for stride in strides)]:
        values = [float(f"{digit}e{n}") for n in range(first, last + 1) if n % stride == 0 for digit in chosen]
        choices.append([value for value in values if low <= value <= high * (1 + 1e-9)])
    return [ticks for ticks in choices if MIN_TICKS <= len(ticks) <= MAX_LOG_TICKS] or [linear_ticks(low, high)]


def linear_ticks(low: float, high: float) -> list[float]:
    """Return ticks at multiples of 1, 2, 2.5 or 5 times a power of ten.

    >>> linear_ticks(-0.01, 1.02), linear_ticks(0, 5000)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 1000.0, 2000.0, 3000.0, 4000.0, 5000.0])
    """
    exponent = math.floor(math.log10((high - low) / MAX_LINEAR_TICKS))
    for step in (f * 10.0**e for e in (exponent, exponent + 1) for f in (1, 2, 2.5, 5)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if MIN_TICKS <= last - first + 1 <= MAX_LINEAR_TICKS:
            return [float(f"{n * step:.10g}") for n in range(first, last + 1)]
    return [low, (low + high) / 2, high]


def format_tick(value: float, largest: float) -> str:
    """Return a short text; on axes that reach 10,000, thousands are written as k and millions as M.

    >>> format_tick(2000, 10_000), format_tick(0.05, 0.1), format_tick(2_500_000, 5_000_000), format_tick(1e-14, 1e-14)
    ('2k', '0.05', '2.5M', '1e−14')
    """
    for unit, sign in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit and (largest >= 10 * unit or unit == 1e6):
            return f"{value / unit:.6g}{sign}".replace("-", "−")
    return f"{value:.6g}".replace("e-0", "e-").replace("-", "−")
