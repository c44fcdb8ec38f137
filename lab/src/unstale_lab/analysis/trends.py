"""Errors by level of a hyper-parameter, and rank correlations over the levels, within settings and seeds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from .run_table import RunTable
from .statistics import Array, one_sample_t_test

MIN_LEVELS = 3  # for a correlation over levels


def by_level(table: RunTable, values: Array, field: str) -> Array:
    """Reshape ``[settings, seeds]`` to ``[levels, other settings, seeds]``, levels of the field in rising order."""
    of = np.array(table.values(field))
    return np.stack([values[of == level] for level in np.unique(of)])


def levels(table: RunTable, field: str) -> Array:
    """Return the values of the field in rising order, ``[levels, 1, 1]``."""
    return np.unique(table.values(field))[:, None, None]


def ratio(a: Array, b: Array) -> Array:
    """Return ``a / b``; infinite if either run diverged.

    >>> ratio(np.array([1.0, np.inf, 1.0]), np.array([2.0, 1.0, np.inf]))
    array([0.5, inf, inf])
    """
    tiny, is_finite = np.finfo(float).tiny, np.isfinite(a) & np.isfinite(b)
    return np.where(is_finite, np.maximum(a, tiny) / np.maximum(np.where(is_finite, b, 1.0), tiny), np.inf)


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


def p_no_correlation(rho: Array) -> float:
    """Return the p-value of a t-test over seeds that the mean correlation is 0."""
    return one_sample_t_test(rho.mean(0))
