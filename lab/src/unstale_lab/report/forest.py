"""The main effects of all claims in one plot: ratios with their intervals on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis.formatting import format_estimate, format_number, format_ratio, label
from ..claims.verdict import READINGS, Answer, Reading

LOW, HIGH = 0.1, 10.0  # ends of the axis; what lies beyond is clipped, and marked with an arrow
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10)
FOREST_CAPTION = (
    "The main ratio that each claim is about, with its 95 % confidence interval. At 1 the two are equal; left of it, "
    "the first one is smaller. An arrow: beyond the axis. †: one or both diverge at some learning rates, which are "
    "left out; without a ratio, no learning rate is left. Claims that are not about a ratio are not shown."
)


@dataclass(frozen=True)
class ForestRow:
    """One effect: a ratio with its interval, or a method that diverges at every learning rate."""

    claim: int
    subject: str
    reading: Reading
    answer: Answer
    quantity: str  # "μ̂ / μ"
    value: float  # NaN if there is no learning rate at which both are stable
    interval: tuple[float, float] | None
    unstable: tuple[str, ...] = ()  # what diverges

    @property
    def text(self) -> str:
        """The ratio with its interval, short."""
        if math.isnan(self.value):
            return f"{' and '.join(map(label, self.unstable))} {'diverges' if len(self.unstable) == 1 else 'diverge'}"
        value, *ends = (f"{format_number(x)}x" for x in (self.value, *(self.interval or ())))
        mark = " †" if self.unstable else ""
        return f"{value} ({' to '.join(ends)}){mark}" if ends else f"{value}{mark}"

    @property
    def is_clipped_left(self) -> bool:
        return min(self.ends) < LOW

    @property
    def is_clipped_right(self) -> bool:
        return max(self.ends) > HIGH

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of the interval; the value itself if there is none."""
        return self.interval or (self.value, self.value)


def format_effect(quantity: str, value: float, interval: Sequence[float] | None, is_ratio: bool) -> str:
    """Format an effect without its quantity if it is a ratio, with it if it is something else.

    >>> format_effect("μ̂ / μ", 0.5412, (0.49, 0.601), is_ratio=True)
    '0.541x (95 % CI 0.490x to 0.601x)'
    >>> format_effect("mean rank correlation", 0.48, (0.36, 0.61), is_ratio=False)
    'mean rank correlation: 0.48 (95 % CI 0.36 to 0.61)'
    """
    if is_ratio:
        return format_ratio(value, interval) if interval else f"{format_number(value)}x"
    number = format_estimate(value, interval) if interval else format_number(value)
    return f"{quantity}: {number}"


def forest_rows(records: Iterable[Mapping[str, Any]]) -> list[ForestRow]:
    """Return, for each claim and reading, the first part whose effect is a ratio or in which something diverges."""
    return [
        _row(record, reading, part)
        for record in records
        for reading in READINGS
        if (part := next(_comparing_parts(record, reading), None)) is not None
    ]


def _comparing_parts(record: Mapping[str, Any], reading: Reading) -> Iterator[Mapping[str, Any]]:
    for verdict in record["verdicts"]:
        if verdict["reading"] == reading and not verdict["is_extra"]:
            yield from (
                part for part in verdict["parts"] if _is_ratio(part) or (part["unstable"] and not part["effect"])
            )


def _is_ratio(part: Mapping[str, Any]) -> bool:
    return bool(part["effect"]) and part["effect"]["is_ratio"]


def _row(record: Mapping[str, Any], reading: Reading, part: Mapping[str, Any]) -> ForestRow:
    effect = part["effect"] or {"quantity": part["statement"], "value": math.nan, "interval": None}
    interval = tuple(effect["interval"]) if effect["interval"] else None
    return ForestRow(
        record["number"],
        record["subject"],
        reading,
        part["answer"],
        effect["quantity"],
        effect["value"],
        interval,
        tuple(part["unstable"]),
    )


def position(ratio: float) -> float:
    """Return where a ratio is on the axis, in percent of its length; at an end if it lies beyond.

    >>> position(1.0), position(0.01), position(math.inf)
    (50.0, 0.0, 100.0)
    """
    if ratio <= LOW:
        return 0.0
    if ratio >= HIGH:
        return 100.0
    return round(100 * math.log(ratio / LOW) / math.log(HIGH / LOW), 1)
