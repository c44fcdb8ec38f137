"""The rules by which claims are judged, the same for all.

Two methods are compared run for run (``statistics.compare``): the paper's test is Welch's over all runs pooled; ours is
the paired one, corrected by Holm's method for the comparisons made beside it. Diverged runs count as the largest error.

``differs``    holds when Welch's p is below the paper's threshold and the paired p below 0.05. Does not hold when
               neither p is below 0.05. Otherwise inconclusive.
``better``     as ``differs``, with both the typical pair and the pooled mean in favour of the claim, and, where a size
               is claimed, the typical pair that far apart. Does not hold, besides, when the paired test finds the
               opposite. Where pairs and pooled means point different ways it is inconclusive.
``same``       does not hold when the paired p is below 0.05 and the difference is 5 % or more. Holds otherwise if
               Welch's p is above 0.1 and the interval of the difference lies within ±10 %.
``small``      holds when the interval of the difference lies within a bound, does not when it lies beyond.
``no_better``  does not hold when the paired p is below 0.05 and the error is lower by 5 % or more. Holds otherwise if
               the interval of the difference is above -10 %.
``below``      an interquartile mean against a bound: holds when its interval lies below, does not when above.

With fewer than 5 seeds, which are what is independent, every comparison is inconclusive. A claim of several parts
holds if all parts do, does not if one does not, and is inconclusive otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import statistics
from ..records import Record
from ..statistics import Array, Comparison, best_setting, bootstrap, compare_all, counted, iqm
from .base import METHODS, Outcome, Verdict

RESAMPLES = statistics.RESAMPLES
SIGNIFICANT = 0.05
FEWEST = 5  # seeds
NEGLIGIBLE, EQUIVALENT = 0.05, 0.1  # relative differences


@dataclass(frozen=True)
class Evidence:
    """A comparison, and what else a rule needs."""

    comparison: Comparison
    pooled: float  # by how much the mean of ``a`` is above that of ``b``, as Welch's test sees them
    seeds: int


@dataclass(frozen=True)
class Part:
    """A part of a claim: what was measured, in words and numbers, and what follows."""

    says: str
    outcome: Outcome
    effect: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    comparison: Comparison | None = None


def compared(errors: Mapping[str, Array], pairs: Iterable[tuple[str, str]]) -> list[Evidence]:
    """The evidence about each pair, with Holm's correction over all of them."""
    comparisons = compare_all(errors, list(pairs), resamples=RESAMPLES)
    return [Evidence(c, _pooled_difference(errors[c.a], errors[c.b]), errors[c.a].shape[1]) for c in comparisons]


def _pooled_difference(a: Array, b: Array) -> float:
    a, b = counted(a, b)
    return float(a.mean() - b.mean())


def interval_of(statistic: Callable[[Any], Any], values: Array) -> tuple[float, float]:
    """The 95 % interval of a number that is no comparison."""
    low, high = bootstrap(statistic, values, resamples=RESAMPLES)
    return float(low), float(high)


def differs(evidence: Evidence, threshold: float = SIGNIFICANT) -> Part:
    c = evidence.comparison
    outcome: Outcome = "inconclusive"
    if c.p_welch < threshold and c.p_holm < SIGNIFICANT:
        outcome = "holds"
    elif c.p_welch >= SIGNIFICANT and c.p_holm >= SIGNIFICANT:
        outcome = "does not hold"
    return _part(evidence, "differs from", outcome)


def better(
    evidence: Evidence, threshold: float = SIGNIFICANT, least: float = 0.0, relation: str = "is better than"
) -> Part:
    """``least``: by how much of the error of ``b``, if a size is claimed."""
    c = evidence.comparison
    outcome = differs(evidence, threshold).outcome
    if c.p_holm < SIGNIFICANT and c.effect > 0:
        outcome = "does not hold"
    elif outcome == "holds" and not (c.effect < 0 and c.effect <= -least and evidence.pooled < 0):
        outcome = "inconclusive"
    size = f" by {100 * least:.0f} % or more" if least else ""
    return _part(evidence, relation, outcome, size)


def same(evidence: Evidence) -> Part:
    c = evidence.comparison
    outcome: Outcome = "inconclusive"
    if c.p_holm < SIGNIFICANT and abs(c.effect) >= NEGLIGIBLE:
        outcome = "does not hold"
    elif c.p_welch > 0.1 and max(map(abs, c.interval)) <= EQUIVALENT:
        outcome = "holds"
    return _part(evidence, "does not differ from", outcome)


def small(evidence: Evidence, bound: float) -> Part:
    c = evidence.comparison
    low, high = c.interval
    outcome: Outcome = "inconclusive"
    if max(abs(low), abs(high)) <= bound:
        outcome = "holds"
    elif low > bound or high < -bound:
        outcome = "does not hold"
    return _part(evidence, "is close to", outcome, f" (within {100 * bound:.0f} %)")


