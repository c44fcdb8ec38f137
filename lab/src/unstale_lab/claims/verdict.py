"""The answer to a claim: of its parts, of one reading, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ..analysis.statistics import Comparison

Answer = Literal["holds", "holds in part", "does not hold", "undecided", "shown", "not run"]
ANSWERS: tuple[Answer, ...] = get_args(Answer)

# For one thing and for several.
ANSWER_VERBS: dict[Answer, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "holds in part": ("holds in part", "hold in part"),
    "does not hold": ("does not hold", "do not hold"),
    "undecided": ("is undecided", "are undecided"),
    "shown": ("is shown only", "are shown only"),
    "not run": ("is not run", "are not run"),
}

# The paper's text and the authors' code differ in places. Claims are answered for both.
Reading = Literal["text", "code"]
READINGS: tuple[Reading, ...] = get_args(Reading)
READING_NAMES: dict[Reading, str] = {"text": "as described in the text", "code": "as the authors ran it"}


@dataclass(frozen=True)
class Effect:
    """A measured number with its 95 % confidence interval."""

    quantity: str  # "error of μ̂ / error of μ"
    value: float
    interval: tuple[float, float] | None = None
    is_ratio: bool = True  # 1 means no difference; such effects are drawn in one plot


@dataclass(frozen=True)
class Part:
    """One statement of a claim."""

    statement: str  # "μ̂ has a lower error than μ"
    answer: Answer
    found: str  # the effect, and where methods diverge: "0.54x (95 % CI 0.49x to 0.60x) at α ≤ 0.1"
    test: str = ""  # "paired p < 0.001; Welch p = 0.007"
    effect: Effect | None = None
    comparison: Comparison | None = None
    is_main: bool = True  # false if it would hold if nothing differed, or if the paper only implies it
    brief: str = ""  # ``found`` in few words, for a list of parts: "0.54x at α ≤ 0.1"
    unstable: tuple[str, ...] = ()  # which of the two that are compared diverge at some learning rates

    @property
    def text(self) -> str:
        """Effect, test and conclusion as a sentence."""
        measured = f"{self.found}, {self.test}" if self.test else self.found
        return f"{measured}: “{self.statement}” {ANSWER_VERBS[self.answer][0]}."


@dataclass(frozen=True)
class Verdict:
    """The answer to a claim, or to the part of it that one figure can answer, for one reading."""

    claim: int
    answer: Answer
    why: str  # one plain sentence
    parts: Sequence[Part] = ()
    reading: Reading = "text"
    scope: str = ""  # which part of the claim this figure is about: "MsPacman"
    is_extra: bool = False  # asks something that the paper does not claim; not part of the claim's answer
    notes: str = ""  # further numbers
    runs: int = 0
    diverged: int = 0
