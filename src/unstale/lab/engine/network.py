"""Networks of one shape, many side by side: their parameters are the rows of one tensor ``[runs, n]``.

Index letters: ``t`` is 0 for a state and 1 for its successor, ``k`` counts samples, ``i`` and ``o`` inputs and outputs
of a layer. A layer's bias is the first column of its matrix, met by an input that is always 1; so every layer is one
matrix, and its gradients are outer products as the library's corrections take them.

Inside, samples are columns, ``[..., i, rows]``: layers are narrow and samples many, and both the matrix products and
the activations of a CPU are several times as fast along a long last axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from ...samples import Linearization, Outer, Total

aten = torch.ops.aten
SELU = (1.6732632423543772, 1.0507009873554805)  # α and scale

Forward = Callable[[Tensor, Tensor], Tensor]  # z, out → h, written to out
Backward = Callable[[Tensor, Tensor], Tensor]  # gradient by h, h → gradient by z

# Each pass is one operation that reads its memory once; slopes are read off the *outputs* h.
ACTIVATIONS: dict[str, tuple[Forward, Backward]] = {
    "leaky_relu": (
        lambda z, out: aten.leaky_relu.out(z, 0.01, out=out),
        lambda g, h: aten.leaky_relu_backward(g, h, 0.01, True),
    ),
    "relu": (lambda z, out: torch.clamp(z, min=0, out=out), lambda g, h: aten.threshold_backward(g, h, 0)),
    "tanh": (lambda z, out: torch.tanh(z, out=out), lambda g, h: aten.tanh_backward(g, h)),
    "elu": (lambda z, out: aten.elu.out(z, out=out), lambda g, h: aten.elu_backward(g, 1, 1, 1, True, h)),
    "selu": (lambda z, out: aten.elu.out(z, *SELU, out=out), lambda g, h: aten.elu_backward(g, *SELU, 1, True, h)),
}


class Network:
    """``sizes`` are the widths from the features of a state to its value, ``[2, 16, 16, 16, 1]`` say."""

    def __init__(self, sizes: Sequence[int], activation: str, features: Callable[[Tensor], Tensor] | None = None):
        self.shapes = [(out, into + 1) for into, out in pairwise(sizes)]
        self.spans: list[slice] = []
        for out, into in self.shapes:
            start = self.spans[-1].stop if self.spans else 0
            self.spans.append(slice(start, start + out * into))
        self.size = self.spans[-1].stop
        self.activation = activation
        self.features = features
        self.rows_backward = 0  # how many rows were taken backward so far: what a method costs
        self._activate, self._through = ACTIVATIONS[activation]

    def initial(self, seed: int, dtype: torch.dtype) -> Tensor:
        """Parameters as ``torch.nn.Linear`` draws them, ``[n]``, the same for a seed whatever else is run."""
        generator = torch.Generator().manual_seed(seed)
        layers = []
        for out, into in self.shapes:
            bound = 1 / math.sqrt(into - 1)
            layers.append((2 * torch.rand(out * into, generator=generator, dtype=torch.float64) - 1) * bound)
        return torch.cat(layers).to(dtype)

    def forward(self, theta: Tensor, state: Tensor) -> list[Tensor]:
        """Of states ``[..., rows, inputs]`` the inputs of every layer, ``[..., i, rows]`` with their leading 1, and the
        values ``[..., rows]``."""
        seen = state if self.features is None else self.features(state)
        steps = [F.pad(seen.mT, (0, 0, 1, 0), value=1.0)]
        *hidden, last = self._matrices(theta)
        for weight in hidden:
            z = weight @ steps[-1]
            h = z.new_empty(*z.shape[:-2], z.shape[-2] + 1, z.shape[-1])
            h[..., 0, :] = 1
            self._activate(z, h[..., 1:, :])
            steps.append(h)
        return [*steps, (last @ steps[-1]).squeeze(-2)]

    def values(self, theta: Tensor, state: Tensor) -> Tensor:
        return self.forward(theta, state)[-1]

    def backward(self, theta: Tensor, inputs: Sequence[Tensor], seed: Tensor) -> list[Tensor]:
        """The gradients of ``Σ seed · value`` by every layer's output, ``[..., o, rows]``, first layer first."""
        self.rows_backward += seed.shape[-1]
        outputs = [seed.unsqueeze(-2)]
        weights = self._matrices(theta)
        for layer in range(len(self.shapes) - 1, 0, -1):
            into = weights[layer][..., 1:].mT @ outputs[-1]
            outputs.append(self._through(into, inputs[layer][..., 1:, :]))
        return outputs[::-1]

    def gradient(self, theta: Tensor, inputs: Sequence[Tensor], slope: Tensor) -> Total:
        """``Σ_k slope_k ∇value_k``, without the gradient of any one sample."""
        total = theta.new_empty(*slope.shape[:-1], self.size)
        for span, a, b in zip(self.spans, inputs, self.backward(theta, inputs, slope), strict=True):
            total[..., span] = _summed_outer(b, a).flatten(-2)
        return Total(total)

    def linearize(
        self, theta: Tensor, inputs: Sequence[Tensor], discount: Tensor | None, slope: Tensor, curvature: Tensor
    ) -> Linearization:
        """The batch to first order. ``inputs`` have the states' rows first, then, unless ``discount`` is ``None``,
        those of their successors."""
        ones = torch.ones_like(slope)
        seed = ones if discount is None else torch.cat([ones, -discount], -1)
        positions = (1 if discount is None else 2, slope.shape[-1])

        def by_sample(x: Tensor) -> Tensor:
            return x.mT.unflatten(-2, positions)

        pieces = [
            Outer(span, (by_sample(a), by_sample(b)), head=1)
            for span, a, b in zip(self.spans, inputs, self.backward(theta, inputs, seed), strict=True)
        ]
        return Linearization(tuple(pieces), slope, curvature)

    def hessian(self, theta: Tensor, state: Tensor, slope: Tensor) -> Tensor:
        """``Σ_k slope_k ∇²value_k``, ``[runs, n, n]``: what the paper leaves out of its Taylor term."""

        activate = getattr(F, self.activation)  # one that autograd follows

        def weighted(own: Tensor, seen: Tensor, weight: Tensor) -> Tensor:
            h = _with_one(seen if self.features is None else self.features(seen))
            *hidden, last = self._matrices(own)
            for matrix in hidden:
                h = _with_one(activate(h @ matrix.mT))
            return ((h @ last.mT).squeeze(-1) * weight).sum()

        return torch.vmap(torch.func.jacrev(torch.func.grad(weighted)))(theta, state, slope)

    def _matrices(self, theta: Tensor) -> list[Tensor]:
        return [theta[..., span].unflatten(-1, shape) for span, shape in zip(self.spans, self.shapes, strict=True)]


