"""The rules by which claims are judged, the same for all claims.

Two methods are compared run by run (``statistics.compare``). The paper's test is Welch's t-test over all runs pooled;
ours is the paired test, with Holm's correction over all comparisons of a verdict. In both, a diverged run counts as
``worst_error`` (``RunTable.worst_error``).

``differs``     holds if Welch's p is below the paper's threshold and the paired p below 0.05. Does not hold if neither
                p is below 0.05 and the interval of the difference lies within ±10 % (absence of evidence alone is not
                enough). Inconclusive otherwise.
``better``      as ``differs``; in addition, the typical pair and the pooled means must both favour the claim, and the
                typical difference must reach the claimed size, if there is one. Does not hold if the paired test finds
                the opposite. Inconclusive if typical pair, paired test and pooled means disagree in sign.
``equivalent``  does not hold if the paired test finds a difference and that of the typical pair is 5 % or more.
                Otherwise holds if Welch's p is above 0.1 and the interval of the difference lies within ±10 %.
``close_to``    holds if the interval of the difference lies within a bound, does not hold if it lies outside.
``no_better``   does not hold if the paired test finds a lower error and that of the typical pair is lower by 5 % or
                more. Otherwise holds if the interval of the difference is above -10 %.
``below``       compares an interquartile mean with a bound: holds if its interval lies below, does not hold if above.
``within``      the same for two bounds: holds if the interval lies between them, does not hold if it lies outside.

The paired test finds a difference if its p is below 0.05 and its sign is that of the typical pair. ``equivalent``,
``close_to`` and ``no_better`` look at typical pairs, which a few diverged runs do not move: they never hold if the
shares of diverged runs differ by more than 5 %, and ``equivalent`` does not hold if that difference is significant
(Fisher's exact test).

With fewer than 5 seeds (the independent unit) every comparison is inconclusive. A claim of several parts holds if all
parts hold, does not hold if one does not, and is inconclusive otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy import stats

from ..analysis import statistics
from ..analysis.curves import mean
from ..analysis.formatting import format_effect, format_estimate, format_number, format_p_value, label
from ..analysis.statistics import Array, Comparison, bootstrap, clip_errors, compare_all, holm, iqm, seed_log_ratios
from ..analysis.trends import p_no_correlation
from ..claims.verdict import Outcome, Verdict
from ..records import Record

RESAMPLES = statistics.RESAMPLES
SIGNIFICANCE_LEVEL = 0.05
MIN_SEEDS = 5
NEGLIGIBLE_DIFFERENCE, EQUIVALENCE_MARGIN = 0.05, 0.1  # relative differences
MIN_EQUIVALENCE_WELCH_P = 0.1
MAX_DIVERGENCE_GAP = 0.05  # share of pairs by which the divergences of equivalent methods may differ
CONCLUSIONS: dict[Outcome, str] = {
    "holds": "holds",
    "does not hold": "does not hold",
    "inconclusive": "is undecided",
}


@dataclass(frozen=True)
class Evidence:
    """A comparison, with what the rules need besides."""

    comparison: Comparison
    pooled_difference: float  # mean of ``a`` minus mean of ``b``, as in Welch's test
    paired_difference: float  # mean log ratio of ``a`` to ``b``, as in the paired test
    seeds: int

    @property
    def is_found(self) -> bool:
        """Whether the paired test finds a difference of the same sign as that of the typical pair."""
        return self.comparison.p_holm < SIGNIFICANCE_LEVEL and self.paired_difference * self.comparison.effect > 0


@dataclass(frozen=True)
class Finding:
    """One part of a claim: the measurement, the statement that it tests, and the conclusion."""

    measured: str  # effect and test, in words and numbers
    statement: str
    outcome: Outcome
    effect: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    comparison: Comparison | None = None

    @property
    def text(self) -> str:
        """Effect, test and conclusion as a sentence."""
        return f"{self.measured}: “{self.statement}” {CONCLUSIONS[self.outcome]}."


def compare_pairs(errors: Mapping[str, Array], pairs: Iterable[tuple[str, str]], worst_error: float) -> list[Evidence]:
    """Compare each pair of lines, with Holm's correction over all of them.

    Args:
        errors: ``[settings, seeds]`` per line; ``inf`` for diverged runs.
        pairs: keys of ``errors``.
        worst_error: what a diverged run counts as.
    """
    comparisons = compare_all(errors, list(pairs), worst_error, resamples=RESAMPLES)
    finite = {line: clip_errors(values, worst_error) for line, values in errors.items()}
    return [_evidence(comparison, finite[comparison.a], finite[comparison.b]) for comparison in comparisons]


def _evidence(comparison: Comparison, a: Array, b: Array) -> Evidence:
    return Evidence(comparison, float(a.mean() - b.mean()), float(seed_log_ratios(a, b).mean()), a.shape[1])


def holm_corrected(evidence: Sequence[Evidence], *other_ps: float) -> tuple[list[Evidence], list[float]]:
    """Apply Holm's correction over all tests of a verdict: separate comparisons and p-values of other tests."""
    ps = holm([*(each.comparison.p_paired for each in evidence), *other_ps])
    pairs = zip(evidence, ps, strict=False)
    return [replace(e, comparison=replace(e.comparison, p_holm=p)) for e, p in pairs], ps[len(evidence) :]


