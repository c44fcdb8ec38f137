"""The reference: past batches evaluated again at today's parameters. No Taylor expansion, no n×n matrix, slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..running import mean_, over
from ..samples import Batch


class Oracle:
    """``μ* = (1-β) Σ β^{t-i} ∇J_i(θ)`` over the last ``horizon`` batches, the newest included.

    ``η`` is what is left of the batches' own running mean, so gradients of other losses stay in μ.
    """

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self._replays: list[Callable[[], Batch]] = []

    def update(
        self,
        memory: dict[str, Any],
        batch: Batch,
        displacement: Tensor,
        beta: float | Tensor,
        replay: Callable[[], Batch] | None = None,
    ) -> Tensor:
        assert replay is not None
        gradient = batch.gradient(batch.slope)  # type: ignore[arg-type]
        if not memory:
            memory["stale"] = gradient.new_zeros(gradient.shape)
        stale = mean_(memory["stale"], gradient, beta)
        fresh = gradient * (1 - over(beta, gradient))
        for age, past in enumerate(self._replays, start=1):
            again = past()
            fresh = fresh + again.gradient(again.slope) * over((1 - beta) * beta**age, gradient)  # type: ignore[arg-type]
        self._replays.insert(0, replay)
        del self._replays[self.horizon - 1 :]
        return stale - fresh
