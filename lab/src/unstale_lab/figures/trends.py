"""Rank correlations within settings and seeds, and whether they are positive."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from ..statistics import Array, clip_errors, holm, one_sample_t_test
from .curves import mean
from .formatting import format_estimate, format_p_value
from .run_table import RunTable
from .verdicts import SIGNIFICANCE_LEVEL, Finding, confidence_interval, decide

MIN_LEVELS = 3  # for a rank correlation


def by_level(table: RunTable, values: Array, field: str) -> Array:
    """Reshape ``[settings, seeds]`` to ``[levels, other settings, seeds]``, levels of the field in rising order."""
    of = np.array(table.values(field))
    return np.stack([values[of == level] for level in np.unique(of)])


def levels(table: RunTable, field: str) -> Array:
    """Return the values of the field in rising order, ``[levels, 1, 1]``."""
    return np.unique(table.values(field))[:, None, None]


def ratio(a: Array, b: Array, worst_error: float) -> Array:
    """Return ``a / b``, where a diverged run counts as ``worst_error``."""
    tiny = np.finfo(float).tiny
    return np.maximum(clip_errors(a, worst_error), tiny) / np.maximum(clip_errors(b, worst_error), tiny)


def rank_correlations(x: ArrayLike, y: ArrayLike) -> Array:
    """Return Spearman's correlation of ``x`` and ``y [levels, settings, seeds]`` over levels, ``[settings, seeds]``.

    Levels at which one of them is infinite are left out. The correlation is 0 if one of them is constant, or if fewer
    than 3 levels are left.

    >>> rank_correlations([[[1.0]], [[2.0]], [[3.0]], [[4.0]]], [[[5.0]], [[9.0]], [[10.0]], [[np.inf]]])
    array([[1.]])
    """
    both = np.broadcast_arrays(np.asarray(x, float), np.asarray(y, float))
    finite = np.isfinite(both).all(0)
    count = finite.sum(0)
    ranks = [np.where(finite, stats.rankdata(np.where(finite, z, np.inf), axis=0), 0.0) for z in both]
    # The remaining ranks are 1 to count, with mean (count + 1) / 2, ties or not.
    a, b = (np.where(finite, rank - (count + 1) / 2, 0.0) for rank in ranks)
    spread = np.sqrt((a**2).sum(0) * (b**2).sum(0))
    return np.divide((a * b).sum(0), spread, out=np.zeros_like(spread), where=(spread > 0) & (count >= MIN_LEVELS))


def trends(correlations: dict[str, Array]) -> list[Finding]:
    """Judge whether correlations ``[settings, seeds]`` are positive, with Holm's correction over all of them.

    Holds if the mean is positive and p < 0.05; does not hold otherwise; inconclusive with fewer than 5 seeds.
    """
    corrected = holm([p_no_correlation(rho) for rho in correlations.values()])
    return [trend(quantity, rho, p) for (quantity, rho), p in zip(correlations.items(), corrected, strict=True)]


def p_no_correlation(rho: Array) -> float:
    """Return the p-value of a t-test over seeds that the mean correlation is 0."""
    return one_sample_t_test(rho.mean(0))


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