def confidence_interval(statistic: Callable[[Any], Any], values: Array) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a statistic of one array."""
    low, high = bootstrap(statistic, values, resamples=RESAMPLES)
    return float(low), float(high)


def differs(evidence: Evidence, threshold: float = SIGNIFICANCE_LEVEL) -> Finding:
    """Judge whether ``a`` differs from ``b``; ``threshold`` is the paper's for Welch's p."""
    c = evidence.comparison
    outcome: Outcome = "inconclusive"
    if c.p_welch < threshold and c.p_holm < SIGNIFICANCE_LEVEL:
        outcome = "holds"
    elif min(c.p_welch, c.p_holm) >= SIGNIFICANCE_LEVEL and max(map(abs, c.interval)) <= EQUIVALENCE_MARGIN:
        outcome = "does not hold"
    return _finding(evidence, "differs from", outcome)


def better(
    evidence: Evidence,
    threshold: float = SIGNIFICANCE_LEVEL,
    min_reduction: float = 0.0,
    relation: str = "is better than",
) -> Finding:
    """Judge whether ``a`` has a lower error than ``b``, by at least ``min_reduction`` of ``b``'s."""
    c = evidence.comparison
    outcome = differs(evidence, threshold).outcome
    if evidence.is_found and c.effect > 0:
        outcome = "does not hold"
    elif outcome == "holds" and not (
        evidence.is_found and c.effect <= -min_reduction and evidence.pooled_difference < 0
    ):
        outcome = "inconclusive"
    size = f" by {100 * min_reduction:.0f} % or more" if min_reduction else ""
    return _finding(evidence, relation, outcome, size)


def equivalent(evidence: Evidence) -> Finding:
    """Judge whether ``a`` does not differ from ``b``."""
    c = evidence.comparison
    outcome: Outcome = "inconclusive"
    if (evidence.is_found and abs(c.effect) >= NEGLIGIBLE_DIFFERENCE) or _divergences_differ(c):
        outcome = "does not hold"
    elif c.p_welch > MIN_EQUIVALENCE_WELCH_P and max(map(abs, c.interval)) <= EQUIVALENCE_MARGIN:
        outcome = "holds"
    return _no_difference_finding(evidence, "does not differ from", outcome)


def _divergences_differ(c: Comparison) -> bool:
    """Return whether one of the two diverges more often, by a relevant and significant margin."""
    contingency = [[c.diverged_a, c.pairs - c.diverged_a], [c.diverged_b, c.pairs - c.diverged_b]]
    is_relevant = abs(c.diverged_a - c.diverged_b) > MAX_DIVERGENCE_GAP * c.pairs
    return is_relevant and float(stats.fisher_exact(contingency).pvalue) < SIGNIFICANCE_LEVEL


def close_to(evidence: Evidence, bound: float) -> Finding:
    """Judge whether ``a`` is within ``±bound`` of ``b``, relatively."""
    c = evidence.comparison
    low, high = c.interval
    outcome: Outcome = "inconclusive"
    if max(abs(low), abs(high)) <= bound:
        outcome = "holds"
    elif low > bound or high < -bound:
        outcome = "does not hold"
    return _no_difference_finding(evidence, "is close to", outcome, f" (within {100 * bound:.0f} %)")


def no_better(evidence: Evidence, relation: str = "is no better than") -> Finding:
    """Judge whether ``a`` has no lower error than ``b``."""
    c = evidence.comparison
    outcome: Outcome = "inconclusive"
    if evidence.is_found and c.effect <= -NEGLIGIBLE_DIFFERENCE:
        outcome = "does not hold"
    elif c.interval[0] > -EQUIVALENCE_MARGIN:
        outcome = "holds"
    return _no_difference_finding(evidence, relation, outcome)


def below(quantity: str, values: Array, bound: float) -> Finding:
    """Judge whether the interquartile mean of ``values [settings, seeds]`` is below the bound."""
    value, interval = float(iqm(values)), confidence_interval(iqm, values)
    overlaps = interval[0] <= bound < interval[1]
    outcome = "inconclusive" if overlaps else decide(interval[1] <= bound, values.shape[1])
    measured = f"{quantity}: {format_estimate(value, interval)}"
    return Finding(measured, f"at most {format_number(bound)}", outcome, value, interval)


