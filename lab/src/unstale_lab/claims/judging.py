"""The rules by which claims are judged, the same for all claims.

Two methods are compared run by run: same data, same initial weights. What is tested is the typical ratio of their final
errors, by a t-test over seeds, with Holm's correction over all comparisons of a verdict. A difference is found if
p < 0.05 and the mean over seeds has the sign of the typical ratio. Welch's test is reported because the paper used it;
it decides nothing.

**Stability is judged apart from errors.** A learning rate at which a method diverges in more than a quarter of its runs
is left out of the comparison of errors, and reported: "0.5x at α ≤ 0.1; μ̂ diverges at α = 0.5". If only one of the two
does, a t-test over seeds has to find a difference between their shares of diverged runs, with Holm's correction over
all pairs and learning rates at which a run diverged. At the other learning rates a
diverged run counts as ``worst_error``. If no learning rate is left, the method that diverges at more of them is the
worse one, if it also diverges wherever the other one does; otherwise nothing is decided.

**Exceptions.** A typical ratio over many settings hides a few in which the methods differ much. Settings whose own
ratio (geometric mean over seeds) is certainly beyond 1.5, or below its inverse, are counted and reported, and so are
settings in which one of the two diverges in more than three quarters of its runs. "The same", "no better" and "does not
differ" then hold or fail in part only, and "better" holds in part if some of them contradict it.

``differs``     holds if a difference of 2 % or more is found, or if no learning rate is left and one of the two is less
                stable. Otherwise, if a learning rate is left, holds in part if they diverge at different ones, or if
                there are exceptions; does not hold if the ratio is equivalent to 1 without any.
``better``      holds if a difference of 2 % or more is found. If a size is claimed, the whole interval of the ratio
                must have it for "holds"; a smaller difference holds in part, unless the ratio is equivalent to 1. Also
                in part: the method claimed to be better diverges at some learning rates, or is much worse or diverges
                in some settings, or, without a claimed size, the errors are equivalent, the method is not found to be
                worse, and the other one is less stable. Otherwise does not hold if the opposite is found, if the ratio
                is equivalent to 1, or if its interval excludes the claimed size. If the ratio is equivalent to 1, its
                whole interval lies below 1, and the test finds no difference, nothing is decided.
``worse``       the opposite of ``better``.
``equivalent``  holds if the interval of the ratio lies within the margin, whatever p is: a small difference can be
                significant. Does not hold if the interval lies outside. Holds in part if the two diverge at different
                learning rates, or if there are exceptions.
``no_better``   holds if the interval of the ratio lies above ``1 / margin``. Does not hold if it lies below. Holds in
                part if the other method is less stable, or if the method is much better in some settings.
``within``, ``below``: compare the interval of an interquartile mean with bounds.
``trend``       holds if a mean rank correlation is positive with p < 0.05, does not hold if it is negative.

The margin of equivalence is a factor of 1.15. The paper calls methods the same where they differ by much less than in
its figure 3. With the authors' code μ̂ has 0.61 and 0.27 times the error of μ there (α 0.1, β 0.9 and 0.99). A factor of
1.15 is 28 % of the smaller one of these differences, on a logarithmic scale. Both "differs" and "the same" can hold
between 2 % and 15 %: the first is what the paper says if a difference is significant, the second if it is small.

With fewer than 5 seeds a comparison is undecided. A claim holds if all its parts hold, holds in part if some do, does
not hold if none does and at least one is refuted, and is undecided otherwise. Parts that would hold if nothing differed
at all, or that the paper only implies (``is_main`` is false), cannot save a claim whose main parts fail. Runs at
a reduced scale cannot refute a claim, and confirm it at most in part (``at_reduced_scale``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..analysis.curves import mean
from ..analysis.formatting import format_briefly, format_estimate, format_number, format_p_value, format_ratio, label
from ..analysis.statistics import Array, bootstrap, iqm
from ..records import Record
from . import contrast as contrasts
from .contrast import EQUIVALENCE_MARGIN, MUCH, SIGNIFICANCE_LEVEL, Contrast, at
from .verdict import Answer, Effect, Part, Reading, Verdict

MIN_SEEDS = 5
MIN_RELEVANT_RATIO = 1.02  # a ratio closer to 1 is no difference, even if it is significant


def differs(contrast: Contrast, statement: str = "") -> Part:
    """Judge whether the errors of ``a`` and ``b`` differ. That one of them diverges is a difference too."""
    answer: Answer = "undecided"
    if contrast.comparison is None:
        answer = "holds" if contrast.less_stable else "undecided"
    elif contrast.is_found and not 1 / MIN_RELEVANT_RATIO < contrast.ratio < MIN_RELEVANT_RATIO:
        answer = "holds"
    elif not contrast.is_uniform:
        answer = "holds in part"
    elif contrast.is_equivalent():
        answer = "does not hold"
    return _part(contrast, statement or f"{label(contrast.a)} differs from {label(contrast.b)}", answer)


def better(contrast: Contrast, max_ratio: float = 1.0, statement: str = "") -> Part:
    """Judge whether ``a`` has a lower error than ``b``, by a ratio of at most ``max_ratio``."""
    answer: Answer = "undecided"
    is_worse = contrast.is_found and contrast.ratio >= MIN_RELEVANT_RATIO
    if contrast.comparison is None:
        if contrast.less_stable:
            answer = "holds" if contrast.less_stable == contrast.b else "does not hold"
    elif contrast.is_found and contrast.ratio <= min(max_ratio, 1 / MIN_RELEVANT_RATIO):
        is_certain = max_ratio == 1 or contrast.comparison.interval[1] <= max_ratio
        is_everywhere = not contrast.diverges(contrast.a) and not contrast.exceptions.higher
        answer = "holds" if is_certain and is_everywhere else "holds in part"
    elif contrast.is_found and contrast.ratio <= 1 / MIN_RELEVANT_RATIO and not contrast.is_equivalent():
        answer = "holds in part"  # better, but by less than claimed
    elif max_ratio == 1 and contrast.is_equivalent() and contrast.less_stable == contrast.b and not is_worse:
        answer = "holds in part"
    elif (
        (contrast.is_found and contrast.ratio > 1)
        or (contrast.is_equivalent() and (contrast.is_found or contrast.comparison.interval[1] >= 1))
        or (max_ratio < 1 and contrast.comparison.interval[0] > max_ratio)
    ):
        answer = "does not hold"
    size = f" by a factor of {format_number(1 / max_ratio)} or more" if max_ratio < 1 else ""
    return _part(contrast, f"{statement or _relation(contrast, 'has a lower error than')}{size}", answer)


def worse(contrast: Contrast, min_ratio: float = 1.0, statement: str = "") -> Part:
    """Judge whether ``a`` has a higher error than ``b``, by a ratio of at least ``min_ratio``."""
    judged = better(contrast.inverted(), 1 / min_ratio, statement or _relation(contrast, "has a higher error than"))
    return _part(contrast, judged.statement, judged.answer)


def equivalent(contrast: Contrast, margin: float = EQUIVALENCE_MARGIN, statement: str = "") -> Part:
    """Judge whether the errors of ``a`` and ``b`` are about the same: their ratio is within a margin, a factor."""
    answer: Answer = "undecided"
    if contrast.comparison is None:
        answer = "does not hold" if contrast.less_stable else "undecided"
    elif contrast.is_equivalent(margin):
        answer = "holds" if contrast.is_uniform else "holds in part"
    elif contrast.comparison.interval[1] < 1 / margin or contrast.comparison.interval[0] > margin:
        answer = "does not hold"
    both = f"{label(contrast.a)} and {label(contrast.b)}"
    if margin == EQUIVALENCE_MARGIN:
        about = f"{both} have about the same error"
    else:
        about = f"the errors of {both} are within a factor of {margin:g} of each other"
    return _part(contrast, statement or about, answer, margin)


def no_better(contrast: Contrast, statement: str = "") -> Part:
    """Judge whether ``a`` has no lower error than ``b``, up to the margin of equivalence."""
    answer: Answer = "undecided"
    if contrast.comparison is None:
        if contrast.less_stable:
            answer = "holds" if contrast.less_stable == contrast.a else "does not hold"
    elif contrast.comparison.interval[0] >= 1 / EQUIVALENCE_MARGIN:
        answer = "holds in part" if contrast.exceptions.lower or contrast.less_stable == contrast.b else "holds"
    elif contrast.comparison.interval[1] < 1 / EQUIVALENCE_MARGIN:
        answer = "does not hold"
    return _part(contrast, statement or _relation(contrast, "is no better than"), answer)


def no_higher(contrast: Contrast, statement: str) -> Part:
    """Judge whether ``a`` is no higher than ``b``, up to the margin of equivalence: for scores."""
    judged = no_better(contrast.inverted(), statement)
    return _part(contrast, judged.statement, judged.answer)


def _relation(contrast: Contrast, verb: str) -> str:
    return f"{label(contrast.a)} {verb} {label(contrast.b)}"


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
    return Part(statement, answer, found, effect=effect, brief=f"{quantity} {format_briefly(value, interval)}")


def trend(quantity: str, rho: Array, p: float, statement: str) -> Part:
    """Judge whether correlations ``[settings, seeds]`` are positive, given their corrected p-value."""
    value, interval = float(rho.mean()), confidence_interval(mean, rho)
    found = f"{quantity}: mean rank correlation {format_estimate(value, interval)}"
    answer = decide(value > 0, rho.shape[1]) if p < SIGNIFICANCE_LEVEL else "undecided"
    effect = Effect(quantity, value, interval, is_ratio=False)
    brief = f"rank correlation {format_briefly(value, interval)}"
    return Part(statement, answer, found, format_p_value(p), effect, brief=brief)


def undecided(part: Part, reason: str) -> Part:
    """Return the part as undecided, with the reason."""
    brief = f"{part.brief or part.found}; {reason}"
    return replace(part, answer="undecided", found=f"{part.found} ({reason})", brief=brief)


def decide(holds: bool, seeds: int = MIN_SEEDS) -> Answer:
    """Return the answer; undecided with fewer than ``MIN_SEEDS`` seeds."""
    return "undecided" if seeds < MIN_SEEDS else "holds" if holds else "does not hold"


def confidence_interval(statistic: Callable[[Any], Any], values: Array) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a statistic of one array."""
    low, high = bootstrap(statistic, values, resamples=contrasts.RESAMPLES)
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


