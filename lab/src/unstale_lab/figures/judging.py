"""The rules by which claims are judged, the same for all.

Two methods are compared run for run (``statistics.compare``): the paper's test is Welch's over all runs pooled; ours is
the paired one, corrected by Holm's method for all comparisons of the verdict. In both a diverged run counts as the
``worst`` of the verdict (``Layout.worst``), whatever it is compared with.

``differs``    holds when Welch's p is below the paper's threshold and the paired p below 0.05. Does not hold when
               neither p is below 0.05 and the interval of the difference lies within ±10 %: to find nothing is not
               enough. Otherwise inconclusive.
``better``     as ``differs``, with both the typical pair and the pooled mean in favour of the claim, and, where a size
               is claimed, the typical pair that far apart. Does not hold, besides, when the paired test finds the
               opposite. Where the typical pair, the paired test and the pooled means do not all point the same way, it
               is inconclusive.
``same``       does not hold when the paired test finds a difference and the typical pair's is 5 % or more. Holds
               otherwise if Welch's p is above 0.1 and the interval of the difference lies within ±10 %.
``small``      holds when the interval of the difference lies within a bound, does not when it lies beyond.
``no_better``  does not hold when the paired test finds a lower error and the typical pair's is lower by 5 % or more.
               Holds otherwise if the interval of the difference is above -10 %.
``below``      an interquartile mean against a bound: holds when its interval lies below, does not when above.
``within``     the same against two bounds: holds when its interval lies between them, does not when it lies outside.

The paired test finds a difference when its p is below 0.05 and its sign that of the typical pair. ``same``, ``small``
and ``no_better`` look at typical pairs, which a few divergences do not move: they never hold where the shares of runs
that diverged are more than 5 % apart; and ``same`` does not hold where that is no accident (Fisher's exact test).

With fewer than 5 seeds, which are what is independent, every comparison is inconclusive. A claim of several parts
holds if all parts do, does not if one does not, and is inconclusive otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy import stats

from .. import statistics
from ..records import Record
from ..statistics import Array, Comparison, bootstrap, compare_all, counted, holm, iqm, seed_ratios
from .base import Outcome, Verdict
from .words import interval as ends
from .words import name, number, p_is, percent

RESAMPLES = statistics.RESAMPLES
SIGNIFICANT = 0.05
FEWEST = 5  # seeds
NEGLIGIBLE, EQUIVALENT = 0.05, 0.1  # relative differences
UNLIKE = 0.05  # of the pairs: how much more often one of two like methods may diverge


@dataclass(frozen=True)
class Evidence:
    """A comparison, and what else a rule needs."""

    comparison: Comparison
    pooled: float  # by how much the mean of ``a`` is above that of ``b``, as Welch's test sees them
    tested: float  # by how much the log of ``a`` is above that of ``b``, as the paired test sees them
    seeds: int

    @property
    def is_found(self) -> bool:
        """Whether the paired test finds the typical pair's difference, and not the opposite one."""
        return self.comparison.p_holm < SIGNIFICANT and self.tested * self.comparison.effect > 0


@dataclass(frozen=True)
class Part:
    """A part of a claim: what was measured, in words and numbers, and what follows."""

    says: str
    outcome: Outcome
    effect: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    comparison: Comparison | None = None


def compared(errors: Mapping[str, Array], pairs: Iterable[tuple[str, str]], worst: float) -> list[Evidence]:
    """The evidence about each pair, a diverged run counting as ``worst``, with Holm's correction over all of them."""
    comparisons = compare_all(errors, list(pairs), worst, resamples=RESAMPLES)
    finite = {line: counted(own, worst) for line, own in errors.items()}
    return [_evidence(comparison, finite[comparison.a], finite[comparison.b]) for comparison in comparisons]


def _evidence(comparison: Comparison, a: Array, b: Array) -> Evidence:
    return Evidence(comparison, float(a.mean() - b.mean()), float(seed_ratios(a, b).mean()), a.shape[1])


def corrected(evidence: Sequence[Evidence], *others: float) -> tuple[list[Evidence], list[float]]:
    """Holm's correction over all that a verdict rests on: comparisons of different things, and p-values of other
    tests."""
    ps = holm([*(each.comparison.p_paired for each in evidence), *others])
    pairs = zip(evidence, ps, strict=False)
    return [replace(e, comparison=replace(e.comparison, p_holm=p)) for e, p in pairs], ps[len(evidence) :]


def interval_of(statistic: Callable[[Any], Any], values: Array) -> tuple[float, float]:
    """The 95 % interval of a number that is no comparison."""
    low, high = bootstrap(statistic, values, resamples=RESAMPLES)
    return float(low), float(high)


def differs(evidence: Evidence, threshold: float = SIGNIFICANT) -> Part:
    c = evidence.comparison
    outcome: Outcome = "inconclusive"
    if c.p_welch < threshold and c.p_holm < SIGNIFICANT:
        outcome = "holds"
    elif min(c.p_welch, c.p_holm) >= SIGNIFICANT and max(map(abs, c.interval)) <= EQUIVALENT:
        outcome = "does not hold"
    return _part(evidence, "differs from", outcome)


def better(
    evidence: Evidence, threshold: float = SIGNIFICANT, least: float = 0.0, relation: str = "is better than"
) -> Part:
    """``least``: by how much of the error of ``b``, if a size is claimed."""
    c = evidence.comparison
    outcome = differs(evidence, threshold).outcome
    if evidence.is_found and c.effect > 0:
        outcome = "does not hold"
    elif outcome == "holds" and not (evidence.is_found and c.effect <= -least and evidence.pooled < 0):
        outcome = "inconclusive"
    size = f" by {100 * least:.0f} % or more" if least else ""
    return _part(evidence, relation, outcome, size)


