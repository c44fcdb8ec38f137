"""Whether one thing rises with another, judged within settings and seeds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from ..statistics import Array, counted, holm
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
    """Whether correlations ``[settings, seeds]`` are positive: their mean, its interval, and a signed-rank test
    against none, corrected by Holm's method for their number.

    Holds when they are, at p < 0.05; does not hold otherwise; inconclusive with fewer than 6 of them.
    """
    corrected = holm([_signed_rank(rho) for rho in correlations.values()])
    return [_trend(what, rho, p) for (what, rho), p in zip(correlations.items(), corrected, strict=True)]


def _signed_rank(rho: Array) -> float:
    return float(stats.wilcoxon(rho.ravel(), zero_method="pratt").pvalue) if rho.any() else 1.0


def _trend(what: str, rho: Array, p: float) -> Part:
    effect, (low, high) = float(rho.mean()), interval_of(mean, rho)
    says = f"{what}: mean rank correlation {number(effect)} [{number(low)}, {number(high)}], {probability(p)}"
    return Part(says, decided(p < SIGNIFICANT and effect > 0, rho.size), effect, (low, high), p)
