"""Statistics over many runs.

Errors are arrays ``[settings, seeds]``, one per method, with the same setting and seed at the same position, so that
positions are pairs: same data, same initial weights. Errors are 0 or more, and ``inf`` for a diverged run. In
``[..., settings, seeds]`` leading axes (the steps of a curve, say) are kept.

No diverged run is ever dropped. Rank statistics treat it as worse than any other. Statistics that need finite numbers
use ``clip_errors``: ``worst_error`` replaces the diverged run, one number for all comparisons that are judged together.
It should be no less than any error before the first step; otherwise diverging would be better than not training.

Seeds are the independent unit. Runs of one seed share their data and initial weights across settings, so that twelve
settings of ten seeds are ten observations and not 120: tests are over seeds, and the bootstrap resamples seeds.

Errors of different settings differ by orders of magnitude. Where settings are pooled, the ratio within a pair is
compared and not the difference; otherwise the settings with the largest errors would decide alone. Welch's test is the
exception to both rules, because it is the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array = NDArray[np.float64]
Interval = tuple[Any, Any]  # low and high: numbers, or arrays [...]

CONFIDENCE = 0.95
RESAMPLES = 2000
MAX_LOG_RATIO = 700.0  # whose exponential is finite
MAX_RESAMPLED_ELEMENTS = 2**18  # at a time, so that they fit into the cache


@dataclass(frozen=True)
class Comparison:
    """A paired comparison of two methods."""

    a: str
    b: str
    ratio: float  # typical ratio of the errors of ``a`` to those of ``b``; below 1 if ``a`` is better
    interval: tuple[float, float]  # its 95 % confidence interval
    p_welch: float  # the paper's test: seeds and settings pooled
    p_paired: float
    p_holm: float  # the paired test with Holm's correction over all comparisons of the verdict
    improvement: float  # probability of improvement: share of pairs in which ``a`` has the lower error
    iqm_a: float  # interquartile mean; ``inf`` if more than a quarter of the runs diverged
    iqm_b: float
    pairs: int
    diverged_a: int
    diverged_b: int


def compare(
    name_a: str,
    a: ArrayLike,
    name_b: str,
    b: ArrayLike,
    worst_error: float = math.inf,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare two methods; ``p_holm`` is that of a single test.

    If ``a`` and ``b`` are swapped, the interval is the inverse one up to the accuracy of the bootstrap.

    Args:
        name_a: name of the first method.
        a: its errors, ``[settings, seeds]``.
        name_b: name of the second method.
        b: its errors, ``[settings, seeds]``, paired with ``a``.
        worst_error: what a diverged run counts as; the default raises an error if a run diverged.
        resamples: of the bootstrap.
        seed: of the bootstrap.
    """
    a, b = _pairs(a, b)
    finite = clip_errors(a, worst_error), clip_errors(b, worst_error)
    # In a fixed order, so that the resamples, and with them the interval, do not depend on the order of the seeds.
    order = np.argsort(seed_log_ratios(*finite), kind="stable")
    ordered = [errors[:, order] for errors in finite]
    low, high = bootstrap(typical_ratio, *ordered, resamples=resamples, seed=seed)
    p = paired_t_test(*finite)
    return Comparison(
        a=name_a,
        b=name_b,
        ratio=float(typical_ratio(*finite)),
        interval=(float(low), float(high)),
        p_welch=welch_t_test(*finite),
        p_paired=p,
        p_holm=p,
        improvement=float(probability_of_improvement(a, b)),
        iqm_a=float(iqm(a)),
        iqm_b=float(iqm(b)),
        pairs=a.size,
        diverged_a=int(np.isinf(a).sum()),
        diverged_b=int(np.isinf(b).sum()),
    )


def clip_errors(errors: ArrayLike, worst_error: float) -> Array:
    """Return the errors clipped at ``worst_error``, which replaces diverged runs.

    >>> clip_errors([[1.0, np.inf]], worst_error=3.0)
    array([[1., 3.]])
    """
    return _finite(np.minimum(np.asarray(errors, dtype=float), worst_error))


