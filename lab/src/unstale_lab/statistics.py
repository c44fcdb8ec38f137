"""What many runs say together.

Errors are arrays ``[settings, seeds]``, one array for each method, with the same setting and seed in the same place, so
that places are pairs: the same data, the same initial weights. They are 0 or more, and ``inf`` for a run that diverged.
Where it says ``[..., settings, seeds]``, axes before these two (the steps of a curve, say) are kept.

No diverged run is ever dropped. Statistics of ranks take it for what it is, worse than any other. Those that need
finite numbers are given the errors as they count (``counted``): ``worst`` in its place, one number for all comparisons
that are judged together. It should be no less than any error before the first step, or else diverging would be better
than not training at all.

Seeds are the independent unit. Runs of one seed share their data and initial weights across settings, so that twelve
settings of ten seeds are ten observations and not 120: tests are over seeds, and intervals draw seeds again.

Settings differ by orders of magnitude in their errors. Where settings are pooled, what is compared is the ratio within
a pair and not the difference, or else the settings with the largest errors would decide alone. Welch's test is the
exception to both: it is the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array = NDArray[np.float64]
Interval = tuple[Any, Any]  # low and high: numbers, or arrays ``[...]``

CONFIDENCE = 0.95
RESAMPLES = 2000
DRAWN_AT_ONCE = 2**18  # numbers: as many as stay in a cache


@dataclass(frozen=True)
class Comparison:
    """Two methods, run for run. ``effect`` is the relative difference of their errors, below 0 where ``a`` is better;
    ``interval`` is its 95 % interval."""

    a: str
    b: str
    effect: float
    interval: tuple[float, float]
    p_welch: float  # the paper's test: seeds and settings pooled
    p_paired: float
    p_holm: float  # the paired test, corrected for the number of comparisons beside it
    improvement: float  # probability that a run of ``a`` has a lower error than its pair of ``b``
    iqm_a: float  # ``inf`` where more than a quarter diverged
    iqm_b: float
    pairs: int
    diverged_a: int
    diverged_b: int


def compare(
    name_a: str,
    a: ArrayLike,
    name_b: str,
    b: ArrayLike,
    worst: float = math.inf,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """All that is said of two methods, a diverged run counting as ``worst``. Nothing stands beside it, so ``p_holm`` is
    the paired test's own."""
    a, b = _pairs(a, b)
    finite = counted(a, worst), counted(b, worst)
    low, high = bootstrap(relative_difference, *finite, resamples=resamples, seed=seed)
    p = paired(*finite)
    return Comparison(
        a=name_a,
        b=name_b,
        effect=float(relative_difference(*finite)),
        interval=(float(low), float(high)),
        p_welch=welch(*finite),
        p_paired=p,
        p_holm=p,
        improvement=float(probability_of_improvement(a, b)),
        iqm_a=float(iqm(a)),
        iqm_b=float(iqm(b)),
        pairs=a.size,
        diverged_a=int(np.isinf(a).sum()),
        diverged_b=int(np.isinf(b).sum()),
    )


def compare_all(
    errors: Mapping[str, ArrayLike],
    pairs: Iterable[tuple[str, str]] | None = None,
    worst: float = math.inf,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Comparison]:
    """The pairs of methods, by default every pair, with Holm's correction over all of them."""
    chosen = combinations(errors, 2) if pairs is None else pairs
    found = [compare(a, errors[a], b, errors[b], worst, resamples, seed) for a, b in chosen]
    corrected = holm([comparison.p_paired for comparison in found])
    return [replace(comparison, p_holm=p) for comparison, p in zip(found, corrected, strict=True)]


def counted(errors: ArrayLike, worst: float) -> Array:
    """The errors as they count where finite numbers are needed: none is above ``worst``, diverged runs are at it.

    >>> counted([[1.0, np.inf]], worst=3.0)
    array([[1., 3.]])
    """
    return _finite(np.minimum(np.asarray(errors, dtype=float), worst))


