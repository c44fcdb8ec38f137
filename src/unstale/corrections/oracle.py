"""The reference: past batches evaluated again at the current parameters. No Taylor expansion, no n×n matrix, slow."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..momentum import per_run, running_mean_
from ..per_sample.gradients import Batch
from .base import Correction, Memory


class Oracle(Correction):
    """``μ* = (1-β) Σ β^{t-i} ∇J_i(θ)`` over the last ``horizon`` batches, the newest included.

    ``η`` is the running mean of the batches' own gradients minus ``μ*``, so gradients of other losses stay in μ.
    """

    needs_per_sample_gradients = False
    needs_displacement = False
    needs_replay = True

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self._past: list[tuple[Callable[[], Batch], float | Tensor]] = []  # newest first, with their weights

    def update(
        self,
        memory: Memory,
        batch: Batch,
        displacement: Tensor,
        beta: float | Tensor,
        replay: Callable[[], Batch] | None = None,
    ) -> Tensor:
        assert replay is not None
        gradient = batch.semi_gradient()
        if not memory:
            memory["stale"] = gradient.new_zeros(gradient.shape)
        stale = running_mean_(memory["stale"], gradient, beta)
        self._past = [(again, weight * beta) for again, weight in self._past[: self.horizon - 1]]
        fresh = gradient * (1 - per_run(beta, gradient))
        for again, weight in self._past:
            fresh = fresh + again().semi_gradient() * per_run(weight, gradient)
        self._past.insert(0, (replay, 1 - beta))
        return stale - fresh