def iqm(errors: ArrayLike) -> Any:
    """Return the interquartile mean over ``[..., settings, seeds]``: the mean of the middle half of the runs.

    It is ``inf`` if more than a quarter of the runs diverged.

    >>> float(iqm([[0, 1, 2, 6], [7, 8, 9, 100]]))  # mean of 2, 6, 7 and 8; the median is 6.5, the mean 16.625
    5.75
    """
    # Same as scipy.stats.trim_mean, ten times faster for few runs: the bootstrap calls it thousands of times.
    errors = np.asarray(errors, dtype=float)
    runs = errors.reshape(*errors.shape[:-2], -1)
    count = runs.shape[-1]
    cut = count // 4
    return np.partition(runs, (cut, count - cut - 1), axis=-1)[..., cut : count - cut].mean(axis=-1)


def typical_ratio(a: ArrayLike, b: ArrayLike) -> Any:
    """Return the typical ratio of paired errors, ``exp(iqm(log a - log b))``.

    0.8 means that the typical run of ``a`` has an error 20 % below that of its pair. Ratios within pairs give every
    setting the same weight whatever its scale; the interquartile mean is robust to a few runs that ended at 10⁶.
    ``typical_ratio(b, a)`` is the inverse.

    >>> round(float(typical_ratio([[1.0, 100.0]], [[2.0, 200.0]])), 12)
    0.5
    """
    return np.exp(np.clip(iqm(_log_ratios(a, b)), -MAX_LOG_RATIO, MAX_LOG_RATIO))


