"""The ``.grad`` of a block of parameters: filling it as autograd would, and seeing what was done to it since."""

from __future__ import annotations

import torch
from torch import Tensor

from .block import Block


class Gradients:
    """Fills ``.grad`` with views of one flat tensor where nothing is there yet. Views share its version counter,
    so one number tells whether anybody has touched any of them."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._flat: Tensor | None = None
        self._views: list[Tensor | None] = []
        self._version = 0

    def add(self, gradient: Tensor, reached: set[int]) -> None:
        """``.grad += gradient`` for the parameters whose ids are in ``reached``."""
        parameters = self._block.parameters
        if self._flat is not None and self._in_place():
            self._flat.add_(gradient)
        elif self._block.is_plain and all(p.grad is None for p in parameters):
            views = self._block.split(gradient)
            self._flat = gradient
            self._views = [view if id(p) in reached else None for p, view in zip(parameters, views, strict=True)]
            for parameter, view in zip(parameters, self._views, strict=True):
                parameter.grad = view
        else:
            self._flat = None
            for parameter, part in zip(parameters, self._block.split(gradient), strict=True):
                if id(parameter) in reached:
                    part = part.to(parameter.device, parameter.dtype)
                    parameter.grad = part.clone() if parameter.grad is None else parameter.grad.add_(part)
        self._version = self._flat._version if self._flat is not None else 0

    def read(self) -> Tensor:
        """The gradients as they are now, flat."""
        if self._flat is not None and self._in_place() and not any(view is None for view in self._views):
            return self._flat
        return self._block.flat(torch.zeros_like(p) if p.grad is None else p.grad for p in self._block.parameters)

    def untouched(self) -> bool:
        """Whether ``.grad`` is surely what ``add`` left there."""
        return self._flat is not None and self._in_place() and self._flat._version == self._version

    def scale(self, own: Tensor, now: Tensor) -> Tensor:
        """By how much gradients were scaled since ``add`` left ``own``: by clipping, unscaling, averaging.

        Other losses may have added to ``.grad`` as well, but seldom to every tensor: the factor is read off the
        tensors that still point where they did. If none does, nothing is known and the answer is 1.
        """
        segments = torch.repeat_interleave(
            torch.arange(len(self._block.parameters), device=own.device),
            torch.tensor([p.numel() for p in self._block.parameters], device=own.device),
        )

        def by_tensor(x: Tensor) -> Tensor:
            return torch.zeros(len(self._block.parameters), dtype=x.dtype, device=x.device).index_add_(0, segments, x)

        both, before, after = by_tensor(own * now), by_tensor(own * own), by_tensor(now * now)
        parallel = (both > 0) & (both.square() >= (1 - 1e-5) * before * after)
        factor = (both * parallel).sum() / (before * parallel).sum()
        return torch.where(parallel.any(), factor, torch.ones_like(factor))

    def _in_place(self) -> bool:
        return all(p.grad is view for p, view in zip(self._block.parameters, self._views, strict=True))
