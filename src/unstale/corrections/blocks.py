"""Square blocks of the Taylor term along its diagonal; a single block is the paper's full correction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..momentum import decay_, per_run
from ..per_sample.gradients import Linearization
from .base import Correction, Memory, Replay, Selection, is_chosen

# A matrix of more rows than this does not stay in the cache between steps.
MAX_CACHED_SIZE = 2000
# Fewer samples than this are buffered: adding them one by one to a matrix takes as long as adding them together.
MIN_SAMPLES_TO_MERGE = 8


def dense(size: int, every: int = 1, seed: int = 0, samples: int = MIN_SAMPLES_TO_MERGE, followed: int = 0) -> Blocks:
    """The full correction with its n×(n+p) matrix, for batches of ``samples``; ``followed`` is p.

    A matrix that outgrows the cache, or would get few samples at a time, is written to every tenth time only.
    """
    merge_every = 10 if size > MAX_CACHED_SIZE or samples < MIN_SAMPLES_TO_MERGE else 1
    return Blocks([size], merge_every, every, seed, [followed] if followed else ())


class Blocks(Correction):
    """``η ← β (η − ζᵀ d)``, then ``ζ ← β ζ + (1-β) Z``, with ``Z`` cut into blocks of the given sizes.

    Neighbouring blocks of equal size are stored and multiplied together, ``[..., count, size, size]``. The stored
    matrices are ``ζᵀ``. If networks are followed, ``followed`` has the number of further columns of each block.

    Writing ``ζ`` takes longer than reading it. It decays by a number beside it, which is multiplied in when it is
    written next. With ``merge_every`` above 1, that many batches are buffered before they are added to it in one matrix
    product; until then ``d`` is multiplied with their samples. The result is the same.

    With ``every`` above 1, only every n-th batch enters ``ζ``, with n times the weight: over seeds an unbiased
    estimate, which needs per-sample gradients less often.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        merge_every: int = 1,
        every: int = 1,
        seed: int = 0,
        followed: Sequence[int] = (),
    ) -> None:
        self.merge_every = merge_every
        self.every = every
        self.seed = seed
        self.followed = sum(followed)
        self._stretches = _stretches(sizes, followed)

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
        memory["eta"] = self.no_eta(like)
        memory["zeta"] = [like.new_zeros(*like.shape[:-1], *shape) for shape in self.shapes]
        if self.merge_every > 1:
            memory["buffer"] = {}

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Of the stored matrices."""
        return [
            ((own.span.stop - own.span.start) // own.size, own.size, own.size + copy.size)
            for own, copy in self._stretches
        ]

    def _enter(self, memory: Memory, batch: Linearization, beta: float | Tensor) -> None:
        v, u = batch.matrices()
        weight = batch.curvature * (1 - per_run(beta, batch.curvature))
        if "buffer" in memory:
            self._append(memory, weight, v, u)
        else:
            self._write(memory, weight, v, u)
        if batch.hessian is not None:
            self._merge(memory)
            for zeta, (own, _) in self._matrices(memory):
                part = batch.hessian[..., own.span, own.span].unflatten(-1, (-1, own.size))
                block = part.unflatten(-3, (-1, own.size)).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
                zeta[..., : own.size].add_(block.mT * (1 - per_run(beta, block)))

    def _move(self, memory: Memory, displacement: Tensor) -> None:
        """``η ← η − ζᵀ d``."""
        buffer = memory.get("buffer")
        for zeta, (own, copy) in self._matrices(memory):
            d = _cut(displacement, own, copy).unsqueeze(-2)
            moved = d @ zeta.mT  # BLAS is ten times slower at a batch of matrices times columns
            moved = moved * per_run(memory["decay"], moved)
            if buffer:
                v, u = _by_block(buffer["v"], own), _by_block(buffer["u"], own, copy)
                moved += d @ u.mT * buffer["weight"][..., None, None, :] @ v
            memory["eta"][..., own.span].sub_(moved.flatten(-3))

    def _write(self, memory: Memory, weight: Tensor, v: Tensor, u: Tensor) -> None:
        """``ζ ← decay · ζ + Σ_k w_k u_k v_kᵀ``."""
        weighted = v * weight.unsqueeze(-1)
        for zeta, (own, copy) in self._matrices(memory):
            _decay_and_add_outer(zeta, memory["decay"], _by_block(weighted, own), _by_block(u, own, copy))
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
            buffer["v"], buffer["u"] = (x.new_zeros(*x.shape[:-2], room, x.shape[-1]) for x in (v, u))
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

    def joined(self, memories: Sequence[Memory]) -> Memory:
        for memory in memories:
            self._merge(memory)
            for zeta in memory["zeta"]:  # which ranks may have written at different steps
                decay_(zeta, memory["decay"])
            memory["decay"] = _reset(memory["decay"])
        found = super().joined(memories)
        return {**found, "buffer": {}} if "buffer" in found else found

    def _matrices(self, memory: Memory) -> Iterator[tuple[Tensor, tuple[Stretch, Stretch]]]:
        return zip(memory["zeta"], self._stretches, strict=True)


class Stretch(NamedTuple):
    """Neighbouring blocks: their parameters, and the size of each block."""

    span: slice
    size: int


NO_PARAMETERS = Stretch(slice(0, 0), 0)


def _stretches(sizes: Sequence[int], followed: Sequence[int]) -> list[tuple[Stretch, Stretch]]:
    """Neighbours of equal size, and the followed parameters that belong to the same blocks."""
    found: list[tuple[Stretch, Stretch]] = []
    start, copy_start = 0, sum(sizes)
    for size, copy_size in zip(sizes, followed or [0] * len(sizes), strict=True):
        before = (start, copy_start)
        if found and (found[-1][0].size, found[-1][1].size) == (size, copy_size):
            own, copy = found.pop()
            before = (own.span.start, copy.span.start)
        start, copy_start = start + size, copy_start + copy_size
        found.append((Stretch(slice(before[0], start), size), Stretch(slice(before[1], copy_start), copy_size)))
    return found


def _cut(x: Tensor, own: Stretch, copy: Stretch = NO_PARAMETERS) -> Tensor:
    """``[..., n] → [..., count, size]``, with the followed parameters of the same blocks behind."""
    parts = [x[..., stretch.span].unflatten(-1, (-1, stretch.size)) for stretch in (own, copy) if stretch.size]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _by_block(samples: Tensor, own: Stretch, copy: Stretch = NO_PARAMETERS) -> Tensor:
    """``[..., k, n] → [..., count, k, size]``."""
    return _cut(samples, own, copy).movedim(-3, -2)


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