def probability_of_improvement(a: ArrayLike, b: ArrayLike) -> Any:
    """Return the share of pairs in which ``a`` has the lower error; a tie (both diverged, say) counts as half.

    rliable compares all runs of ``a`` with all of ``b``. Here runs are paired by data and initial weights, which is
    more informative.

    >>> float(probability_of_improvement([[1.0, 2.0, np.inf, np.inf]], [[2.0, 2.0, np.inf, 5.0]]))
    0.5
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    return ((a < b) + 0.5 * (a == b)).mean(axis=(-2, -1))


def welch_t_test(a: ArrayLike, b: ArrayLike) -> float:
    """Return the p-value of Welch's t-test over all runs, settings and seeds pooled: the paper's test.

    Errors must be finite (``clip_errors``). The test treats all runs as independent, as the paper did. Runs of one seed
    are not, so that its p can be too small.
    """
    a, b = _finite(a), _finite(b)
    if min(a.size, b.size) < 2:
        return 1.0
    if np.ptp(a) == np.ptp(b) == 0:
        return float(a.flat[0] == b.flat[0])
    # From moments: given the runs, scipy warns if they are nearly equal.
    moments = (a.mean(), a.std(ddof=1), a.size, b.mean(), b.std(ddof=1), b.size)
    return float(stats.ttest_ind_from_stats(*moments, equal_var=False).pvalue)


def paired_t_test(a: ArrayLike, b: ArrayLike) -> float:
    """Return the p-value of a t-test over seeds on ``seed_log_ratios``, which ``typical_ratio`` summarizes.

    Seeds are the independent unit. If all pairs were treated as independent, a correlation of 0.1 between a seed's log
    ratios in 50 settings would give false positives in 4 of 10 experiments, at a level of 0.05. With one seed p is 1.

    >>> b = [[2.0, 4.0, 2.0], [2.0, 4.0, 8.0]]  # log ratios of the seeds: -1, -2 and -2 times log 2
    >>> round(paired_t_test([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], b), 4)
    0.0377
    """
    return one_sample_t_test(seed_log_ratios(a, b))


def one_sample_t_test(values: ArrayLike) -> float:
    """Return the p-value of a t-test that the mean of ``values [seeds]`` is 0."""
    seeds = np.asarray(values, dtype=float)
    if len(seeds) < 2 or not seeds.any():
        return 1.0
    # Not by scipy, which warns if seeds are nearly equal.
    spread = seeds.std(ddof=1) / np.sqrt(len(seeds))
    return float(2 * stats.t.sf(abs(seeds.mean()) / spread, len(seeds) - 1)) if spread else 0.0


def seed_log_ratios(a: ArrayLike, b: ArrayLike) -> Array:
    """Return each seed's interquartile mean of ``log a - log b`` over settings, ``[seeds]``.

    >>> seed_log_ratios([[1.0], [1.0], [1.0], [1e9]], [[1.0], [1.0], [1.0], [1.0]])  # robust to one setting in four
    array([0.])
    """
    ratios: Array = iqm(_log_ratios(*_pairs(a, b)).T[:, None, :])
    return ratios


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values with Holm's step-down correction, in the given order.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(ps)
    largest = 0.0
    for rank, index in enumerate(np.argsort(ps, kind="stable")):
        largest = max(largest, min(1.0, (len(ps) - rank) * float(ps[index])))
        corrected[index] = largest
    return corrected


def bootstrap(statistic: Callable[..., Any], *errors: ArrayLike, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Return the 95 % percentile bootstrap interval of ``statistic(*errors)``, resampling seeds.

    A seed is resampled with its runs in all settings, the same seeds for all arrays and all steps of a curve, so that
    pairs stay paired and settings keep their weight. With one seed the interval is a point.

    Args:
        statistic: from arrays ``[..., settings, seeds]`` to ``[...]``; called with many resamples at a time.
        errors: arrays ``[..., settings, seeds]``.
        resamples: number of resamples.
        seed: of the random numbers.
    """
    arrays = [np.asarray(x, dtype=float) for x in errors]
    settings, seeds = arrays[0].shape[-2:]
    if any(x.shape[-2:] != (settings, seeds) for x in arrays):
        raise ValueError(f"errors are of different shapes: {[x.shape for x in arrays]}; pair them by setting and seed")
    by_seed = [np.ascontiguousarray(np.moveaxis(x, -1, 0)) for x in arrays]
    chunk = max(1, MAX_RESAMPLED_ELEMENTS // sum(x.size for x in arrays))
    drawn = np.random.default_rng(seed).integers(seeds, size=(resamples, seeds))
    parts = []
    for begin in range(0, resamples, chunk):
        columns = drawn[begin : begin + chunk]
        part = np.asarray(statistic(*(np.moveaxis(x[columns], 1, -1) for x in by_seed)))
        if part.shape[:1] != columns.shape[:1]:
            raise ValueError("a statistic must keep the axes before [settings, seeds], and not reduce them too")
        parts.append(part)
    values = np.sort(np.concatenate(parts), axis=0)  # NaN, of resamples without a value, comes last
    # Order statistics without interpolation: one of two neighbours may be infinite.
    count = np.maximum((~np.isnan(values)).sum(axis=0), 1)
    tail = ((1 - CONFIDENCE) / 2 * (count - 1)).astype(int)
    low, high = (np.take_along_axis(values, index[None], axis=0)[0] for index in (tail, count - 1 - tail))
    return low, high


def divergence_rate(errors: ArrayLike) -> tuple[float, tuple[float, float]]:
    """Return the share of diverged runs and its 95 % Wilson interval, which has a width even for shares of 0 and 1."""
    diverged = np.isinf(np.asarray(errors, dtype=float))
    test = stats.binomtest(int(diverged.sum()), diverged.size)
    low, high = test.proportion_ci(CONFIDENCE, method="wilson")
    return float(test.statistic), (float(low), float(high))


def best_setting(errors: ArrayLike) -> tuple[tuple[int, int], Array]:
    """Return the two selected settings, and errors ``[seeds]`` at the best setting without selection bias.

    The first half of the seeds selects the setting (lowest interquartile mean) for the second half, and vice versa.
    """
    errors = np.asarray(errors, dtype=float)
    half = errors.shape[1] // 2
    if half == 0:
        raise ValueError("best_setting needs 2 seeds or more: some to select a setting, others to evaluate it")
    first, second = (int(np.argmin(iqm(part[:, None, :]))) for part in (errors[:, :half], errors[:, half:]))
    return (first, second), np.concatenate([errors[second, :half], errors[first, half:]])


def _pairs(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.ndim != 2 or a.shape != b.shape or a.size == 0:
        raise ValueError(f"errors must be two arrays [settings, seeds] of the same shape, got {a.shape} and {b.shape}")
    if not (np.all(a >= 0) and np.all(b >= 0)):
        raise ValueError("errors must be 0 or more, and inf where a run diverged")
    return a, b


def _log_ratios(a: ArrayLike, b: ArrayLike) -> Array:
    """Return ``log a - log b``, with 0 replaced by the smallest positive number."""
    tiny = np.finfo(float).tiny
    ratios: Array = np.log(np.maximum(_finite(a), tiny)) - np.log(np.maximum(_finite(b), tiny))
    return ratios


def _finite(errors: ArrayLike) -> Array:
    finite = np.asarray(errors, dtype=float)
    if np.isinf(finite).any():
        raise ValueError("some runs diverged: set ``worst_error`` to what they count as")
    return finite
