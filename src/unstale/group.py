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
from .samples import Batch, Linearization, Piece, Total, merged

State = dict[str, Any]


class Group:
    """What lives beside a parameter group from ``backward`` to ``step``. Nothing here needs saving but the batches
    that an oracle evaluates again, which are functions and cannot be."""

    def __init__(self, settings: dict[str, Any], linearizer: Linearizer, needs_samples: bool) -> None:
        self.settings = settings
        # Blocks of a given size are cut in the group's own order.
        self.block = Block(settings["params"], sort=settings["correction"] != "blocks")
        self.gradients = Gradients(self.block)
        self.corrects = settings["correction"] != "none"
        self.is_oracle = settings["correction"] == "oracle"
        self.needs_samples = needs_samples or (self.corrects and not self.is_oracle)
        self.needs_function = self.is_oracle or bool(settings["refresh"])
        self._linearizer = linearizer
        self._correction: corrections.Correction | None = None
        self._pending: list[Batch] = []
        self._point: Tensor | None = None
        # Vectors that are free between steps: large allocations cost as much as the arithmetic.
        self._old_point: Tensor | None = None
        self.scratch: Tensor | None = None

    @property
    def beta(self) -> float:
        """``β``, which a scheduler may have changed since."""
        return self.settings["beta"] if "beta" in self.settings else self.settings["betas"][0]

    @property
    def is_ready(self) -> bool:
        """Whether it has what its step needs. A group that was added since the batch came has not."""
        return bool(self._pending) or not self.needs_batch

    @property
    def needs_batch(self) -> bool:
        """Whether it cannot step on a gradient alone."""
        return self.corrects or self.needs_samples

    @property
    def is_hooked(self) -> bool:
        """Whether someone asked autograd to call back when these gradients arrive; then autograd must bring them."""
        return any(p._backward_hooks or p._post_accumulate_grad_hooks for p in self.block.parameters)

    # --------------------------------------------------------------- backward

    def begin(self) -> None:
        """Note where the parameters are as a step's first batch is linearised."""
        self.block.check()
        if self.corrects:
            self._point, self._old_point = self.block.point(out=self._old_point), None

    def take(self, seen: Evaluated, pieces: tuple[Piece, ...] | None, reached: set[int]) -> None:
        """Remember a batch, and fill ``.grad`` from its samples where autograd need not."""
        if pieces is not None:
            batch = self._linearization(seen, pieces)
            self._pending.append(batch)
            if not self.is_hooked:
                self.gradients.add(batch.semi_gradient(), reached)
        elif self.is_oracle:
            self._pending.append(self._look(seen))

    def forget(self) -> None:
        self._pending.clear()
        self._point = None

    def _look(self, seen: Evaluated) -> Batch:
        """What this group wants to know of a batch."""
        if self.needs_samples:
            found = self._linearizer.linearize(seen.prediction, seen.target, [self.block])
            return self._linearization(seen, found.pieces[0])
        trainable = [p for p in self.block.parameters if p.requires_grad]
        with self.block.without_hooks():
            gradients = torch.autograd.grad(
                seen.prediction, trainable, seen.slope, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        by_id = dict(zip(map(id, trainable), gradients, strict=True))
        return Total(self.block.flat(by_id.get(id(p), torch.zeros_like(p)) for p in self.block.parameters))

    def _linearization(self, seen: Evaluated, pieces: tuple[Piece, ...]) -> Linearization:
        slope, curvature = (x.to(self.block.device, self.block.dtype) for x in (seen.slope, seen.curvature))
        hessian = _hessian(seen, self.block) if self.settings["second_order"] else None
        return Linearization(pieces, slope, curvature, hessian)

    # ------------------------------------------------------------------- step

    def scale(self, gradient: Tensor) -> Tensor | None:
        """By how much ``.grad`` was scaled since it was filled; NaN if that cannot be told, None if it was not."""
        if not self._pending or self.gradients.untouched():
            return None
        return self.gradients.scale(self._merged().semi_gradient(), gradient)

    def batch(self, scale: Tensor | float) -> Any:
        """The pending batches as one, scaled as ``.grad`` was."""
        if not self._pending:
            return None
        batch = self._merged()
        return batch if isinstance(scale, float) else batch.scaled(scale.to(self.block.device, self.block.dtype))

    def _merged(self) -> Batch:
        self._pending = [merged(self._pending)]
        return self._pending[0]

    def eta(self, state: State, batch: Any, scale: Tensor | float, requests: list[Request]) -> Tensor:
        """Tell the correction how far the parameters have moved, and about the new batch."""
        assert self._point is not None
        if self._correction is None:
            if "correction" not in state:
                state["correction"] = corrections.resolve(self.settings, self.block.size, batch, self.beta)
            lengths = [p.numel() for p in self.block.parameters]
            self._correction = corrections.build(state["correction"], self.settings, lengths, self.beta)
        if self.scratch is None:
            self.scratch = torch.empty_like(self._point)
        displacement = torch.sub(self._point, state.get("anchor", self._point), out=self.scratch)
        self._old_point, state["anchor"] = state.get("anchor"), self._point
        if self.settings["recursion"] == "literal":
            displacement = state.get("literal", displacement)
        replay = self._replay(requests, scale) if self.needs_function else None
        return self._correction.update(state["memory"], batch, displacement, self.beta, replay)

    def _replay(self, requests: list[Request], scale: Tensor | float) -> Callable[[], Any]:
        return lambda: merged([self._look(request.again()) for request in requests]).scaled(scale)


def _hessian(seen: Evaluated, block: Block) -> Tensor:
    """``Σ_k slope_k ∇²f_k``, the part of the Taylor term that is usually left out."""
    trainable = [p for p in block.parameters if p.requires_grad]
    where = torch.cat(
        [torch.arange(s.start, s.stop) for p, s in zip(block.parameters, block.spans, strict=True) if p.requires_grad]
    )
    with torch.enable_grad():
        first = torch.autograd.grad(
            seen.prediction, trainable, seen.slope, create_graph=True, allow_unused=True, materialize_grads=True
        )
        flat = torch.cat([part.flatten() for part in first])
    whole = torch.zeros(block.size, block.size, dtype=block.dtype, device=block.device)
    if flat.requires_grad:
        identity = torch.eye(len(flat), dtype=flat.dtype, device=flat.device)
        rows = batched_backward(flat, trainable, identity)
        parts = [
            torch.zeros(len(flat), p.numel()) if r is None else r.flatten(1)
            for p, r in zip(trainable, rows, strict=True)
        ]
        square = torch.cat([part.detach().to(whole) for part in parts], 1)
        whole[where.unsqueeze(1), where] = square
    return whole
