"""The rules by which claims are judged, the same for all claims.

Two methods are compared run by run: same data, same initial weights. What is tested is the typical ratio of their final
errors, by a t-test over seeds, with Holm's correction over all comparisons of a verdict. Welch's test is reported
because the paper used it; it decides nothing.

**Stability is judged apart from errors.** A learning rate at which one method diverges more often than the other, by
more than 5 % of the runs, is left out of the comparison of errors, and reported: "0.5x at α ≤ 0.1; μ̂ diverges at
α = 0.5 in 179 of 180 runs". At the other learning rates the few diverged runs count as ``worst_error``.

``differs``     holds if p < 0.05. Does not hold if the ratio is equivalent to 1. Undecided otherwise.
``better``      holds if p < 0.05, with a ratio below 1 (or below a claimed size). Does not hold if p < 0.05 with a
                ratio above 1, if the ratio is equivalent to 1, or if its interval excludes the claimed size. If the
                method claimed to be better diverges at some learning rates, it holds in part.
``equivalent``  holds if the interval of the ratio lies within the margin, whatever p is: a small difference can be
                significant. Does not hold if the interval lies outside, or if one method alone diverges everywhere.
                Holds in part if one of the two diverges more often at some learning rates.
``no_better``   holds if the interval of the ratio lies above ``1 / margin``. Does not hold if it lies below.
``below``, ``within``: compare the interval of an interquartile mean with bounds.

The margin of equivalence is a factor of 1.15. The paper calls methods the same where they differ by much less than in
its figure 3, whose smallest ratio of μ̂ to μ is 0.61 (as run with the authors' code). A factor of 1.15 is a quarter of
that difference, on a logarithmic scale.

With fewer than 5 seeds a comparison is undecided. A claim holds if all its parts hold, holds in part if some do, does
not hold if none does and at least one is refuted, and is undecided otherwise. Runs at a reduced scale cannot refute a
claim, and confirm it at most in part (``at_reduced_scale``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..analysis import statistics
from ..analysis.curves import mean
from ..analysis.formatting import format_estimate, format_number, format_p_value, format_ratio, label
from ..analysis.run_table import RunTable
from ..analysis.statistics import Array, Comparison, bootstrap, compare, holm, iqm
from ..analysis.trends import p_no_correlation
from ..records import Record
from .verdict import Answer, Effect, Part, Reading, Verdict

RESAMPLES = statistics.RESAMPLES
SIGNIFICANCE_LEVEL = 0.05
MIN_SEEDS = 5
EQUIVALENCE_MARGIN = 1.15  # a factor; see above
MAX_DIVERGENCE_GAP = 0.05  # share of runs by which divergences may differ where errors are compared
MAX_LISTED_PARTS = 2


@dataclass(frozen=True)
class Instability:
    """Learning rates at which one method diverges more often than the other."""

    line: str  # the method that does
    where: str  # "α = 0.5"; empty if there is one learning rate only
    diverged: int
    other_diverged: int
    runs: int  # of each of the two


@dataclass(frozen=True)
class Contrast:
    """Two methods, compared at the learning rates at which both are about equally stable."""

    a: str
    b: str
    comparison: Comparison | None  # None if there is no such learning rate
    seeds: int
    where: str  # these learning rates, "α ≤ 0.1"; empty if all are
    instabilities: tuple[Instability, ...] = ()

    def diverging(self, line: str) -> list[Instability]:
        """Return where this one of the two methods diverges more often."""
        return [each for each in self.instabilities if each.line == line]

    @property
    def ratio(self) -> float:
        """The typical ratio of the errors of ``a`` to those of ``b``."""
        assert self.comparison is not None
        return self.comparison.ratio

    @property
    def is_significant(self) -> bool:
        return self.comparison is not None and self.comparison.p_holm < SIGNIFICANCE_LEVEL

    def is_equivalent(self, margin: float = EQUIVALENCE_MARGIN) -> bool:
        """Return whether the interval of the ratio lies within the margin, a factor."""
        if self.comparison is None:
            return False
        low, high = self.comparison.interval
        return low >= 1 / margin and high <= margin


def compare_pairs(
    errors: Mapping[str, Array],
    pairs: Iterable[tuple[str, str]],
    worst_error: float,
    levels: Sequence[Any] | None = None,
    symbol: str = "α",
) -> list[Contrast]:
    """Compare each pair of lines, with Holm's correction over all of them.

    Args:
        errors: ``[settings, seeds]`` per line; ``inf`` for diverged runs.
        pairs: keys of ``errors``.
        worst_error: what a diverged run counts as, at learning rates at which errors are compared.
        levels: the learning rate of each setting; if not given, all settings are one level.
        symbol: of the levels.
    """
    found = [_contrast(errors, a, b, worst_error, levels, symbol) for a, b in pairs]
    return holm_corrected(found)[0]


def compare_methods(table: RunTable, pairs: Iterable[tuple[str, str]], curve: str = "evaluation") -> list[Contrast]:
    """Compare the final errors of pairs of methods; learning rates at which one diverges are judged apart."""
    return compare_pairs(table.final(curve), pairs, table.worst_error(curve), table.values("alpha"))


def _contrast(
    errors: Mapping[str, Array], a: str, b: str, worst_error: float, levels: Sequence[Any] | None, symbol: str
) -> Contrast:
    settings, seeds = np.asarray(errors[a]).shape
    of = np.zeros(settings) if levels is None else np.asarray(levels, dtype=float)
    values = np.unique(of)
    counts = {line: np.isinf(np.asarray(errors[line], dtype=float)).sum(1) for line in (a, b)}
    runs = {value: int((of == value).sum()) * seeds for value in values}
    gaps = {v: (counts[a][of == v].sum() - counts[b][of == v].sum()) / runs[v] for v in values}
    stable = np.array([abs(gaps[value]) <= MAX_DIVERGENCE_GAP for value in of])
    instabilities = []
    for line, other, sign in ((a, b, 1), (b, a, -1)):
        at = [value for value in values if sign * gaps[value] > MAX_DIVERGENCE_GAP]
        if at:
            inside = np.isin(of, at)
            total = sum(runs[value] for value in at)
            where = _format_levels(symbol, at, values.tolist())
            instabilities.append(
                Instability(line, where, int(counts[line][inside].sum()), int(counts[other][inside].sum()), total)
            )
    comparison = None
    if stable.any():
        kept = {line: np.asarray(errors[line], dtype=float)[stable] for line in (a, b)}
        comparison = compare(a, kept[a], b, kept[b], worst_error, RESAMPLES)
    where = (
        ""
        if stable.all() or not stable.any()
        else _format_levels(symbol, np.unique(of[stable]).tolist(), values.tolist())
    )
    return Contrast(a, b, comparison, seeds, where, tuple(instabilities))


def _format_levels(symbol: str, chosen: Sequence[float], values: Sequence[float]) -> str:
    """Describe some of the values of a hyper-parameter.

    >>> _format_levels("α", [0.05, 0.1], [0.05, 0.1, 0.5]), _format_levels("α", [0.05], [0.05, 0.1])
    ('α ≤ 0.1', 'α = 0.05')
    >>> _format_levels("α", [0.1, 0.5], [0.05, 0.1, 0.5]), _format_levels("α", [0.05, 0.5], [0.05, 0.1, 0.5])
    ('α ≥ 0.1', 'α = 0.05 and 0.5')
    >>> _format_levels("α", [0.1, 0.5], [0.1, 0.5])
    'every α'
    """
    chosen, values = sorted(chosen), sorted(values)
    if chosen == values:
        return f"every {symbol}" if len(values) > 1 else ""
    if len(chosen) > 1 and chosen == values[: len(chosen)]:
        return f"{symbol} ≤ {chosen[-1]:g}"
    if len(chosen) > 1 and chosen == values[-len(chosen) :]:
        return f"{symbol} ≥ {chosen[0]:g}"
    *others, last = (f"{value:g}" for value in chosen)
    return f"{symbol} = {', '.join(others)} and {last}" if others else f"{symbol} = {last}"


def holm_corrected(contrasts: Sequence[Contrast], *other_ps: float) -> tuple[list[Contrast], list[float]]:
    """Apply Holm's correction over all tests of a verdict: separate comparisons and p-values of other tests."""
    compared = [contrast for contrast in contrasts if contrast.comparison is not None]
    ps = holm([*(c.comparison.p_paired for c in compared if c.comparison), *other_ps])
    corrected = dict(zip(map(id, compared), ps, strict=False))
    return [
        replace(c, comparison=replace(c.comparison, p_holm=corrected[id(c)])) if c.comparison else c for c in contrasts
    ], ps[len(compared) :]