def same(evidence: Evidence) -> Part:
    c = evidence.comparison
    outcome: Outcome = "inconclusive"
    if (evidence.is_found and abs(c.effect) >= NEGLIGIBLE) or _diverge_unlike(c):
        outcome = "does not hold"
    elif c.p_welch > 0.1 and max(map(abs, c.interval)) <= EQUIVALENT:
        outcome = "holds"
    return _alike(evidence, "does not differ from", outcome)


def _diverge_unlike(c: Comparison) -> bool:
    """Whether one of the two diverges more often, by more than a little and more than by accident."""
    table = [[c.diverged_a, c.pairs - c.diverged_a], [c.diverged_b, c.pairs - c.diverged_b]]
    is_much = abs(c.diverged_a - c.diverged_b) > UNLIKE * c.pairs
    return is_much and float(stats.fisher_exact(table).pvalue) < SIGNIFICANT


def small(evidence: Evidence, bound: float) -> Part:
    c = evidence.comparison
    low, high = c.interval
    outcome: Outcome = "inconclusive"
    if max(abs(low), abs(high)) <= bound:
        outcome = "holds"
    elif low > bound or high < -bound:
        outcome = "does not hold"
    return _alike(evidence, "is close to", outcome, f" (within {100 * bound:.0f} %)")


def no_better(evidence: Evidence, relation: str = "is no better than") -> Part:
    c = evidence.comparison
    outcome: Outcome = "inconclusive"
    if evidence.is_found and c.effect <= -NEGLIGIBLE:
        outcome = "does not hold"
    elif c.interval[0] > -EQUIVALENT:
        outcome = "holds"
    return _alike(evidence, relation, outcome)


def below(what: str, values: Array, bound: float) -> Part:
    """The interquartile mean of ``values [settings, seeds]`` is below the bound."""
    value, interval = float(iqm(values)), interval_of(iqm, values)
    between = interval[0] <= bound < interval[1]
    outcome = "inconclusive" if between else decided(interval[1] <= bound, values.shape[1])
    return Part(f"{what} is {number(value)} {ends(interval)}, against {number(bound)}", outcome, value, interval)


def within(what: str, values: Array, low: float, high: float) -> Part:
    """The interquartile mean of ``values [settings, seeds]`` is between the two bounds."""
    value, (least, most) = float(iqm(values)), interval_of(iqm, values)
    inside, outside = low <= least and most <= high, most < low or least > high
    outcome = decided(inside, values.shape[1]) if inside or outside else "inconclusive"
    says = f"{what} is {number(value)} {ends((least, most))}, against {number(low)} to {number(high)}"
    return Part(says, outcome, value, (least, most))


def decided(is_so: bool, seeds: int = FEWEST) -> Outcome:
    """Yes or no, unless there are too few seeds to say."""
    return "inconclusive" if seeds < FEWEST else "holds" if is_so else "does not hold"


def too_soon(part: Part, steps: int) -> Part:
    """The part with its numbers, undecided: it is about the end of a training longer than these steps."""
    return replace(part, says=f"{part.says} ({steps:,} steps are too few to say)", outcome="inconclusive")


def all_of(outcomes: Iterable[Outcome]) -> Outcome:
    found = set(outcomes)
    return "does not hold" if "does not hold" in found else "inconclusive" if "inconclusive" in found else "holds"


def conclude(
    claim: int, parts: Sequence[Part], records: Sequence[Record], note: str = "", reading: str = "", lead: str = ""
) -> Verdict:
    """The parts together, ``records`` being those that they are about. Effect and p are those of the part that decided:
    the first that failed, or else the first. ``lead`` stands before the parts, ``note`` after them."""
    outcome = all_of(part.outcome for part in parts)
    telling = next(part for part in parts if part.outcome == outcome)
    return Verdict(
        claim,
        outcome,
        " ".join(filter(None, [lead, _parts_in_words(parts), note])),
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
    return Part(told(evidence, relation, more), outcome, c.effect, c.interval, c.p_holm, c)


def told(evidence: Evidence, relation: str = "against", more: str = "") -> str:
    """A comparison in words and numbers, for a note where nothing is claimed of it."""
    c = evidence.comparison
    return (
        f"{name(c.a)} {relation} {name(c.b)}{more}: {percent(c.effect)} [{percent(c.interval[0])}, "
        f"{percent(c.interval[1])}], Welch {p_is(c.p_welch)}, paired {p_is(c.p_holm)}"
    )


def _alike(evidence: Evidence, relation: str, outcome: Outcome, more: str = "") -> Part:
    """A part by which there is no difference, which is not so where one of the two diverges more often."""
    c = evidence.comparison
    if abs(c.diverged_a - c.diverged_b) <= UNLIKE * c.pairs:
        return _part(evidence, relation, outcome, more)
    part = _part(evidence, relation, "inconclusive" if outcome == "holds" else outcome, more)
    return replace(part, says=f"{part.says} ({c.diverged_a} and {c.diverged_b} of {c.pairs} runs diverged: not alike)")


def _parts_in_words(parts: Sequence[Part]) -> str:
    headings: dict[Outcome, str] = {"holds": "Holds", "does not hold": "Does not hold", "inconclusive": "Undecided"}
    by_outcome = {heading: [part.says for part in parts if part.outcome == o] for o, heading in headings.items()}
    return " ".join(f"{heading}: {'; '.join(says)}." for heading, says in by_outcome.items() if says)
