"""Running means, in place, for one run or for many side by side."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def decay_(x: Tensor, factor: float | Tensor) -> Tensor:
    """``x ← factor · x``. A factor with one number a run is spread over the run's tensor."""
    return x.mul_(over(factor, x))


def mean_(running: Tensor, new: Tensor, beta: float | Tensor) -> Tensor:
    """``running ← β running + (1-β) new``, a damped running mean."""
    if isinstance(beta, Tensor):
        return running.lerp_(new, (1 - over(beta, running)).expand_as(running))
    return running.lerp_(new, 1 - beta)


def over(factor: float | Tensor, x: Tensor) -> Any:
    """``factor``, shaped ``[...]`` like the runs of ``x [..., n]``, ready to be multiplied with it."""
    if isinstance(factor, Tensor):
        return factor.reshape(factor.shape + (1,) * (x.ndim - factor.ndim))
    return factor
