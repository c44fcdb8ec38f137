"""Square blocks of the Taylor term along its diagonal; a single block is the paper's full correction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..running import decay_, over
from ..samples import Linearization


class Blocks:
    """``η ← β (η − ζᵀ d)``, then ``ζ ← β ζ + (1-β) Z``, with ``Z`` cut into blocks of the given sizes.

    Equal neighbours are kept and multiplied together, ``[..., count, size, size]``. What is kept is ``ζᵀ``.

    To write ``ζ`` takes longer than to read it. With ``merge_every`` above 1, that many batches wait before they are
    added to it in one matrix product; until then ``d`` meets their samples one by one. The sum is the same.
    """

    def __init__(self, sizes: Sequence[int], merge_every: int = 1) -> None:
        self.merge_every = merge_every
        self._stretches: list[tuple[slice, int]] = []  # parameters of neighbouring blocks, and the size of each block
        start = 0
        for size in sizes:
            if self._stretches and self._stretches[-1][1] == size:
                before, _ = self._stretches.pop()
                self._stretches.append((slice(before.start, start + size), size))
            else:
                self._stretches.append((slice(start, start + size), size))
            start += size

    def update(
        self,
        memory: dict[str, Any],
        batch: Linearization,
        displacement: Tensor,
        beta: float | Tensor,
        replay: Any = None,
    ) -> Tensor:
        v, u = batch.matrices()
        weight = batch.curvature * (1 - over(beta, batch.curvature))
        if not memory:
            memory["eta"] = v.new_zeros(*v.shape[:-2], batch.size)
            memory["zeta"] = [
                v.new_zeros(*v.shape[:-2], (span.stop - span.start) // size, size, size)
                for span, size in self._stretches
            ]
            if self.merge_every > 1:
                memory["waiting"] = {}
        self._move(memory, displacement)
        if "waiting" not in memory:
            self._add(memory, weight, v, u, beta)
        else:
            self._wait(memory, weight, v, u, beta)
        if batch.hessian is not None:
            self._merge(memory)
            for zeta, (span, size) in self._matrices(memory):
                part = batch.hessian[..., span, span].unflatten(-1, (-1, size)).unflatten(-3, (-1, size))
                own = part.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
                zeta.add_(own.mT * (1 - over(beta, own)))
        return decay_(memory["eta"], beta)

    def _move(self, memory: dict[str, Any], displacement: Tensor) -> None:
        """``η ← η − ζᵀ d``."""
        waiting = memory.get("waiting")
        for zeta, (span, size) in self._matrices(memory):
            d = _cut(displacement, span, size).unsqueeze(-2)
            moved = d @ zeta.mT  # a row times a matrix: BLAS is ten times slower at many matrices times a column
            if waiting:
                v, u = (_by_block(waiting[name], span, size) for name in "vu")
                shift = d @ u.mT * waiting["weight"][..., None, None, :]
                moved = shift @ v + moved * over(waiting["decay"], moved)
            memory["eta"][..., span].sub_(moved.flatten(-3))

    def _add(self, memory: dict[str, Any], weight: Tensor, v: Tensor, u: Tensor, decay: float | Tensor) -> None:
        """``ζ ← decay · ζ + Σ_k w_k u_k v_kᵀ``."""
        weighted = v * weight.unsqueeze(-1)
        for zeta, (span, size) in self._matrices(memory):
            _decay_and_add_outer(zeta, decay, _by_block(weighted, span, size), _by_block(u, span, size))

    def _wait(self, memory: dict[str, Any], weight: Tensor, v: Tensor, u: Tensor, beta: float | Tensor) -> None:
        """Put a batch with those that wait. Where there is no room for another like it, merge them."""
        waiting, samples = memory["waiting"], weight.shape[-1]
        if waiting and samples > waiting["weight"].shape[-1] - int(waiting["samples"]):
            self._merge(memory)
            if samples > waiting["weight"].shape[-1]:
                waiting.clear()  # batches have become larger than there will ever be room for
        if not waiting:
            room = samples * self.merge_every
            waiting["weight"] = weight.new_zeros(*weight.shape[:-1], room)
            waiting["v"], waiting["u"] = (v.new_zeros(*v.shape[:-2], room, v.shape[-1]) for _ in range(2))
            waiting["decay"] = 1.0  # of ζ since it was written
            waiting["samples"] = torch.zeros((), dtype=torch.int64)  # that wait; on the CPU, where places are chosen
        decay_(waiting["weight"], beta)
        waiting["decay"] = waiting["decay"] * beta
        place = slice(int(waiting["samples"]), int(waiting["samples"]) + samples)
        waiting["v"][..., place, :], waiting["u"][..., place, :], waiting["weight"][..., place] = v, u, weight
        waiting["samples"] += samples
        if place.stop + samples > waiting["weight"].shape[-1]:
            self._merge(memory)

    def _merge(self, memory: dict[str, Any]) -> None:
        """Add to ``ζ`` what waits."""
        waiting = memory.get("waiting")
        if waiting:
            self._add(memory, waiting["weight"], waiting["v"], waiting["u"], waiting["decay"])
            waiting["weight"].zero_()
            waiting["decay"] = 1.0
            waiting["samples"].zero_()

    def _matrices(self, memory: dict[str, Any]) -> Iterator[tuple[Tensor, tuple[slice, int]]]:
        return zip(memory["zeta"], self._stretches, strict=True)


def _cut(x: Tensor, span: slice, size: int) -> Tensor:
    """``[..., n] → [..., count, size]``."""
    return x[..., span].unflatten(-1, (-1, size))


def _by_block(samples: Tensor, span: slice, size: int) -> Tensor:
    """``[..., k, n] → [..., count, k, size]``."""
    return _cut(samples, span, size).movedim(-3, -2)


def _decay_and_add_outer(zeta: Tensor, decay: float | Tensor, v: Tensor, u: Tensor) -> None:
    """``ζᵀ ← decay · ζᵀ + vᵀ u`` in one pass over the memory of ``ζ``."""
    if isinstance(decay, Tensor):
        decay_(zeta, decay)
        decay = 1.0
    flat = zeta.view(-1, *zeta.shape[-2:])
    torch.baddbmm(flat, v.mT.reshape(-1, *v.mT.shape[-2:]), u.reshape(-1, *u.shape[-2:]), beta=decay, out=flat)
