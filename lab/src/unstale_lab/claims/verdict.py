"""The answer to a claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..analysis.statistics import Comparison

Outcome = Literal["holds", "does not hold", "inconclusive", "not run"]


@dataclass(frozen=True)
class Verdict:
    """The result for one claim, or for one reading of it."""

    claim: int
    outcome: Outcome
    note: str  # effect, test and conclusion of every part, then further numbers
    effect: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None  # of the deciding test
    runs: int = 0
    diverged: int = 0
    reading: str = ""  # which interpretation or part of the claim this is, if there are several
    comparisons: Sequence[Comparison] = field(default=())
