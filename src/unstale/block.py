"""Parameters that are corrected together, seen as one flat vector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class Block:
    """The parameters of one group, with the dtype and device in which they are followed.

    ``sort`` puts vectors (biases, norms) before matrices: gradients that are written out then lie side by side.
    """

    def __init__(self, parameters: Sequence[Tensor], sort: bool = False) -> None:
        self.parameters = sorted(parameters, key=lambda p: p.ndim > 1) if sort else list(parameters)
        self.device = self.parameters[0].device
        # Half-precision parameters are followed in float32: their steps would vanish in the sums otherwise.
        self.dtype = torch.float32
        for parameter in self.parameters:
            self.dtype = torch.promote_types(self.dtype, parameter.dtype)
        self.is_uniform = all(p.dtype == self.dtype and p.device == self.device for p in self.parameters)
        self._lengths = [parameter.numel() for parameter in self.parameters]
        self.size = sum(self._lengths)
        self._moved_by: tuple[Tensor, list[Tensor]] | None = None  # the last direction, cut up
        self.spans: list[slice] = []
        for length in self._lengths:
            start = self.spans[-1].stop if self.spans else 0
            self.spans.append(slice(start, start + length))

    def flat(self, tensors: Iterable[Tensor], out: Tensor | None = None) -> Tensor:
        """Tensors shaped like the parameters, copied into one vector."""
        parts = [t.detach().reshape(-1) for t in tensors]
        if not self.is_uniform:
            parts = [part.to(self.device, self.dtype) for part in parts]
        return torch.cat(parts, out=out)

    def split(self, vector: Tensor) -> list[Tensor]:
        """A flat vector as tensors shaped like the parameters: views of it."""
        parts = vector.split(self._lengths)
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    def check(self) -> None:
        """Parameters may be moved and converted before they are first used, not after."""
        first = self.parameters[0]
        if first.device != self.device or torch.promote_types(first.dtype, self.dtype) != self.dtype:
            raise RuntimeError(
                f"the parameters were on {self.device} in {self.dtype} and are now on {first.device} in {first.dtype}. "
                "Move and convert a model before its optimizer takes the first batch, or make a new optimizer."
            )

    def point(self, out: Tensor | None = None) -> Tensor:
        """Where the parameters are."""
        return self.flat(self.parameters, out)

    @contextmanager
    def without_hooks(self) -> Iterator[None]:
        """Keep users' hooks on the parameters from firing: they are for ``.grad``, not for what we look up besides."""
        hooked = [p._backward_hooks for p in self.parameters if p._backward_hooks]
        kept = [dict(hooks) for hooks in hooked]
        for hooks in hooked:
            hooks.clear()
        try:
            yield
        finally:
            for hooks, before in zip(hooked, kept, strict=True):
                hooks.update(before)

    @torch.no_grad()
    def move(self, direction: Tensor, lr: float | Tensor, weight_decay: float) -> None:
        """``θ ← (1 - lr · weight_decay) θ - lr · direction``.

        A parameter that got no gradient this time still moves by its momentum, which is a sum over batches of which
        this one happens to say nothing about it; it does not decay, and it does not move once frozen.
        """
        moving = [i for i, p in enumerate(self.parameters) if p.requires_grad]
        if not moving:
            return
        decaying = [self.parameters[i] for i in moving if self.parameters[i].grad is not None]
        if weight_decay and decaying:
            torch._foreach_mul_(decaying, 1 - lr * weight_decay)
        if self._moved_by is None or self._moved_by[0] is not direction:  # mostly it is the same vector every time
            self._moved_by = direction, self.split(direction)
        steps = self._moved_by[1]
        if not self.is_uniform:
            steps = [step.to(p.device, p.dtype) for step, p in zip(steps, self.parameters, strict=True)]
        if isinstance(lr, Tensor):
            steps, lr = list(torch._foreach_mul(steps, lr)), 1.0
        torch._foreach_add_([self.parameters[i] for i in moving], [steps[i] for i in moving], alpha=-lr)
