"""Past samples in slots: their gradients, their weights, and how far their residuals have shifted since they came.

A memory of slots is one long batch, and the full correction is a sum over it::

    as parameters move      σ_k ← σ_k + u_k · d
    so that                 η = −Σ_k w_k σ_k v_k

:class:`~unstale.corrections.window.Window` and :class:`~unstale.corrections.reservoir.Reservoir` decide which samples
are kept, and with which weights ``w_k``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ..momentum import decay_
from ..per_sample.gradients import Linearization, SampleGradients, matched, merged
from .base import Memory


def allocate(memory: Memory, batch: Linearization, slots: int) -> None:
    """Make ``slots`` empty slots for samples like those of ``batch``."""
    memory["shift"] = batch.slope.new_zeros(*batch.slope.shape[:-1], slots)
    memory["weight"] = batch.slope.new_zeros(*batch.slope.shape[:-1], slots)
    memory["pieces"] = [
        piece.with_tensors([_empty_slots(t, axis, slots) for t, axis in piece.with_axes()]).as_dict()
        for piece in batch.pieces
    ]
    if batch.followed:
        memory["followed"] = batch.followed


def as_batch(memory: Memory) -> Linearization:
    """All slots as one long batch."""
    pieces = tuple(SampleGradients.from_dict(plain) for plain in memory["pieces"])
    return Linearization(pieces, memory["weight"], memory["weight"], followed=memory.get("followed", 0))


def move(memory: Memory, displacement: Tensor, beta: float | Tensor) -> None:
    """Shift the residuals by a displacement of the parameters, and let the weights decay."""
    memory["shift"] += as_batch(memory).shift(displacement)
    decay_(memory["weight"], beta)


def eta(memory: Memory) -> Tensor:
    """``η = −Σ_k w_k σ_k v_k``."""
    return as_batch(memory).gradient((memory["weight"] * memory["shift"]).neg_())


def fit(memory: Memory, batch: Linearization) -> None:
    """Convert the pieces in memory so that samples like those of ``batch`` can be written to them."""
    memory["pieces"] = [have.as_dict() for have, _ in matched(as_batch(memory).pieces, batch.pieces)]


def write(memory: Memory, batch: Linearization, slots: Tensor, weight: Tensor) -> None:
    """Write the samples of ``batch`` to the given slots, unshifted; slots beyond its samples become empty.

    Args:
        memory: slots that fit the batch.
        batch: at most as many samples as there are ``slots``.
        slots: their positions.
        weight: of the samples, ``[..., k]``.
    """
    missing = len(slots) - batch.samples
    for have, new in matched(as_batch(memory).pieces, batch.pieces):
        for (place, axis), x in zip(have.with_axes(), new.with_samples(len(slots)).tensors, strict=True):
            place.index_copy_(axis, slots, x)
    if missing:
        weight = _padded_weight(weight, missing)
    memory["weight"].index_copy_(-1, slots, weight)
    memory["shift"].index_fill_(-1, slots, 0.0)


def joined(memories: Sequence[Memory]) -> Memory:
    """The slots of several ranks one after another. η is their mean over ranks, so weights are divided."""
    batch = merged([_with_shifts(memory) for memory in memories])
    assert isinstance(batch, Linearization)
    pieces = [piece.as_dict() for piece in batch.pieces]
    return {"weight": batch.slope / len(memories), "shift": batch.curvature, "pieces": pieces}


def part_of(memory: Memory, positions: Tensor, ranks: int) -> Memory:
    """The slots at the given positions, for one of ``ranks`` ranks that have all of them together."""
    batch = _with_shifts(memory).select(positions)
    pieces = [piece.as_dict() for piece in batch.pieces]
    return {"weight": batch.slope * ranks, "shift": batch.curvature, "pieces": pieces}


def _with_shifts(memory: Memory) -> Linearization:
    """All slots, with shifts in place of curvatures."""
    return replace(as_batch(memory), curvature=memory["shift"])


def _padded_weight(weight: Tensor, missing: int) -> Tensor:
    padded = weight.new_zeros(*weight.shape[:-1], weight.shape[-1] + missing)
    padded[..., : weight.shape[-1]] = weight
    return padded


def _empty_slots(x: Tensor, axis: int, slots: int) -> Tensor:
    shape = list(x.shape)
    shape[axis] = slots
    return x.new_zeros(shape)
