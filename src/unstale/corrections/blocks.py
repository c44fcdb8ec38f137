"""Square blocks of the Taylor term along its diagonal; a single block is the paper's full correction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..running import decay_, over
from ..samples import Linearization


class Blocks:
    """``η ← β (η − ζᵀ d)``, then ``ζ ← β ζ + (1-β) Z``, with ``Z`` cut into blocks of the given sizes.

    Equal neighbours are kept and multiplied together, ``[..., count, size, size]``. What is kept is ``ζᵀ``.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._stretches: list[tuple[int, int, int]] = []  # first parameter, blocks, size of each
        start = 0
        for size in sizes:
            if self._stretches and self._stretches[-1][2] == size:
                first, count, _ = self._stretches.pop()
                self._stretches.append((first, count + 1, size))
            else:
                self._stretches.append((start, 1, size))
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
        runs = v.shape[:-2]
        if not memory:
            memory["eta"] = v.new_zeros(*runs, batch.size)
            memory["zeta"] = [v.new_zeros(*runs, count, size, size) for _, count, size in self._stretches]
        eta = memory["eta"]
        fresh = 1 - over(beta, v)
        weighted = v * (batch.curvature.unsqueeze(-1) * fresh)
        for zeta, (start, count, size) in zip(memory["zeta"], self._stretches, strict=True):
            span = slice(start, start + count * size)
            # A row times a matrix: BLAS is ten times slower at many matrices times a column.
            moved = (self._cut(displacement, span, size).unsqueeze(-2) @ zeta.mT).squeeze(-2)
            eta[..., span].sub_(moved.flatten(-2))
            by_block = (self._cut(part, span, size).movedim(-3, -2) for part in (weighted, u))  # [..., count, k, size]
            _decay_and_add_outer(zeta, beta, *by_block)
            if batch.hessian is not None:
                part = batch.hessian[..., span, span].unflatten(-1, (count, size)).unflatten(-3, (count, size))
                own = part.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
                zeta.add_(own.mT * (1 - over(beta, own)))
        return decay_(eta, beta)

    @staticmethod
    def _cut(x: Tensor, span: slice, size: int) -> Tensor:
        return x[..., span].unflatten(-1, (-1, size))


def _decay_and_add_outer(zeta: Tensor, beta: float | Tensor, v: Tensor, u: Tensor) -> None:
    """``ζᵀ ← β ζᵀ + vᵀ u`` in one pass over the memory of ``ζ``."""
    if isinstance(beta, Tensor):
        decay_(zeta, beta)
        beta = 1.0
    flat = zeta.view(-1, *zeta.shape[-2:])
    torch.baddbmm(flat, v.mT.reshape(-1, *v.mT.shape[-2:]), u.reshape(-1, *u.shape[-2:]), beta=beta, out=flat)
