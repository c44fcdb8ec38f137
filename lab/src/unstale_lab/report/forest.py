"""The main effects of all claims in one plot: ratios with their intervals on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis.formatting import format_briefly, format_estimate, format_number, format_ratio, format_times
from ..claims.contrast import EQUIVALENCE_MARGIN, MUCH
from ..claims.judging import MIN_RELEVANT_RATIO
from ..claims.verdict import READINGS, Answer, Reading
from ..figures.claim13 import MAX_DRIFT_RATIO
from ..figures.fig5 import MAX_RBF_DRIFT_RATIO
from ..methods import METHODS

LOW, HIGH = 0.1, 10.0  # ends of the axis; what lies beyond is clipped, and marked with an arrow
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10)
FOREST_CAPTION = (
    "The main ratio that each claim is about, with its 95 % confidence interval. Signs and colours answer the part of "
    "the claim that is drawn; the table has the answers to whole claims. Shaded: where the claim expects it. Arrow: "
    "beyond the axis. †: without the learning rates at which one of the two diverges. A paired test decides, not the "
    "interval, which is too narrow with few seeds. Claims that are not about a ratio are left out."
)
GROUPS = ("Error with the correction, relative to that without", "Other ratios")
# Ratios that support the main part of each claim, and a shorter or clearer name of what is compared.
SMALLER, LARGER = (0.0, 1 / MIN_RELEVANT_RATIO), (MIN_RELEVANT_RATIO, math.inf)
EQUAL = (1 / EQUIVALENCE_MARGIN, EQUIVALENCE_MARGIN)
SUPPORTING: dict[int, tuple[tuple[float, float], ...]] = {
    1: (EQUAL,),
    2: (LARGER,),
    3: (SMALLER, LARGER),
    4: (SMALLER,),
    5: ((0.0, MAX_RBF_DRIFT_RATIO),),
    6: (EQUAL,),
    7: (SMALLER,),
    9: (LARGER,),
    10: ((0.0, 1 / MUCH),),
    11: (SMALLER,),
    12: ((MUCH, math.inf),),
    13: ((0.0, MAX_DRIFT_RATIO),),
    14: (LARGER,),
    16: (SMALLER,),
    17: (SMALLER,),
    18: (SMALLER,),
    20: (EQUAL,),
    21: (SMALLER,),
    22: (SMALLER,),
}
NAMES = {
    2: "training loss, μ* / μ",
    5: "drift of μ, RBF features / MLP",
    7: "widest kernels, μ̂ / μ",
    9: "1 − cosine, late / early",
    10: "one bottom layer / one top layer",
    12: "while learning, frozen targets / μ",
    13: "drift in PPO, μ̂ diag/√ / Adam",
    14: "μ̂ diag, batches of 1 / 16",
    16: "μ̂ / μ",
    18: "μ, end / tenth of the steps",
    20: "μ̂ / μ̂ with 2nd derivatives",
    21: "1 − cosine, tanh / Leaky ReLU",
}


@dataclass(frozen=True)
class ForestRow:
    """One effect: a ratio with its interval, or what diverges."""

    claim: int
    subject: str
    reading: Reading
    answer: Answer
    quantity: str  # "μ̂ / μ"
    value: float  # NaN if there is no learning rate at which both are stable
    interval: tuple[float, float] | None
    brief: str = ""  # the effect in words
    unstable: tuple[str, ...] = ()  # what diverges
    compares_correction: bool = False  # a corrected method with an uncorrected one

    @property
    def name(self) -> str:
        """What is compared, short."""
        return NAMES.get(self.claim, self.quantity)

    @property
    def supporting(self) -> tuple[tuple[float, float], ...]:
        """Ranges of the ratio that support the claim."""
        return SUPPORTING.get(self.claim, ())

    @property
    def is_drawn(self) -> bool:
        return not math.isnan(self.value)

    @property
    def text(self) -> str:
        """The ratio with its interval, short; or what diverges."""
        if not self.is_drawn:
            return self.brief
        value = format_briefly(self.value, self.interval, is_ratio=True) if self.interval else format_times(self.value)
        return f"{value} †" if self.unstable else value

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
    '0.54x (95 % CI 0.49x to 0.60x)'
    >>> format_effect("mean rank correlation", 0.48, (0.36, 0.61), is_ratio=False)
    'mean rank correlation: 0.48 (95 % CI 0.36 to 0.61)'
    """
    if is_ratio:
        return format_ratio(value, interval) if interval else format_times(value)
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


def forest_groups(rows: Sequence[ForestRow]) -> dict[str, list[ForestRow]]:
    """Return the rows in the order in which they are drawn, by heading: first what the correction does to errors."""
    first = {row.claim for row in rows if row.compares_correction}
    groups = [[row for row in rows if (row.claim in first) == is_first] for is_first in (True, False)]
    return {heading: group for heading, group in zip(GROUPS, groups, strict=True) if group}


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
        part["brief"],
        tuple(part["unstable"]),
        _compares_correction(part["comparison"]),
    )


def _compares_correction(comparison: Mapping[str, Any] | None) -> bool:
    """Return whether a corrected method is compared with one without a correction."""
    if comparison is None:
        return False
    a, b = METHODS.get(comparison["a"]), METHODS.get(comparison["b"])
    return a is not None and b is not None and b.correction == "none" != a.correction


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
