"""The reference: past batches evaluated again at today's parameters. No Taylor expansion, no n×n matrix, slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..running import mean_

Replay = Callable[[], Tensor]


class Oracle:
    """``μ* = (1-β) Σ β^{t-i} ∇J_i(θ)`` over the last ``horizon`` batches, the newest included.

    A batch is a pair: its gradient now, and a function that finds its gradient again later. Gradients of other
    losses that are in μ are left in it.
    """

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self._replays: list[Replay] = []

    def update(self, memory: dict[str, Any], batch: tuple[Tensor, Replay], displacement: Tensor, beta: float) -> Tensor:
        gradient, replay = batch
        if "stale" not in memory:
            memory["stale"] = gradient.new_zeros(gradient.shape)
        stale = mean_(memory["stale"], gradient, beta)
        fresh = gradient * (1 - beta)
        for age, again in enumerate(self._replays, start=1):
            fresh = fresh + again() * ((1 - beta) * beta**age)
        self._replays.insert(0, replay)
        del self._replays[self.horizon - 1 :]
        return stale - fresh
