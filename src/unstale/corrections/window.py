"""The full correction without its n×n matrix: remember recent samples, and how far their residuals have shifted.

    when a batch arrives    σ_k = 0, and u_k, v_k are kept
    as parameters move      σ_k ← σ_k + u_k · d
    so that                 η = −(1-β) Σ_i β^{t-i} Σ_k c_k σ_k v_k

The slots of a window are written in turn. It equals the dense form to rounding as long as nothing has been forgotten;
forgetting what is older than ``horizon`` leaves out a weight of ``β^horizon``, of η alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..momentum import decay_, per_run
from ..per_sample.gradients import Linearization
from . import slots
from .base import Correction, Memory


class Window(Correction):
    """Remembers ``horizon`` batches, the newest included.

    ``refresh`` names ages (1, 2, 4, …) at which a remembered batch is linearized again at the current parameters,
    so that no linearization is older than half the age of its batch. The caller then passes ``replay``, a function that
    linearizes the new batch again when called later.
    """

    def __init__(self, horizon: int, refresh: Sequence[int] = ()) -> None:
        self.horizon = horizon
        self.refresh = tuple(sorted(age for age in set(refresh) if 0 < age < horizon))
        self._past: list[tuple[Callable[[], Linearization] | None, Any]] = []  # newest first, with their weights

    def update(
        self,
        memory: Memory,
        batch: Linearization,
        displacement: Tensor,
        beta: float | Tensor,
        replay: Callable[[], Linearization] | None = None,
    ) -> Tensor:
        if memory:
            slots.move(memory, displacement, beta)
            for name in memory.keys() & {"slope", "base"}:
                decay_(memory[name], beta)
        self._make_room(memory, batch)
        fresh = 1 - per_run(beta, batch.slope)
        self._write(memory, batch, memory["batches"], fresh)
        if self.refresh:
            self._refresh(memory, replay, memory["batches"], fresh, beta)
        memory["batches"] += 1
        eta = slots.eta(memory)
        return eta.add_(memory["base"]) if "base" in memory else eta

    def joined(self, memories: Sequence[Memory]) -> Memory:
        if not memories[0]:
            return {}
        widths = [self._width(memory) for memory in memories]
        starts = [self.horizon * sum(widths[:rank]) for rank in range(len(widths))]
        # By batch, then by rank: the slots of a batch are adjacent.
        order = torch.cat(
            [
                start + number * width + torch.arange(width)
                for number in range(self.horizon)
                for start, width in zip(starts, widths, strict=True)
            ]
        ).to(memories[0]["shift"].device)
        found = {**super().joined(memories), **slots.joined(memories)}
        if "slope" in found:
            found["slope"] = torch.cat([memory["slope"] for memory in memories], -1)[order] / len(memories)
        return {**found, **slots.part_of(found, order, 1)}

    def part_of(self, memory: Memory, rank: int, size: int) -> Memory:
        if not memory:
            return {}
        width = self._width(memory)
        share = -(-width // size)
        own = torch.arange(rank * share, (rank + 1) * share)
        positions = torch.arange(self.horizon).unsqueeze(1) * width + own.clamp(max=width - 1)
        positions = positions.flatten().to(memory["shift"].device)
        found = {**memory, **slots.part_of(memory, positions, size)}
        if "slope" in found:
            found["slope"] = memory["slope"][positions] * size
        is_real = (own < width).repeat(self.horizon).to(positions.device)  # beyond, slots are empty
        for name in found.keys() & {"weight", "slope"}:
            found[name] = found[name] * is_real
        return found

    def _width(self, memory: Memory) -> int:
        """The number of slots of a batch."""
        return memory["shift"].shape[-1] // self.horizon

    def _make_room(self, memory: Memory, batch: Linearization) -> None:
        """Slots for batches like this one; slots that are there already grow to its size."""
        if not memory:
            slots.allocate(memory, batch, self.horizon * batch.samples)
            # How many came: a number on the device, so that steps can be recorded as a CUDA graph and replayed.
            memory["batches"] = torch.zeros((), dtype=torch.int64, device=batch.slope.device)
            if self.refresh:
                memory["slope"] = torch.zeros_like(memory["shift"])
                memory["base"] = batch.slope.new_zeros(*batch.slope.shape[:-1], batch.size)
            return
        have = self._width(memory)
        slots.fit(memory, batch)
        if batch.samples > have:
            memory["pieces"] = [
                piece.with_tensors(
                    [self._widen(t, axis, have, batch.samples) for t, axis in piece.with_axes()]
                ).as_dict()
                for piece in slots.as_batch(memory).pieces
            ]
            for name in memory.keys() & {"shift", "weight", "slope"}:
                memory[name] = self._widen(memory[name], memory[name].ndim - 1, have, batch.samples)

    def _widen(self, x: Tensor, axis: int, have: int, want: int) -> Tensor:
        parts = x.unflatten(axis, (self.horizon, have))
        shape = list(parts.shape)
        shape[axis + 1] = want - have
        return torch.cat([parts, parts.new_zeros(shape)], axis + 1).flatten(axis, axis + 1)

    def _write(self, memory: Memory, batch: Linearization, number: Tensor, factor: float | Tensor) -> None:
        """Put batch ``number`` into its slots, unshifted, weighed by ``factor``."""
        where = self._slots(memory, number)
        slots.write(memory, batch, where, batch.curvature * factor)
        if self.refresh:
            slope = pad(batch.slope * factor, (0, len(where) - batch.samples))
            memory["slope"].index_copy_(-1, where, slope)

    def _refresh(self, memory: Memory, replay: Callable | None, number: Tensor, fresh: Any, beta: Any) -> None:
        """Linearize the batches of the given ages again.

        ``base`` keeps what that changes: μ holds the gradient that a batch had when it came, while its shifts now
        count from where it was linearized last.
        """
        past = [(again, factor * per_run(beta, memory["slope"])) for again, factor in self._past[: self.horizon - 1]]
        self._past = [(replay, fresh), *past]
        for age in self.refresh:
            replay, factor = self._past[age] if age < len(self._past) else (None, 0.0)
            if replay is None:
                continue
            again = replay()
            self._make_room(memory, again)
            where = self._slots(memory, number - age)
            before = torch.zeros_like(memory["slope"])
            before.index_copy_(-1, where, memory["slope"].index_select(-1, where))
            memory["base"] += slots.as_batch(memory).gradient(before)
            self._write(memory, again, number - age, factor)
            memory["base"] -= again.gradient(again.slope * factor)

    def _slots(self, memory: Memory, number: Tensor) -> Tensor:
        """The slots that a batch is written to."""
        width = self._width(memory)
        return number % self.horizon * width + torch.arange(width, device=number.device)