def combine_parts(parts: Sequence[Part]) -> Answer:
    """Return the answer to a claim. Parts that hold if nothing differs count only if a main part holds."""
    main = combine_answers(part.answer for part in parts if part.is_main)
    return combine_answers(part.answer for part in parts) if main in ("holds", "holds in part", "shown") else main


def make_verdict(
    claim: int,
    why: str,
    parts: Sequence[Part],
    records: Sequence[Record],
    notes: str = "",
    reading: Reading = "text",
    scope: str = "",
    is_extra: bool = False,
) -> Verdict:
    """Combine the parts of a claim.

    Args:
        claim: its number.
        why: a plain sentence that says what was measured, and is true whatever the answer is.
        parts: the first one is the main one, whose effect is shown for the claim.
        records: the runs that the parts compare; they are counted.
        notes: further numbers.
        reading: which reading of the claim this is.
        scope: which part of the claim it is about, if several figures answer it.
        is_extra: whether it asks something that the paper does not claim.
    """
    return Verdict(
        claim,
        combine_parts(parts),
        why,
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
    parts = tuple(
        undecided(part, "not confirmed; runs at a reduced scale refute nothing")
        if part.answer == "does not hold"
        else part
        for part in verdict.parts
    )
    answer = combine_parts(parts) if parts else verdict.answer
    return replace(verdict, answer=answer_at_reduced_scale(answer), parts=parts)


def answer_at_reduced_scale(answer: Answer) -> Answer:
    """Return the answer that runs at a smaller scale than the paper's can give at most."""
    reduced: dict[Answer, Answer] = {"does not hold": "undecided", "holds": "holds in part"}
    return reduced.get(answer, answer)


def describe_contrast(contrast: Contrast) -> str:
    """Describe effect and tests of a single comparison, without a conclusion."""
    found, test = _found(contrast), _test(contrast, is_corrected=False)
    return f"{label(contrast.a)} / {label(contrast.b)}: {found}{f', {test}' if test else ''}"


def _part(contrast: Contrast, statement: str, answer: Answer, margin: float = EQUIVALENCE_MARGIN) -> Part:
    c = contrast.comparison
    found, brief = _found(contrast, margin), _brief(contrast)
    if contrast.seeds < MIN_SEEDS:
        few = f"{contrast.seeds} seeds decide nothing"
        answer, found, brief = "undecided", f"{found} ({few})", f"{brief}; {few}"
    effect = None if c is None else Effect(f"{label(contrast.a)} / {label(contrast.b)}", c.ratio, c.interval)
    unstable = tuple(each.line for each in contrast.instabilities)
    return Part(
        statement,
        answer,
        found,
        _test(contrast),
        effect,
        c,
        brief=brief,
        unstable=unstable,
    )


def _found(contrast: Contrast, margin: float = EQUIVALENCE_MARGIN) -> str:
    """Describe the ratio where errors are compared, and where one of the two diverges."""
    texts = []
    if contrast.comparison is not None:
        c = contrast.comparison
        texts.append(f"{format_ratio(c.ratio, c.interval)}{at(contrast.where)}")
        counts = {contrast.a: c.diverged_a, contrast.b: c.diverged_b}
        texts += [f"{label(line)} diverged in {n} of {c.pairs:,} runs there" for line, n in counts.items() if n]
        texts += _describe_exceptions(contrast, margin)
    for each in contrast.instabilities:
        texts.append(f"{label(each.line)} diverges{at(each.where)}, in {each.diverged:,} of {each.runs:,} runs")
    return "; ".join(texts)


def _describe_exceptions(contrast: Contrast, margin: float) -> list[str]:
    """Describe settings in which methods differ much, unless the interval of the typical ratio tells the same."""
    assert contrast.comparison is not None
    found, is_same, (low, high) = contrast.exceptions, contrast.is_equivalent(margin), contrast.comparison.interval
    texts = []
    if found.lower and (is_same or high >= 1):
        lowest = f"down to {format_number(found.lowest)}x" if found.lowest else ""
        texts.append(_in_settings(found.lower, found.of, lowest, contrast.b))
    if found.higher and (is_same or low <= 1):
        highest = f"up to {format_number(found.highest)}x" if found.highest < np.inf else ""
        texts.append(_in_settings(found.higher, found.of, highest, contrast.a))
    return texts


def _in_settings(count: int, of: int, extreme: str, diverging: str) -> str:
    """Describe some settings: by the most extreme ratio, or by the method that diverges in some of them."""
    where = f"in {count} of {of} settings"
    return (
        f"{extreme} {where}" if extreme else f"{where} {label(diverging)} diverges or has more than {MUCH:g}x the error"
    )


def _brief(contrast: Contrast) -> str:
    """Describe the same without counts and exceptions."""
    texts = []
    if contrast.comparison is not None:
        texts = [format_briefly(contrast.ratio, contrast.comparison.interval, is_ratio=True) + at(contrast.where)]
    return "; ".join([*texts, *(f"{label(each.line)} diverges{at(each.where)}" for each in contrast.instabilities)])


def _test(contrast: Contrast, is_corrected: bool = True) -> str:
    c = contrast.comparison
    if c is None:
        return ""
    paired = f"paired {format_p_value(c.p_holm)} (Holm)" if is_corrected else f"paired {format_p_value(c.p_paired)}"
    return f"{paired}, Welch {format_p_value(c.p_welch)}"
