"""The ``.grad`` of a block of parameters: filling it as autograd would, and seeing what was done to it since."""

from __future__ import annotations

import torch
from torch import Tensor

from .block import Block


class Gradients:
    """Fills ``.grad`` with views of one flat tensor where nothing is there yet, and keeps a sample of what it left.
    (A version counter would not do: clipping through ``.data`` and mixed precision's unscaling do not raise it.)"""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._flat: Tensor | None = None
        self._views: list[Tensor] = []
        self._filled: list[Tensor | None] = []  # of the views, those that are in `.grad`
        self._stride = -(-block.size // 4096)
        self._left: Tensor | None = None
        self._left_something = torch.zeros((), dtype=torch.bool)

    def add(self, gradient: Tensor, reached: set[int]) -> None:
        """``.grad += gradient`` for the parameters whose ids are in ``reached``."""
        parameters = self._block.parameters
        if self._flat is not None and self._in_place():
            self._flat.add_(gradient)
            self._fill(reached)
        elif self._block.is_uniform and all(p.grad is None for p in parameters):
            self._flat = gradient
            self._views = self._block.split(gradient)
            self._filled = [None] * len(self._views)
            self._fill(reached)
        else:
            self._flat = self._left = None
            for parameter, part in zip(parameters, self._block.split(gradient), strict=True):
                if id(parameter) in reached:
                    part = part.to(parameter.device, parameter.dtype)
                    parameter.grad = part.clone() if parameter.grad is None else parameter.grad.add_(part)

    def _fill(self, reached: set[int]) -> None:
        for place, (parameter, view) in enumerate(zip(self._block.parameters, self._views, strict=True)):
            if id(parameter) in reached and self._filled[place] is None:
                parameter.grad = self._filled[place] = view
        assert self._flat is not None
        self._left = self._flat[:: self._stride].clone()
        self._left_something = self._left.any()

    def read(self) -> Tensor:
        """The gradients as they are now, flat."""
        if self._flat is not None and self._in_place() and not any(view is None for view in self._filled):
            return self._flat
        return self._block.flat(torch.zeros_like(p) if p.grad is None else p.grad for p in self._block.parameters)

    def untouched(self) -> bool:
        """Whether ``.grad`` is what ``add`` left there. A sample tells: scaling leaves no number as it was but 0."""
        if self._flat is None or self._left is None or not self._in_place():
            return False
        return torch.equal(self._flat[:: self._stride], self._left) and bool(self._left_something)

    def scale(self, own: Tensor, now: Tensor) -> Tensor:
        """By how much gradients were scaled since ``add`` left ``own``: by clipping, unscaling, averaging.

        Other losses may have added to ``.grad`` as well, but seldom to every tensor: the factor is read off the
        tensors that still point where they did. NaN if none does: nothing is known.
        """
        # Divided by their largest numbers first: under a loss scale their squares may overflow.
        sizes = [x.abs().max().clamp_min(torch.finfo(x.dtype).tiny) for x in (own, now)]
        pairs = list(
            zip(*(self._block.split(x / size) for x, size in zip((own, now), sizes, strict=True)), strict=True)
        )

        def products(left: int, right: int) -> Tensor:
            return torch.stack([torch.dot(pair[left].flatten(), pair[right].flatten()) for pair in pairs]).double()

        both, before, after = products(0, 1), products(0, 0), products(1, 1)
        parallel = (both > 0) & (both.square() >= (1 - 1e-5) * before * after)
        ratio = (both * parallel).sum() / (before * parallel).sum()
        return ratio * sizes[1].double() / sizes[0].double()

    def _in_place(self) -> bool:
        return all(p.grad is view for p, view in zip(self._block.parameters, self._filled, strict=True))