def iqm(errors: ArrayLike) -> Any:
    """The interquartile mean over ``[..., settings, seeds]``: the mean of the middle half of the runs.

    It is ``inf`` once more than a quarter of the runs diverged.

    >>> float(iqm([[0, 1, 2, 6], [7, 8, 9, 100]]))  # of 2, 6, 7 and 8; the median is 6.5 and the mean 16.625
    5.75
    """
    # As scipy.stats.trim_mean, at a tenth of its cost for few runs: a bootstrap asks thousands of times.
    errors = np.asarray(errors, dtype=float)
    runs = errors.reshape(*errors.shape[:-2], -1)
    count = runs.shape[-1]
    cut = count // 4
    return np.partition(runs, (cut, count - cut - 1), axis=-1)[..., cut : count - cut].mean(axis=-1)


def relative_difference(a: ArrayLike, b: ArrayLike) -> Any:
    """How much larger the errors of ``a`` are: ``exp(iqm(log a - log b)) - 1`` over pairs, of errors as they count.

    -0.2 says that the typical run of ``a`` has an error 20 % below its pair's. Being a ratio within pairs, every
    setting weighs the same whatever its scale; being an interquartile mean, a few runs that ended at 10⁶ do not decide.
    ``relative_difference(b, a)`` is the same ratio turned over.

    >>> round(float(relative_difference([[1.0, 100.0]], [[2.0, 200.0]])), 12)
    -0.5
    """
    return np.expm1(iqm(_log_ratios(a, b)))


