"""Whether one thing rises with another, judged within settings and seeds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from ..statistics import Array, counted, holm, paired
from .curves import mean
from .judging import SIGNIFICANT, Part, decided, interval_of, number, probability
from .layout import Layout


def along(layout: Layout, values: Array, field: str) -> Array:
    """``[settings, seeds]`` as ``[levels of the field in rising order, other settings, seeds]``."""
    of = np.array(layout.values(field))
    return np.stack([values[of == level] for level in np.unique(of)])


def levels(layout: Layout, field: str) -> Array:
    """The values of the field, in rising order, shaped to go with ``along``."""
    return np.unique(layout.values(field))[:, None, None]


def ratio(a: Array, b: Array) -> Array:
    """``a / b``, diverged runs counted as the largest error."""
    a, b = counted(a, b)
    tiny = np.finfo(float).tiny
    return np.maximum(a, tiny) / np.maximum(b, tiny)


def rank_correlations(x: ArrayLike, y: ArrayLike) -> Array:
    """Spearman's correlation of ``x`` and ``y [levels, settings, seeds]`` over the levels, ``[settings, seeds]``; 0
    where one of them does not change.

    >>> rank_correlations([[[1.0]], [[2.0]], [[3.0]]], [[[5.0]], [[9.0]], [[np.inf]]])
    array([[1.]])
    """
    ranks = [stats.rankdata(z, axis=0) for z in np.broadcast_arrays(np.asarray(x, float), np.asarray(y, float))]
    a, b = (rank - rank.mean(0) for rank in ranks)
    spread = np.sqrt((a**2).sum(0) * (b**2).sum(0))
    return np.divide((a * b).sum(0), spread, out=np.zeros_like(spread), where=spread > 0)


def trends(correlations: dict[str, Array]) -> list[Part]:
    """Whether correlations ``[settings, seeds]`` are positive: their mean, its interval, and a test against none,
    corrected by Holm's method for their number.

    Holds when they are, at p < 0.05; does not hold otherwise; inconclusive with fewer than 5 seeds.
    """
    corrected = holm([against_none(rho) for rho in correlations.values()])
    return [_trend(what, rho, p) for (what, rho), p in zip(correlations.items(), corrected, strict=True)]


def against_none(numbers: Array) -> float:
    """The p of a mean of 0, over seeds: the test that ``paired`` makes of log ratios."""
    return paired(np.exp(numbers), np.ones_like(numbers))


def _trend(what: str, rho: Array, p: float) -> Part:
    effect, (low, high) = float(rho.mean()), interval_of(mean, rho)
    says = f"{what}: mean rank correlation {number(effect)} [{number(low)}, {number(high)}], {probability(p)}"
    return Part(says, decided(p < SIGNIFICANT and effect > 0, rho.shape[1]), effect, (low, high), p)
