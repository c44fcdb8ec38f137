"""Whether one thing rises with another, judged within settings and seeds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from ..statistics import Array, against_zero, counted, holm
from .curves import mean
from .judging import SIGNIFICANT, Part, decided, interval_of
from .layout import Layout
from .words import interval, number, p_is

FEWEST_LEVELS = 3  # that can be said to rise or fall


def along(layout: Layout, values: Array, field: str) -> Array:
    """``[settings, seeds]`` as ``[levels of the field in rising order, other settings, seeds]``."""
    of = np.array(layout.values(field))
    return np.stack([values[of == level] for level in np.unique(of)])


def levels(layout: Layout, field: str) -> Array:
    """The values of the field, in rising order, shaped to go with ``along``."""
    return np.unique(layout.values(field))[:, None, None]


def ratio(a: Array, b: Array, worst: float) -> Array:
    """``a / b``, a diverged run counting as ``worst``."""
    tiny = np.finfo(float).tiny
    return np.maximum(counted(a, worst), tiny) / np.maximum(counted(b, worst), tiny)


def rank_correlations(x: ArrayLike, y: ArrayLike) -> Array:
    """Spearman's correlation of ``x`` and ``y [levels, settings, seeds]`` over the levels at which both are finite,
    ``[settings, seeds]``; 0 where one of them does not change, or fewer than 3 levels are left.

    >>> rank_correlations([[[1.0]], [[2.0]], [[3.0]], [[4.0]]], [[[5.0]], [[9.0]], [[10.0]], [[np.inf]]])
    array([[1.]])
    """
    both = np.broadcast_arrays(np.asarray(x, float), np.asarray(y, float))
    finite = np.isfinite(both).all(0)
    count = finite.sum(0)
    ranks = [np.where(finite, stats.rankdata(np.where(finite, z, np.inf), axis=0), 0.0) for z in both]
    # Ranks of what is left are 1 to its number, whose mean this is, ties or not.
    a, b = (np.where(finite, rank - (count + 1) / 2, 0.0) for rank in ranks)
    spread = np.sqrt((a**2).sum(0) * (b**2).sum(0))
    return np.divide((a * b).sum(0), spread, out=np.zeros_like(spread), where=(spread > 0) & (count >= FEWEST_LEVELS))


def trends(correlations: dict[str, Array]) -> list[Part]:
    """Whether correlations ``[settings, seeds]`` are positive: their mean, its interval, and a test against none,
    corrected by Holm's method for their number.

    Holds when they are, at p < 0.05; does not hold otherwise; inconclusive with fewer than 5 seeds.
    """
    corrected = holm([against_none(rho) for rho in correlations.values()])
    return [trend(what, rho, p) for (what, rho), p in zip(correlations.items(), corrected, strict=True)]


def against_none(rho: Array) -> float:
    """The p of no correlation, over seeds, of each its mean over settings."""
    return against_zero(rho.mean(0))


def trend(what: str, rho: Array, p: float) -> Part:
    """One of ``trends``, its p corrected already."""
    effect, ends = float(rho.mean()), interval_of(mean, rho)
    says = f"{what}: mean rank correlation {number(effect)} {interval(ends)}, {p_is(p)}"
    return Part(says, decided(p < SIGNIFICANT and effect > 0, rho.shape[1]), effect, ends, p)
