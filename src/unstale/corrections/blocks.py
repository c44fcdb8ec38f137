"""Square blocks of the Taylor term along its diagonal; a single block is the paper's full correction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..momentum import decay_, per_run
from ..per_sample.gradients import Linearization
from .base import Correction, Memory, Replay, Selection, is_chosen

# A matrix of more rows than this does not stay in the cache between steps.
MAX_CACHED_SIZE = 2000
# Fewer samples than this are buffered: adding them one by one to a matrix takes as long as adding them together.
MIN_SAMPLES_TO_MERGE = 8


def dense(size: int, every: int = 1, seed: int = 0, samples: int = MIN_SAMPLES_TO_MERGE) -> Blocks:
    """The full correction with its n×n matrix, for batches of ``samples``.

    A matrix that outgrows the cache, or would get few samples at a time, is written to every tenth time only.
    """
    merge_every = 10 if size > MAX_CACHED_SIZE or samples < MIN_SAMPLES_TO_MERGE else 1
    return Blocks([size], merge_every, every, seed)


class Blocks(Correction):
    """``η ← β (η − ζᵀ d)``, then ``ζ ← β ζ + (1-β) Z``, with ``Z`` cut into blocks of the given sizes.

    Neighbouring blocks of equal size are stored and multiplied together, ``[..., count, size, size]``. The stored
    matrices are ``ζᵀ``.

    Writing ``ζ`` takes longer than reading it. It decays by a number beside it, which is multiplied in when it is
    written next. With ``merge_every`` above 1, that many batches are buffered before they are added to it in one matrix
    product; until then ``d`` is multiplied with their samples. The result is the same.

    With ``every`` above 1, only every n-th batch enters ``ζ``, with n times the weight: over seeds an unbiased
    estimate, which needs per-sample gradients less often.
    """

    def __init__(self, sizes: Sequence[int], merge_every: int = 1, every: int = 1, seed: int = 0) -> None:
        self.merge_every = merge_every
        self.every = every
        self.seed = seed
        self._stretches: list[tuple[slice, int]] = []  # parameters of neighbouring blocks, and the size of each block
        start = 0
        for size in sizes:
            if self._stretches and self._stretches[-1][1] == size:
                before, _ = self._stretches.pop()
                self._stretches.append((slice(before.start, start + size), size))
            else:
                self._stretches.append((slice(start, start + size), size))
            start += size

    @property
    def period(self) -> int:
        return self.every * self.merge_every

    def choose(
        self, memory: Memory, samples: int, call: int = 0, device: torch.device | None = None
    ) -> Selection | None:
        if not is_chosen(memory.get("step", 0), self.every, self.seed):
            return None
        return Selection(None, float(self.every))

    def update(
        self,
        memory: Memory,
        batch: Linearization | None,
        displacement: Tensor,
        beta: float | Tensor,
        replay: Replay | None = None,
    ) -> Tensor:
        if "eta" not in memory:
            self._allocate(memory, displacement)
        else:
            self._move(memory, displacement)
        memory["step"] += 1
        memory["decay"] = _decayed(memory["decay"], beta)
        if memory.get("buffer"):
            decay_(memory["buffer"]["weight"], beta)
        if batch is not None:
            self._enter(memory, batch, beta)
        return decay_(memory["eta"], beta)

    def _allocate(self, memory: Memory, like: Tensor) -> None:
        memory["step"] = 0
        memory["decay"] = 1.0  # of ζ since it was last written
        memory["eta"] = torch.zeros_like(like)
        memory["zeta"] = [
            like.new_zeros(*like.shape[:-1], (span.stop - span.start) // size, size, size)
            for span, size in self._stretches
        ]
        if self.merge_every > 1:
            memory["buffer"] = {}

    def _enter(self, memory: Memory, batch: Linearization, beta: float | Tensor) -> None:
        v, u = batch.matrices()
        weight = batch.curvature * (1 - per_run(beta, batch.curvature))
        if "buffer" in memory:
            self._append(memory, weight, v, u)
        else:
            self._write(memory, weight, v, u)
        if batch.hessian is not None:
            self._merge(memory)
            for zeta, (span, size) in self._matrices(memory):
                part = batch.hessian[..., span, span].unflatten(-1, (-1, size)).unflatten(-3, (-1, size))
                own = part.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
                zeta.add_(own.mT * (1 - per_run(beta, own)))

    def _move(self, memory: Memory, displacement: Tensor) -> None:
        """``η ← η − ζᵀ d``."""
        buffer = memory.get("buffer")
        for zeta, (span, size) in self._matrices(memory):
            d = _cut(displacement, span, size).unsqueeze(-2)
            moved = d @ zeta.mT  # BLAS is ten times slower at a batch of matrices times columns
            moved = moved * per_run(memory["decay"], moved)
            if buffer:
                v, u = (_by_block(buffer[name], span, size) for name in "vu")
                moved += d @ u.mT * buffer["weight"][..., None, None, :] @ v
            memory["eta"][..., span].sub_(moved.flatten(-3))

    def _write(self, memory: Memory, weight: Tensor, v: Tensor, u: Tensor) -> None:
        """``ζ ← decay · ζ + Σ_k w_k u_k v_kᵀ``."""
        weighted = v * weight.unsqueeze(-1)
        for zeta, (span, size) in self._matrices(memory):
            _decay_and_add_outer(zeta, memory["decay"], _by_block(weighted, span, size), _by_block(u, span, size))
        memory["decay"] = _reset(memory["decay"])

    def _append(self, memory: Memory, weight: Tensor, v: Tensor, u: Tensor) -> None:
        """Buffer a batch; merge the buffer when it has no room for another one of this size."""
        buffer, samples = memory["buffer"], weight.shape[-1]
        if buffer and samples > buffer["weight"].shape[-1] - int(buffer["samples"]):
            self._merge(memory)
            if samples > buffer["weight"].shape[-1]:
                buffer.clear()  # the batches have become larger than the buffer
        if not buffer:
            room = samples * self.merge_every
            buffer["weight"] = weight.new_zeros(*weight.shape[:-1], room)
            buffer["v"], buffer["u"] = (v.new_zeros(*v.shape[:-2], room, v.shape[-1]) for _ in range(2))
            buffer["samples"] = torch.zeros(
                (), dtype=torch.int64
            )  # in the buffer; on the CPU, where positions are computed
        place = slice(int(buffer["samples"]), int(buffer["samples"]) + samples)
        buffer["v"][..., place, :], buffer["u"][..., place, :], buffer["weight"][..., place] = v, u, weight
        buffer["samples"] += samples
        if place.stop + samples > buffer["weight"].shape[-1]:
            self._merge(memory)

    def _merge(self, memory: Memory) -> None:
        """Add the buffer to ``ζ``."""
        buffer = memory.get("buffer")
        if buffer:
            self._write(memory, buffer["weight"], buffer["v"], buffer["u"])
            buffer["weight"].zero_()
            buffer["samples"].zero_()

    def _matrices(self, memory: Memory) -> Iterator[tuple[Tensor, tuple[slice, int]]]:
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


def _decayed(decay: float | Tensor, beta: float | Tensor) -> float | Tensor:
    """``decay · β``; in place if it is a tensor, so that steps can be recorded as a CUDA graph."""
    if isinstance(decay, Tensor):
        return decay.mul_(beta)
    return beta.clone().mul_(decay) if isinstance(beta, Tensor) else decay * beta


def _reset(decay: float | Tensor) -> float | Tensor:
    return decay.fill_(1.0) if isinstance(decay, Tensor) else 1.0
