"""The full correction without its n×n matrix: remember recent samples, and how far their residuals have shifted.

    when a batch arrives    σ_k = 0, and u_k, v_k are kept
    as parameters move      σ_k ← σ_k + u_k · d
    so that                 η = −(1-β) Σ_i β^{t-i} Σ_k c_k σ_k v_k

A window is one long batch whose slots are written in turn. It equals the dense form to rounding as long as nothing
has been forgotten; forgetting what is older than ``horizon`` leaves out a weight of ``β^horizon``, of η alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..running import decay_, over
from ..samples import Linearization, Piece, aligned


class Window:
    """Remembers ``horizon`` batches, the newest included.

    ``refresh`` names ages (1, 2, 4, …) at which a remembered batch is linearised again where the parameters are now,
    so that nothing was linearised longer ago than half its age. The caller then passes ``replay``, a function that
    linearises the new batch again when called later.
    """

    def __init__(self, horizon: int, refresh: Sequence[int] = ()) -> None:
        self.horizon = horizon
        self.refresh = tuple(sorted(age for age in set(refresh) if 0 < age < horizon))
        self._replays: list[Callable[[], Linearization] | None] = []

    def update(
        self,
        memory: dict[str, Any],
        batch: Linearization,
        displacement: Tensor,
        beta: float | Tensor,
        replay: Callable[[], Linearization] | None = None,
    ) -> Tensor:
        if memory:
            memory["shift"] += _ring(memory).shift(displacement)
            for name in ("weight", "slope", "base"):
                if name in memory:
                    decay_(memory[name], beta)
        self._make_room(memory, batch)
        fresh = 1 - over(beta, batch.slope)
        self._write(memory, batch, memory["newest"].add_(1), fresh)
        if self.refresh:
            self._refresh(memory, replay, fresh, beta)
        eta = _ring(memory).gradient(memory["weight"] * memory["shift"]).neg_()
        return eta.add_(memory["base"]) if "base" in memory else eta

    def _make_room(self, memory: dict[str, Any], batch: Linearization) -> None:
        """Slots for batches like this one; slots that are there already grow to its size."""
        if not memory:
            memory["shift"] = _slots_like(batch.slope, batch.slope.ndim - 1, self.horizon)
            memory["weight"] = torch.zeros_like(memory["shift"])
            memory["newest"] = torch.full((), -1, dtype=torch.int64, device=batch.slope.device)
            memory["pieces"] = [
                piece.with_tensors([_slots_like(t, axis, self.horizon) for t, axis in piece.with_axes()]).as_dict()
                for piece in batch.pieces
            ]
            if self.refresh:
                memory["slope"] = torch.zeros_like(memory["shift"])
                memory["base"] = batch.slope.new_zeros(*batch.slope.shape[:-1], batch.size)
            return
        have = memory["shift"].shape[-1] // self.horizon
        for place, (ring, new) in enumerate(zip(_ring(memory).pieces, batch.pieces, strict=True)):
            fitting, _ = aligned(ring, new)
            if batch.samples > have:
                fitting = fitting.with_tensors([self._widen(t, a, have, batch.samples) for t, a in fitting.with_axes()])
            if fitting is not ring:
                memory["pieces"][place] = fitting.as_dict()
        if batch.samples > have:
            for name in memory.keys() & {"shift", "weight", "slope"}:
                memory[name] = self._widen(memory[name], memory[name].ndim - 1, have, batch.samples)

    def _widen(self, x: Tensor, axis: int, have: int, want: int) -> Tensor:
        slots = x.unflatten(axis, (self.horizon, have))
        shape = list(slots.shape)
        shape[axis + 1] = want - have
        return torch.cat([slots, slots.new_zeros(shape)], axis + 1).flatten(axis, axis + 1)

    def _write(self, memory: dict[str, Any], batch: Linearization, number: Tensor, factor: float | Tensor) -> None:
        """Put a batch into the slot of its number, unshifted, weighed by ``factor``."""
        samples = self._slot(memory, number)
        width = len(samples)
        for ring, piece in zip(_ring(memory).pieces, batch.pieces, strict=True):
            _, piece = aligned(ring, piece)
            for (slots, axis), new in zip(ring.with_axes(), piece.with_samples(width).tensors, strict=True):
                slots.index_copy_(axis, samples, new)
        weight = pad(batch.curvature * factor, (0, width - batch.samples))
        memory["weight"].index_copy_(-1, samples, weight)
        memory["shift"].index_fill_(-1, samples, 0)
        if self.refresh:
            memory["slope"].index_copy_(-1, samples, pad(batch.slope * factor, (0, width - batch.samples)))

    def _refresh(self, memory: dict[str, Any], replay: Callable | None, fresh: Any, beta: Any) -> None:
        """Linearise the batches of chosen ages again.

        ``base`` keeps what that changes: μ holds the gradient that a batch had when it came, while its shifts now
        count from where it was linearised last.
        """
        self._replays.insert(0, replay)
        del self._replays[self.horizon :]
        for age in self.refresh:
            replay = self._replays[age] if age < len(self._replays) else None
            if replay is None:
                continue
            again = replay()
            factor = fresh * beta**age
            number = memory["newest"] - age
            samples = self._slot(memory, number)
            before = torch.zeros_like(memory["slope"])
            before.index_copy_(-1, samples, memory["slope"].index_select(-1, samples))
            memory["base"] += _ring(memory).gradient(before)
            self._write(memory, again, number, factor)
            memory["base"] -= again.gradient(again.slope * factor)

    def _slot(self, memory: dict[str, Any], number: Tensor) -> Tensor:
        """The samples of the slot that batch ``number`` is written to."""
        width = memory["shift"].shape[-1] // self.horizon
        return number % self.horizon * width + torch.arange(width, device=number.device)


def _ring(memory: dict[str, Any]) -> Linearization:
    """The window as one long batch."""
    pieces = tuple(Piece.from_dict(plain) for plain in memory["pieces"])
    return Linearization(pieces, memory["weight"], memory["weight"])


def _slots_like(x: Tensor, axis: int, horizon: int) -> Tensor:
    shape = list(x.shape)
    shape[axis] *= horizon
    return x.new_zeros(shape)