def _summed_outer(b: Tensor, a: Tensor) -> Tensor:
    """``Σ_k b_k a_kᵀ``. On a GPU a product over very many samples keeps few processors busy: it is cut up there."""
    rows = a.shape[-1]
    part = max(size for size in range(1, 129) if rows % size == 0)
    if a.is_cuda and rows > 2 * part > 64:
        many_b, many_a = (x.unflatten(-1, (-1, part)).movedim(-2, -3) for x in (b, a))
        return (many_b @ many_a.mT).sum(-3)
    return b @ a.mT


def _with_one(x: Tensor) -> Tensor:
    return F.pad(x, (1, 0), value=1.0)


def radial(grid: int, width: float) -> Callable[[Tensor], Tensor]:
    """Radial basis functions ``exp(-‖s-u‖²/σ²)`` on a regular grid over ``[-1, 1]²``, ``σ`` being measured in cells of
    the grid: at ``σ² = 1`` few overlap, as the paper says of its own. (Its appendix has a variance of ``σ²/grid``: in
    units of the state, neighbours would then be four fifths of one another, and momentum diverges.)"""
    per_cell = (grid / 2) ** 2 / width

    def features(state: Tensor) -> Tensor:
        line = torch.linspace(-1, 1, grid, dtype=state.dtype, device=state.device)
        # A Gaussian on a plane is the product of two on lines: 2·grid exponentials a state, not grid².
        near = torch.exp(-(state.unsqueeze(-1) - line).square() * per_cell)
        return (near[..., 0, :, None] * near[..., 1, None, :]).flatten(-2)

    return features