def within(quantity: str, values: Array, low: float, high: float) -> Finding:
    """Judge whether the interquartile mean of ``values [settings, seeds]`` is between the two bounds."""
    value, interval = float(iqm(values)), confidence_interval(iqm, values)
    inside, outside = low <= interval[0] and interval[1] <= high, interval[1] < low or interval[0] > high
    outcome = decide(inside, values.shape[1]) if inside or outside else "inconclusive"
    measured = f"{quantity}: {format_estimate(value, interval)}"
    return Finding(measured, f"from {format_number(low)} to {format_number(high)}", outcome, value, interval)


def decide(holds: bool, seeds: int = MIN_SEEDS) -> Outcome:
    """Return the outcome; inconclusive with fewer than ``MIN_SEEDS`` seeds."""
    return "inconclusive" if seeds < MIN_SEEDS else "holds" if holds else "does not hold"


def mark_too_short(finding: Finding, steps: int) -> Finding:
    """Return the finding as inconclusive: its statement is about longer training than ``steps``."""
    return replace(
        finding, measured=f"{finding.measured} ({steps:,} steps are too few to decide)", outcome="inconclusive"
    )


def combine_outcomes(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome of a claim of several parts."""
    found = set(outcomes)
    return "does not hold" if "does not hold" in found else "inconclusive" if "inconclusive" in found else "holds"


def make_verdict(
    claim: int,
    findings: Sequence[Finding],
    records: Sequence[Record],
    note: str = "",
    reading: str = "",
    lead: str = "",
) -> Verdict:
    """Combine the findings of a claim.

    Args:
        claim: its number.
        findings: one per part of the claim. Effect and p of the verdict are those of the deciding finding: the first
            that failed, or else the first.
        records: the runs that the findings compare; they are counted.
        note: text after the findings.
        reading: which interpretation of the claim this is.
        lead: text before the findings.
    """
    outcome = combine_outcomes(finding.outcome for finding in findings)
    deciding = next(finding for finding in findings if finding.outcome == outcome)
    ordered = [finding.text for each in CONCLUSIONS for finding in findings if finding.outcome == each]
    return Verdict(
        claim,
        outcome,
        " ".join(filter(None, [lead, *ordered, note])),
        effect=deciding.effect,
        interval=deciding.interval,
        p=deciding.p,
        runs=len(records),
        diverged=sum(record.diverged_at is not None for record in records),
        reading=reading,
        comparisons=tuple({finding.comparison: None for finding in findings if finding.comparison}),
    )


def describe_comparison(evidence: Evidence) -> str:
    """Describe effect and tests of a comparison, without a conclusion."""
    c = evidence.comparison
    effect = format_effect(c.effect, c.interval)
    tests = f"Welch {format_p_value(c.p_welch)}, paired {format_p_value(c.p_holm)}"
    return f"{label(c.a)} vs {label(c.b)}: {effect}, {tests}"


def _finding(evidence: Evidence, relation: str, outcome: Outcome, suffix: str = "") -> Finding:
    c = evidence.comparison
    if evidence.seeds < MIN_SEEDS:
        outcome = "inconclusive"
    statement = f"{label(c.a)} {relation} {label(c.b)}{suffix}"
    return Finding(describe_comparison(evidence), statement, outcome, c.effect, c.interval, c.p_holm, c)


def _no_difference_finding(evidence: Evidence, relation: str, outcome: Outcome, suffix: str = "") -> Finding:
    """Return a finding that claims no difference; it cannot hold if one of the two diverges more often."""
    c = evidence.comparison
    if abs(c.diverged_a - c.diverged_b) <= MAX_DIVERGENCE_GAP * c.pairs:
        return _finding(evidence, relation, outcome, suffix)
    finding = _finding(evidence, relation, "inconclusive" if outcome == "holds" else outcome, suffix)
    divergences = f"{c.diverged_a} vs {c.diverged_b} of {c.pairs} runs diverged"
    return replace(finding, measured=f"{finding.measured}, {divergences}")


def trends(correlations: dict[str, Array]) -> list[Finding]:
    """Judge whether correlations ``[settings, seeds]`` are positive, with Holm's correction over all of them.

    Holds if the mean is positive and p < 0.05; does not hold otherwise; inconclusive with fewer than 5 seeds.
    """
    corrected = holm([p_no_correlation(rho) for rho in correlations.values()])
    return [trend(quantity, rho, p) for (quantity, rho), p in zip(correlations.items(), corrected, strict=True)]


def trend(quantity: str, rho: Array, p: float) -> Finding:
    """Judge whether correlations are positive, given their corrected p-value."""
    effect, ends = float(rho.mean()), confidence_interval(mean, rho)
    measured = f"{quantity}: mean rank correlation {format_estimate(effect, ends)}, {format_p_value(p)}"
    return Finding(
        measured,
        "the correlation is positive",
        decide(p < SIGNIFICANCE_LEVEL and effect > 0, rho.shape[1]),
        effect,
        ends,
        p,
    )