def probability_of_improvement(a: ArrayLike, b: ArrayLike) -> Any:
    """The share of pairs in which ``a`` has the lower error; a tie, as when both diverged, is half.

    Of pairs, and not of all runs of ``a`` with all of ``b`` as in rliable: runs are paired here by their data and
    initial weights, which tells more.

    >>> float(probability_of_improvement([[1.0, 2.0, np.inf, np.inf]], [[2.0, 2.0, np.inf, 5.0]]))
    0.5
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    return ((a < b) + 0.5 * (a == b)).mean(axis=(-2, -1))


def welch(a: ArrayLike, b: ArrayLike) -> float:
    """The p of Welch's t-test over all runs, settings and seeds pooled, pairing ignored: the paper's test.

    Of errors as they count. It takes all runs for independent, as the paper did. Those of one seed are not, which makes
    it optimistic: where they go up and down together over the settings, its p is smaller than the evidence warrants.
    """
    a, b = _finite(a), _finite(b)
    if min(a.size, b.size) < 2:
        return 1.0
    if np.ptp(a) == np.ptp(b) == 0:
        return float(a.flat[0] == b.flat[0])
    # From means and deviations: told the runs, scipy warns about those that are nearly equal.
    moments = (a.mean(), a.std(ddof=1), a.size, b.mean(), b.std(ddof=1), b.size)
    return float(stats.ttest_ind_from_stats(*moments, equal_var=False).pvalue)


def paired(a: ArrayLike, b: ArrayLike) -> float:
    """The p of a t-test over seeds, of what ``relative_difference`` is made of: each seed's ``seed_ratios``.

    Over seeds, because they are the independent unit. Were all pairs taken for independent, a correlation of .1 between
    a seed's log ratios in 50 settings would be enough to find a difference that is not there, at a level of .05, in 4
    of 10 experiments. With one seed there is no telling, and p is 1.

    >>> round(paired([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [[2.0, 4.0, 2.0], [2.0, 4.0, 8.0]]), 4)  # 1, 2, 2 times log 2
    0.0377
    """
    return against_zero(seed_ratios(a, b))


def against_zero(numbers: ArrayLike) -> float:
    """The p of a t-test that the mean of ``numbers [seeds]`` is 0."""
    seeds = np.asarray(numbers, dtype=float)
    if len(seeds) < 2 or not seeds.any():
        return 1.0
    # By hand: scipy warns about seeds that are nearly equal.
    spread = seeds.std(ddof=1) / np.sqrt(len(seeds))
    return float(2 * stats.t.sf(abs(seeds.mean()) / spread, len(seeds) - 1)) if spread else 0.0


def seed_ratios(a: ArrayLike, b: ArrayLike) -> Array:
    """``[seeds]``: each seed's interquartile mean of ``log a - log b`` over settings, of errors as they count.

    >>> seed_ratios([[1.0], [1.0], [1.0], [1e9]], [[1.0], [1.0], [1.0], [1.0]])  # one setting in four does not decide
    array([0.])
    """
    ratios: Array = iqm(_log_ratios(*_pairs(a, b)).T[:, None, :])
    return ratios


def holm(ps: Sequence[float]) -> list[float]:
    """The p-values corrected for being several, in their order (Holm's step-down).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(ps)
    least = 0.0
    for rank, place in enumerate(np.argsort(ps, kind="stable")):
        least = max(least, min(1.0, (len(ps) - rank) * float(ps[place])))
        corrected[place] = least
    return corrected


def bootstrap(statistic: Callable[..., Any], *errors: ArrayLike, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The 95 % interval of ``statistic(*errors)``, by the percentiles of its values for seeds drawn again.

    A seed is drawn with its runs in all settings, and alike for all arrays ``[..., settings, seeds]`` and every step of
    a curve: settings keep their share, pairs stay pairs, and what a seed's runs have in common stays together. With one
    seed there is nothing to draw, and the interval is a point.

    ``statistic`` takes arrays ``[..., settings, seeds]`` to ``[...]``; it is given many draws at a time.
    """
    arrays = [np.asarray(x, dtype=float) for x in errors]
    settings, seeds = arrays[0].shape[-2:]
    if any(x.shape[-2:] != (settings, seeds) for x in arrays):
        raise ValueError(f"errors are of different shapes: {[x.shape for x in arrays]}; pair them by setting and seed")
    by_seed = [np.ascontiguousarray(np.moveaxis(x, -1, 0)) for x in arrays]
    at_once = max(1, DRAWN_AT_ONCE // sum(x.size for x in arrays))
    drawn = np.random.default_rng(seed).integers(seeds, size=(resamples, seeds))
    parts = []
    for begin in range(0, resamples, at_once):
        columns = drawn[begin : begin + at_once]
        part = np.asarray(statistic(*(np.moveaxis(x[columns], 1, -1) for x in by_seed)))
        if part.shape[:1] != columns.shape[:1]:
            raise ValueError("a statistic must keep the axes before [settings, seeds], and not reduce them too")
        parts.append(part)
    values = np.sort(np.concatenate(parts), axis=0)
    # Values that were drawn, not points between two of them: one may be infinite.
    tail = int((1 - CONFIDENCE) / 2 * (resamples - 1))
    return values[tail], values[resamples - 1 - tail]


def divergence_rate(errors: ArrayLike) -> tuple[float, tuple[float, float]]:
    """The share of runs that diverged, with its Wilson interval, which has a width even where none or all did."""
    diverged = np.isinf(np.asarray(errors, dtype=float))
    test = stats.binomtest(int(diverged.sum()), diverged.size)
    low, high = test.proportion_ci(CONFIDENCE, method="wilson")
    return float(test.statistic), (float(low), float(high))


def best_setting(errors: ArrayLike) -> tuple[tuple[int, int], Array]:
    """Errors at the best setting, ``[seeds]``, each seed's at the setting that was best without it.

    The first half of the seeds chooses (the lowest interquartile mean) for the second, and the reverse: errors of the
    seeds that chose a setting are lower than what it would give again. Also returns the two settings chosen.
    """
    errors = np.asarray(errors, dtype=float)
    half = errors.shape[1] // 2
    if half == 0:
        raise ValueError("best_setting needs 2 seeds or more: some to choose a setting, others to measure it")
    first, second = (int(np.argmin(iqm(part[:, None, :]))) for part in (errors[:, :half], errors[:, half:]))
    return (first, second), np.concatenate([errors[second, :half], errors[first, half:]])


def _pairs(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.ndim != 2 or a.shape != b.shape or a.size == 0:
        raise ValueError(f"errors must be two arrays [settings, seeds] of one shape, and not {a.shape} and {b.shape}")
    if not (np.all(a >= 0) and np.all(b >= 0)):
        raise ValueError("errors must be 0 or more, and inf where a run diverged")
    return a, b


def _log_ratios(a: ArrayLike, b: ArrayLike) -> Array:
    """``log a - log b``, with the smallest number there is in the place of 0."""
    tiny = np.finfo(float).tiny
    ratios: Array = np.log(np.maximum(_finite(a), tiny)) - np.log(np.maximum(_finite(b), tiny))
    return ratios


def _finite(errors: ArrayLike) -> Array:
    finite = np.asarray(errors, dtype=float)
    if np.isinf(finite).any():
        raise ValueError("runs diverged: say by ``worst`` what they count as")
    return finite
