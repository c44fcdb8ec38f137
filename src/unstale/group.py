"""One parameter group at work: its gradients, its pending batches, its correction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import corrections
from .block import Block
from .gradients import Gradients
from .inputs import Evaluated, Request
from .linearize import Linearizer
from .rows import batched_backward
from .samples import Linearization, Piece, concatenated

State = dict[str, Any]


class Group:
    """What lives beside a parameter group from ``backward`` to ``step``. Nothing here needs saving but the batches
    that an oracle evaluates again, which are functions and cannot be."""

    def __init__(self, settings: dict[str, Any], needs_samples: bool) -> None:
        self.settings = settings
        # Blocks of a given size are cut in the group's own order.
        self.block = Block(settings["params"], sort=settings["correction"] != "blocks")
        self.gradients = Gradients(self.block)
        self.corrects = settings["correction"] != "none"
        self.is_oracle = settings["correction"] == "oracle"
        self.needs_samples = needs_samples or (self.corrects and not self.is_oracle)
        self.needs_batch = self.is_oracle or bool(settings["refresh"])
        self.beta: float = settings["beta"] if "beta" in settings else settings["betas"][0]
        self._correction: Any = None
        self._pending: list[Any] = []  # linearisations, or gradients for the oracle
        self._point: Tensor | None = None

    @property
    def is_hooked(self) -> bool:
        """Whether someone asked autograd to call back when these gradients arrive; then autograd must bring them."""
        return any(p._backward_hooks or p._post_accumulate_grad_hooks for p in self.block.parameters)

    # --------------------------------------------------------------- backward

    def begin(self) -> None:
        """Note where the parameters are as a step's first batch is linearised."""
        if self.corrects:
            self._point = self.block.point()

    def take(self, seen: Evaluated, pieces: tuple[Piece, ...] | None, reached: set[int]) -> None:
        """Remember a batch, and fill ``.grad`` from its samples where autograd need not."""
        if pieces is not None:
            batch = self.linearization(seen, pieces)
            self._pending.append(batch)
            if not self.is_hooked:
                self.gradients.add(batch.gradient(batch.slope), reached)
        elif self.is_oracle:
            self._pending.append(self.gradient(seen))

    def forget(self) -> None:
        self._pending.clear()
        self._point = None

    def linearization(self, seen: Evaluated, pieces: tuple[Piece, ...]) -> Linearization:
        where = dict(device=self.block.device, dtype=self.block.dtype)
        hessian = self._hessian(seen) if self.settings["second_order"] else None
        return Linearization(pieces, seen.slope.to(**where), seen.curvature.to(**where), hessian)

    def gradient(self, seen: Evaluated) -> Tensor:
        """The semi-gradient of a batch, flat."""
        found = torch.autograd.grad(
            seen.prediction, self._trainable(), seen.slope, retain_graph=True, allow_unused=True
        )
        return self._flat(found)

    def _hessian(self, seen: Evaluated) -> Tensor:
        """``Σ_k slope_k ∇²f_k``, the part of the Taylor term that is usually left out."""
        trainable = self._trainable()
        weighted = (seen.prediction * seen.slope).sum()
        first = torch.autograd.grad(weighted, trainable, create_graph=True, allow_unused=True)
        flat = torch.cat(
            [torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in zip(trainable, first)]
        )
        identity = torch.eye(len(flat), dtype=flat.dtype, device=flat.device)
        rows = batched_backward(flat, trainable, identity) if flat.requires_grad else [None] * len(trainable)
        parts = [
            torch.zeros(len(flat), p.numel()).to(flat) if row is None else row.flatten(1)
            for p, row in zip(trainable, rows)
        ]
        square = torch.cat(parts, 1).detach().to(self.block.device, self.block.dtype)
        if len(trainable) == len(self.block.parameters):
            return square
        own = torch.cat(
            [torch.arange(s.start, s.stop) for p, s in zip(self.block.parameters, self.block.spans) if p.requires_grad]
        )
        whole = square.new_zeros(self.block.size, self.block.size)
        whole[own.unsqueeze(1), own.unsqueeze(0)] = square
        return whole

    def _trainable(self) -> list[Tensor]:
        return [p for p in self.block.parameters if p.requires_grad]

    def _flat(self, found: Any) -> Tensor:
        by_id = dict(zip(map(id, self._trainable()), found, strict=True))
        parts = (by_id.get(id(p)) for p in self.block.parameters)
        return self.block.flat(
            torch.zeros_like(p) if part is None else part for p, part in zip(self.block.parameters, parts, strict=True)
        )

    # ------------------------------------------------------------------- step

    def batch(self, gradient: Tensor) -> tuple[Any, Tensor | float]:
        """The pending batches as one, scaled as ``.grad`` was scaled since, and that scale."""
        if not self._pending:
            return None, 1.0
        merged = concatenated(self._pending) if self.needs_samples else sum(self._pending)
        if self.gradients.untouched():
            return merged, 1.0
        own = merged.gradient(merged.slope) if self.needs_samples else merged
        scale = self.gradients.scale(own, gradient)
        return (merged.scaled(scale) if self.needs_samples else merged * scale), scale

    def eta(
        self, state: State, batch: Any, scale: Tensor | float, requests: list[Request], linearizer: Linearizer
    ) -> Tensor:
        """Tell the correction how far the parameters have moved, and about the new batch."""
        assert self._point is not None
        if self._correction is None:
            if "correction" not in state:
                samples = 0 if self.is_oracle else batch.samples
                state["correction"] = corrections.resolve(self.settings, self.block.size, samples, self.beta)
            lengths = [p.numel() for p in self.block.parameters]
            self._correction = corrections.build(state["correction"], self.settings, lengths, self.beta)
        displacement = self._point - state["anchor"] if "anchor" in state else torch.zeros_like(self._point)
        if self.settings["recursion"] == "literal":
            displacement = state.get("literal", displacement)
        state["anchor"] = self._point
        if self.is_oracle:
            gradient = batch.gradient(batch.slope) if self.needs_samples else batch
            replay = _summed(requests, self.gradient, scale)
            return self._correction.update(state["memory"], (gradient, replay), displacement, self.beta)
        if self.settings["refresh"]:

            def linearized(seen: Evaluated) -> Linearization:
                found = linearizer.linearize(seen.prediction, seen.target, [self.block])
                return self.linearization(seen, found.pieces[0])

            def replay() -> Linearization:
                return concatenated([linearized(request.again()) for request in requests]).scaled(scale)

            return self._correction.update(state["memory"], batch, displacement, self.beta, replay)
        return self._correction.update(state["memory"], batch, displacement, self.beta)


def _summed(
    requests: list[Request], gradient: Callable[[Evaluated], Tensor], scale: Tensor | float
) -> Callable[[], Tensor]:
    def replay() -> Tensor:
        return sum(gradient(request.again()) for request in requests) * scale  # type: ignore[return-value]

    return replay