def no_better(evidence: Evidence) -> Part:
    c = evidence.comparison
    outcome: Outcome = "inconclusive"
    if c.p_holm < SIGNIFICANT and c.effect <= -NEGLIGIBLE:
        outcome = "does not hold"
    elif c.interval[0] > -EQUIVALENT:
        outcome = "holds"
    return _part(evidence, "is no better than", outcome)


def below(what: str, values: Array, bound: float) -> Part:
    """The interquartile mean of ``values [settings, seeds]`` is below the bound."""
    value, interval = float(iqm(values)), interval_of(iqm, values)
    between = interval[0] <= bound < interval[1]
    outcome = "inconclusive" if between else decided(interval[1] <= bound, values.shape[1])
    ends = f"[{number(interval[0])}, {number(interval[1])}]"
    return Part(f"{what} is {number(value)} {ends}, against {number(bound)}", outcome, value, interval)


def decided(is_so: bool, seeds: int = FEWEST) -> Outcome:
    """Yes or no, unless there are too few seeds to say."""
    return "inconclusive" if seeds < FEWEST else "holds" if is_so else "does not hold"


def all_of(outcomes: Iterable[Outcome]) -> Outcome:
    found = set(outcomes)
    return "does not hold" if "does not hold" in found else "inconclusive" if "inconclusive" in found else "holds"


def conclude(
    claim: int, parts: Sequence[Part], records: Sequence[Record], note: str = "", reading: str = ""
) -> Verdict:
    """The parts together. Effect and p are those of the part that decided: the first that failed, or else the first."""
    outcome = all_of(part.outcome for part in parts)
    telling = next(part for part in parts if part.outcome == outcome)
    return Verdict(
        claim,
        outcome,
        " ".join(filter(None, [_parts_in_words(parts), note])),
        effect=telling.effect,
        interval=telling.interval,
        p=telling.p,
        runs=len(records),
        diverged=sum(record.diverged_at is not None for record in records),
        reading=reading,
        comparisons=tuple({part.comparison: None for part in parts if part.comparison}),
    )


def _part(evidence: Evidence, relation: str, outcome: Outcome, more: str = "") -> Part:
    c = evidence.comparison
    if evidence.seeds < FEWEST:
        outcome = "inconclusive"
    says = (
        f"{name(c.a)} {relation} {name(c.b)}{more}: {percent(c.effect)} [{percent(c.interval[0])}, "
        f"{percent(c.interval[1])}], Welch {probability(c.p_welch)}, paired {probability(c.p_holm)}"
    )
    return Part(says, outcome, c.effect, c.interval, c.p_holm, c)


def _parts_in_words(parts: Sequence[Part]) -> str:
    headings: dict[Outcome, str] = {"holds": "Holds", "does not hold": "Does not hold", "inconclusive": "Undecided"}
    told = {heading: [part.says for part in parts if part.outcome == o] for o, heading in headings.items()}
    return " ".join(f"{heading}: {'; '.join(says)}." for heading, says in told.items() if says)


# In words.


def name(method: str) -> str:
    """A method as the paper writes it, or whatever else is compared."""
    return METHODS.get(method, method)


def number(value: float) -> str:
    """
    >>> number(0.034567), number(-2.0), number(np.inf)
    ('0.0346', '−2', '∞')
    """
    return f"{value:.3g}".replace("-", "−").replace("inf", "∞")


def percent(ratio: float) -> str:
    """A relative difference, or, from tenfold on, how many times as large.

    >>> percent(-0.372), percent(0.004), percent(99.0)
    ('−37.2 %', '+0.4 %', '100 times')
    """
    return f"{number(1 + ratio)} times" if ratio >= 9 else f"{100 * ratio:+.1f} %".replace("-", "−")


def probability(p: float) -> str:
    """
    >>> probability(0.0002), probability(0.04)
    ('p < 0.001', 'p = 0.040')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def typical(errors: Mapping[str, Array], what: str = "Interquartile means") -> str:
    """The interquartile mean of each line, and its divergences."""
    each = [f"{name(line)} {number(float(iqm(own)))}{_diverged(own)}" for line, own in errors.items()]
    return f"{what}: {', '.join(each)}."


def _diverged(errors: Array) -> str:
    count = int(np.isinf(errors).sum())
    return f" ({count} of {errors.size} diverged)" if count else ""


def at_best(errors: Mapping[str, Array]) -> str:
    """Each method at its best setting, which other seeds have chosen."""
    chosen = {method: best_setting(own)[1][None, :] for method, own in errors.items()}
    return typical(chosen, "At the best setting, chosen on other seeds")