def differs(contrast: Contrast, statement: str = "") -> Part:
    """Judge whether the errors of ``a`` and ``b`` differ. Diverging more often is a difference too."""
    answer: Answer = "undecided"
    if contrast.is_significant or contrast.comparison is None:
        answer = "holds"
    elif contrast.is_equivalent():
        answer = "holds in part" if contrast.instabilities else "does not hold"
    return _part(contrast, statement or f"{label(contrast.a)} differs from {label(contrast.b)}", answer)


def better(contrast: Contrast, max_ratio: float = 1.0, statement: str = "") -> Part:
    """Judge whether ``a`` has a lower error than ``b``, by a ratio of at most ``max_ratio``."""
    answer: Answer = "undecided"
    if contrast.comparison is None:
        answer = "holds" if contrast.diverging(contrast.b) and not contrast.diverging(contrast.a) else "does not hold"
    elif contrast.is_significant and contrast.ratio < 1:
        low, _ = contrast.comparison.interval
        answer = "holds" if contrast.ratio <= max_ratio else "does not hold" if low > max_ratio else "undecided"
    elif contrast.is_significant or contrast.is_equivalent():
        answer = "does not hold"
    if answer == "holds" and contrast.diverging(contrast.a):
        answer = "holds in part"
    size = f" by a factor of {format_number(1 / max_ratio)} or more" if max_ratio < 1 else ""
    statement = statement or f"{label(contrast.a)} has a lower error than {label(contrast.b)}"
    return _part(contrast, f"{statement}{size}", answer)


