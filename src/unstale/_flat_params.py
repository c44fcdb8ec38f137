"""The parameters of one group, seen as one flat vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

# At most this many entries of a gradient are compared to infer whether it was scaled.
MAX_SAMPLE = 1 << 16


class FlatParams:
    """Parameters that are corrected together, with the dtype and device of the flat vectors beside them.

    Args:
        parameters: the parameters of a group.
        vectors_first: put vectors (biases, norms) before matrices, so that materialized gradients are adjacent.
        followed: parameters of followed networks, which come after all others and do not decide on dtype and device.
    """

    def __init__(
        self, parameters: Sequence[Tensor], vectors_first: bool = False, followed: Sequence[Tensor] = ()
    ) -> None:
        self.parameters = sorted(parameters, key=lambda p: p.ndim > 1) if vectors_first else list(parameters)
        self.device = self.parameters[0].device
        # Vectors beside half-precision parameters are float32: small steps would vanish in sums otherwise.
        self.dtype = torch.float32
        for parameter in self.parameters:
            self.dtype = torch.promote_types(self.dtype, parameter.dtype)
        self.parameters += sorted(followed, key=lambda p: p.ndim > 1) if vectors_first else list(followed)
        self.lengths = [parameter.numel() for parameter in self.parameters]
        self.size = sum(self.lengths)
        self.spans: list[slice] = []
        for length in self.lengths:
            start = self.spans[-1].stop if self.spans else 0
            self.spans.append(slice(start, start + length))
        self._placed = _placement(self.parameters)
        self._last_split: tuple[Tensor, list[Tensor]] | None = None
        self._is_uniform = all(p.dtype == self.dtype and p.device == self.device for p in self.parameters)

    def flat(self, tensors: Iterable[Tensor], out: Tensor | None = None) -> Tensor:
        """Tensors shaped like the parameters, copied into one vector ``[n]``."""
        parts = [(t.to_dense() if t.is_sparse else t).detach().reshape(-1) for t in tensors]
        if not self._is_uniform:
            parts = [part.to(self.device, self.dtype) for part in parts]
        return torch.cat(parts, out=out)

    def point(self, out: Tensor | None = None) -> Tensor:
        """The parameters' values ``θ [n]``."""
        return self.flat(self.parameters, out)

    def gradient(self, out: Tensor | None = None) -> Tensor:
        """``.grad`` of all parameters, ``[n]``; zero for a parameter without one."""
        return self.flat((torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters), out)

    def average_gradient(self, mean_: Callable[[Tensor], Tensor]) -> None:
        """Replace ``.grad`` by its mean over ranks. It stays None where no rank has one; a missing one counts as zero.

        Args:
            mean_: takes the mean over ranks in place.
        """
        present = torch.tensor([float(p.grad is not None) for p in self.parameters])
        gradient, present = mean_(torch.cat([self.gradient(), present.to(self.device, self.dtype)])).split(
            [self.size, len(self.parameters)]
        )
        parts = zip(self.parameters, gradient.split(self.lengths), present.tolist(), strict=True)
        for parameter, part, share in parts:
            if share:
                mean = part.view(parameter.shape).to(parameter.device, parameter.dtype)
                if parameter.grad is None or parameter.grad.is_sparse:
                    parameter.grad = mean.clone()
                else:
                    parameter.grad.copy_(mean)

    def gradient_of(self, prediction: Tensor, slope: Tensor) -> Tensor:
        """``Σ_k slope_k ∇f_k``, ``[n]``, of a prediction ``f``. Leaves ``.grad`` and the graph as they are."""
        trainable = [p for p in self.parameters if p.requires_grad]
        with self.hooks_disabled():
            gradients = torch.autograd.grad(
                prediction,
                trainable,
                slope.to(prediction.dtype),
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        by_id = dict(zip(map(id, trainable), gradients, strict=True))
        return self.flat(by_id.get(id(p), torch.zeros_like(p)) for p in self.parameters)

    def gradient_sample(self) -> Tensor:
        """Every entry of ``.grad``, or evenly spaced ones of every tensor if there are very many."""
        stride = -(-self.size // MAX_SAMPLE)
        if stride == 1:
            return self.gradient()
        gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters)
        parts = [(g.to_dense() if g.is_sparse else g).detach().reshape(-1)[::stride] for g in gradients]
        return torch.cat([part.to(self.device, self.dtype) for part in parts])

    def split(self, vector: Tensor) -> list[Tensor]:
        """Views of a vector ``[n]``, shaped like the parameters."""
        # Directions mostly come in the same buffer at every step.
        if self._last_split is None or self._last_split[0] is not vector:
            parts = vector.split(self.lengths)
            views = [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]
            self._last_split = vector, views
        return self._last_split[1]

    def check_unchanged(self) -> None:
        """Raise if the parameters were moved or converted after their first use."""
        if (now := _placement(self.parameters)) == self._placed:
            return
        before, after = next(pair for pair in zip(self._placed, now, strict=True) if pair[0] != pair[1])
        raise RuntimeError(
            f"the parameters were on {before[0]} in {before[1]} and are now on {after[0]} in {after[1]}. "
            "Move and convert a model before its optimizer takes the first batch, or make a new optimizer."
        )

    @property
    def has_hooks(self) -> bool:
        """Whether hooks may change what autograd adds to ``.grad``."""
        return any(p._backward_hooks or p._post_accumulate_grad_hooks for p in self.parameters)

    @contextmanager
    def hooks_disabled(self) -> Iterator[None]:
        """Keep hooks on the parameters from running: they are meant for ``.grad``, not for per-sample gradients."""
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
    def move(self, direction: Tensor, lr: float | Tensor, weight_decay: float | Tensor) -> None:
        """``θ ← (1 - lr · weight_decay) θ - lr · direction``.

        A parameter without a gradient in this batch still moves by its momentum, an average over batches, but does not
        decay. A frozen parameter does neither.
        """
        moving = [(p, step) for p, step in zip(self.parameters, self.split(direction), strict=True) if p.requires_grad]
        if not moving:
            return
        decaying = [p for p, _ in moving if p.grad is not None]
        if weight_decay and decaying:
            torch._foreach_mul_(decaying, 1 - lr * weight_decay)
        parameters, steps = (list(part) for part in zip(*moving, strict=True))
        if not self._is_uniform:
            steps = [step.to(p.device, p.dtype) for step, p in zip(steps, parameters, strict=True)]
        if isinstance(lr, Tensor):
            steps, lr = list(torch._foreach_mul(steps, lr)), 1.0
        torch._foreach_add_(parameters, steps, alpha=-lr)


def _placement(parameters: Sequence[Tensor]) -> list[tuple[torch.device, torch.dtype]]:
    return [(parameter.device, parameter.dtype) for parameter in parameters]