def equivalent(contrast: Contrast, margin: float = EQUIVALENCE_MARGIN, statement: str = "") -> Part:
    """Judge whether the errors of ``a`` and ``b`` are about the same: their ratio is within a margin, a factor."""
    answer: Answer = "undecided"
    if contrast.comparison is None:
        answer = "does not hold"
    elif contrast.is_equivalent(margin):
        answer = "holds in part" if contrast.instabilities else "holds"
    elif contrast.comparison.interval[1] < 1 / margin or contrast.comparison.interval[0] > margin:
        answer = "does not hold"
    size = f" within a factor of {margin:g}" if margin != EQUIVALENCE_MARGIN else ""
    return _part(contrast, (statement or f"{label(contrast.a)} is as good as {label(contrast.b)}") + size, answer)


def no_better(contrast: Contrast, statement: str = "") -> Part:
    """Judge whether ``a`` has no lower error than ``b``, up to the margin of equivalence."""
    answer: Answer = "undecided"
    if contrast.comparison is None:
        answer = "does not hold" if contrast.diverging(contrast.b) and not contrast.diverging(contrast.a) else "holds"
    elif contrast.comparison.interval[0] >= 1 / EQUIVALENCE_MARGIN:
        answer = "holds"
    elif contrast.comparison.interval[1] < 1 / EQUIVALENCE_MARGIN:
        answer = "does not hold"
    return _part(contrast, statement or f"{label(contrast.a)} is no better than {label(contrast.b)}", answer)


def below(quantity: str, values: Array, bound: float, statement: str) -> Part:
    """Judge whether the interquartile mean of ``values [settings, seeds]`` is below the bound."""
    return within(quantity, values, -np.inf, bound, statement)


def within(quantity: str, values: Array, low: float, high: float, statement: str) -> Part:
    """Judge whether the interquartile mean of ``values [settings, seeds]`` is between the two bounds."""
    value, interval = float(iqm(values)), confidence_interval(iqm, values)
    inside, outside = low <= interval[0] and interval[1] <= high, interval[1] < low or interval[0] > high
    answer = decide(inside, values.shape[1]) if inside or outside else "undecided"
    found = f"{quantity} {format_estimate(value, interval)}"
    effect = Effect(quantity, value, interval, is_ratio=False)
    return Part(statement, answer, found, effect=effect, brief=f"{quantity} {format_number(value)}")


def trend(quantity: str, rho: Array, p: float, statement: str) -> Part:
    """Judge whether correlations ``[settings, seeds]`` are positive, given their corrected p-value."""
    value, interval = float(rho.mean()), confidence_interval(mean, rho)
    found = f"{quantity}: mean rank correlation {format_estimate(value, interval)}"
    answer = decide(p < SIGNIFICANCE_LEVEL and value > 0, rho.shape[1])
    effect, brief = Effect(quantity, value, interval, is_ratio=False), f"rank correlation {format_number(value)}"
    return Part(statement, answer, found, format_p_value(p), effect, brief=brief)


def trends(correlations: Mapping[str, Array], statement: str) -> list[Part]:
    """Judge whether correlations are positive, with Holm's correction over all of them."""
    corrected = holm([p_no_correlation(rho) for rho in correlations.values()])
    pairs = zip(correlations.items(), corrected, strict=True)
    return [trend(quantity, rho, p, statement) for (quantity, rho), p in pairs]


def undecided(part: Part, reason: str) -> Part:
    """Return the part as undecided, with the reason."""
    brief = f"{part.brief or part.found}; {reason}"
    return replace(part, answer="undecided", found=f"{part.found} ({reason})", brief=brief)


def decide(holds: bool, seeds: int = MIN_SEEDS) -> Answer:
    """Return the answer; undecided with fewer than ``MIN_SEEDS`` seeds."""
    return "undecided" if seeds < MIN_SEEDS else "holds" if holds else "does not hold"


def confidence_interval(statistic: Callable[[Any], Any], values: Array) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a statistic of one array."""
    low, high = bootstrap(statistic, values, resamples=RESAMPLES)
    return float(low), float(high)


def combine_answers(answers: Iterable[Answer]) -> Answer:
    """Return the answer to a claim of several parts."""
    found = set(answers) - {"shown", "not run"}
    if not found:
        return "shown"
    if found == {"holds"}:
        return "holds"
    if found & {"holds", "holds in part"}:
        return "holds in part"
    return "does not hold" if "does not hold" in found else "undecided"


def make_verdict(
    claim: int,
    parts: Sequence[Part],
    records: Sequence[Record],
    notes: str = "",
    reading: Reading = "text",
    scope: str = "",
    why: str = "",
    is_extra: bool = False,
) -> Verdict:
    """Combine the parts of a claim.

    Args:
        claim: its number.
        parts: the first one is the main one, whose effect is shown for the claim.
        records: the runs that the parts compare; they are counted.
        notes: further numbers.
        reading: which reading of the claim this is.
        scope: which part of the claim it is about, if several figures answer it.
        why: the answer in one plain sentence; if not given, it lists the parts by answer.
        is_extra: whether it asks something that the paper does not claim.
    """
    return Verdict(
        claim,
        combine_answers(part.answer for part in parts),
        why or explain(parts),
        tuple(parts),
        reading,
        scope,
        is_extra,
        notes,
        runs=len(records),
        diverged=sum(record.diverged_at is not None for record in records),
    )


def shown(claim: int, why: str, records: Sequence[Record], notes: str = "", reading: Reading = "text") -> Verdict:
    """Return the verdict of a figure from which the paper draws no conclusion: it is shown and not judged."""
    diverged = sum(record.diverged_at is not None for record in records)
    return Verdict(claim, "shown", why, reading=reading, notes=notes, runs=len(records), diverged=diverged)


def at_reduced_scale(verdict: Verdict) -> Verdict:
    """Return the verdict of runs at a smaller scale than the paper's: they refute nothing, and confirm in part."""
    softer: dict[Answer, Answer] = {"does not hold": "undecided"}
    parts = tuple(replace(part, answer=softer.get(part.answer, part.answer)) for part in verdict.parts)
    answer = combine_answers(part.answer for part in parts) if parts else softer.get(verdict.answer, verdict.answer)
    why = verdict.why if parts == verdict.parts else explain(parts)
    if answer == "holds":
        answer = "holds in part"
        why = f"At a reduced scale: {why}"
    return replace(verdict, answer=answer, parts=parts, why=why)


def explain(parts: Sequence[Part]) -> str:
    """Describe the answer in a plain sentence or two: what holds, what does not, what is undecided."""
    by_answer: dict[Answer, list[Part]] = {}
    for part in parts:
        by_answer.setdefault(part.answer, []).append(part)
    headings: dict[Answer, str] = {
        "holds": "Holds",
        "holds in part": "In part",
        "does not hold": "Not found",
        "undecided": "Undecided",
    }
    is_mixed = len(by_answer) > 1
    return " ".join(
        f"{heading}: {_list(by_answer[answer], is_mixed and answer == 'holds')}."
        for answer, heading in headings.items()
        if answer in by_answer
    )


def _list(parts: Sequence[Part], without_numbers: bool) -> str:
    texts = [p.statement if without_numbers else f"{p.statement} ({p.brief or p.found})" for p in parts]
    more = len(parts) - MAX_LISTED_PARTS
    return "; ".join([*texts[:MAX_LISTED_PARTS], *([f"{more} more"] if more > 0 else [])])


def describe_contrast(contrast: Contrast) -> str:
    """Describe effect and tests of a comparison, without a conclusion."""
    found, test = _found(contrast), _test(contrast)
    return f"{label(contrast.a)} / {label(contrast.b)}: {found}{f', {test}' if test else ''}"


def _part(contrast: Contrast, statement: str, answer: Answer) -> Part:
    c = contrast.comparison
    if contrast.seeds < MIN_SEEDS:
        answer = "undecided"
    effect = None if c is None else Effect(f"{label(contrast.a)} / {label(contrast.b)}", c.ratio, c.interval)
    return Part(statement, answer, _found(contrast), _test(contrast), effect, c, _brief(contrast))


def _found(contrast: Contrast) -> str:
    """Describe the ratio where errors are compared, and where one of the two diverges."""
    texts = []
    if contrast.comparison is not None:
        c = contrast.comparison
        texts.append(f"{format_ratio(c.ratio, c.interval)}{_at(contrast.where)}")
    for each in contrast.instabilities:
        counts = f"{each.diverged:,} of {each.runs:,} runs{_at(each.where)}, the other in {each.other_diverged:,}"
        texts.append(f"{label(each.line)} diverges in {counts}")
    return "; ".join(texts)


def _brief(contrast: Contrast) -> str:
    """Describe the same without interval and counts."""
    ratio = [] if contrast.comparison is None else [f"{format_number(contrast.ratio)}x{_at(contrast.where)}"]
    return "; ".join([*ratio, *(f"{label(each.line)} diverges{_at(each.where)}" for each in contrast.instabilities)])


def _at(where: str) -> str:
    return f" at {where}" if where else ""


def _test(contrast: Contrast) -> str:
    c = contrast.comparison
    return "" if c is None else f"paired {format_p_value(c.p_holm)} (Holm), Welch {format_p_value(c.p_welch)}"
