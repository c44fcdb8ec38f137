"""Networks of one shape, many side by side: their parameters are the rows of one tensor ``[runs, n]``.

Index letters: ``t`` is 0 for a state and 1 for its successor, ``k`` counts samples, ``l`` positions in a picture, ``i``
and ``o`` inputs and outputs of a layer. A layer's bias is the first column of its matrix, met by an input that is always
1; so every layer is one matrix, and its gradients are outer products as the library's corrections take them.

Inside, samples are columns, ``[..., i, rows]``: layers are narrow and samples many, and both the matrix products and
the activations of a CPU are several times as fast along a long last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ...samples import Linearization, Matrix, Outer, Piece, Total
from .heads import VALUE, Answer, Head
from .layers import Layer, initial

aten = torch.ops.aten
SELU = (1.6732632423543772, 1.0507009873554805)  # α and scale

Forward = Callable[[Tensor, Tensor], Tensor]  # z, out → h, written to out
Backward = Callable[[Tensor, Tensor], Tensor]  # gradient by h, h → gradient by z

Look = Callable[[Tensor], Tensor]  # states → activations of the first layer

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


PARTS = 64  # of a sum over samples, at least, where they are many


class Pass(NamedTuple):
    """A forward pass, with what a backward one needs of it."""

    columns: list[Tensor]  # what every layer saw, ``[..., 1 + inputs, rows · positions]``
    hidden: list[Tensor]  # activations, by the layer that they come out of
    outputs: Tensor  # [..., outputs, rows]
    answer: Answer

    @property
    def values(self) -> Tensor:
        """``[..., rows]``."""
        return self.answer.values

    def of_states(self, samples: int) -> Pass:
        """The first rows alone: those of the states, without their successors'."""
        return self._rows(0, samples)

    def last(self, samples: int) -> Pass:
        """The last rows alone."""
        rows = self.outputs.shape[-1]
        return self._rows(rows - samples, rows)

    def _rows(self, start: int, stop: int) -> Pass:
        rows = self.outputs.shape[-1]

        def some(x: Tensor) -> Tensor:
            positions = x.shape[-1] // rows
            return x[..., start * positions : stop * positions]

        derivative = self.answer.derivative
        answer = Answer(some(self.values), None if derivative is None else some(derivative))
        return Pass([some(x) for x in self.columns], [some(h) for h in self.hidden], some(self.outputs), answer)


class Network:
    """Layers with an activation between them, from what ``look`` makes of a state, ``[..., channels, rows · places]``,
    to what ``head`` makes of the outputs."""

    def __init__(self, layers: Sequence[Layer], activation: str, look: Look, head: Head = VALUE) -> None:
        self.layers = list(layers)
        self.shapes = [layer.shape for layer in layers]
        self.spans: list[slice] = []
        for layer in layers:
            start = self.spans[-1].stop if self.spans else 0
            self.spans.append(slice(start, start + layer.size))
        self.size = self.spans[-1].stop
        self.work = sum(layer.work for layer in layers)  # multiply-adds of a row
        self.widest = max(into * layer.positions for layer in layers for _, into in [layer.shape])
        self.activation = activation
        self.look = look
        self.head = head
        self.rows_backward = 0  # how many rows were taken backward so far: what a method costs
        self._activate, self._through = ACTIVATIONS[activation]

    def initial(self, seed: int, dtype: torch.dtype) -> Tensor:
        """Parameters as ``torch.nn`` draws them, ``[n]``, the same for a seed whatever else is run."""
        generator = torch.Generator().manual_seed(seed)
        return torch.cat([initial(layer, generator) for layer in self.layers]).to(dtype)

    def forward(self, theta: Tensor, state: Tensor) -> Pass:
        """Of states ``[..., rows, inputs]``. Where the head asks which output is meant, a state's last number tells."""
        columns, hidden = [self.layers[0].columns(self.look(state))], []
        *weights, last = self._matrices(theta)
        for weight, following in zip(weights, self.layers[1:], strict=True):
            z = weight @ columns[-1]
            seen, h = following.laid_out(partial(self._activate, z), like=z)
            columns.append(seen)
            hidden.append(h)
        outputs = last @ columns[-1]
        return Pass(columns, hidden, outputs, self.head.answer(outputs, state[..., -1]))

    def values(self, theta: Tensor, state: Tensor) -> Tensor:
        return self.forward(theta, state).values

    def errors(self, theta: Tensor, state: Tensor, true: Tensor) -> dict[str, Tensor]:
        """What the head calls the errors of states with these true values, ``[..., rows]`` each."""
        seen = self.forward(theta, state)
        return self.head.errors(seen.outputs, seen.values, state[..., -1], true)

    def backward(self, theta: Tensor, seen: Pass, seed: Tensor) -> list[Tensor]:
        """The gradients of ``Σ seed · value`` by every layer's output, ``[..., outputs, rows · positions]``, first layer
        first."""
        self.rows_backward += seed.shape[-1]
        derivative = seen.answer.derivative
        outputs = [seed.unsqueeze(-2) if derivative is None else derivative * seed.unsqueeze(-2)]
        weights = self._matrices(theta)
        for number in range(len(self.layers) - 1, 0, -1):
            into = self.layers[number].spread(weights[number][..., 1:].mT @ outputs[-1])
            outputs.append(self._through(into, seen.hidden[number - 1]))
        return outputs[::-1]

    def gradient(self, theta: Tensor, seen: Pass, slope: Tensor) -> Total:
        """``Σ_k slope_k ∇value_k``, without the gradient of any one sample."""
        total = theta.new_empty(*slope.shape[:-1], self.size)
        for span, a, b in zip(self.spans, seen.columns, self.backward(theta, seen, slope), strict=True):
            total[..., span] = _summed_outer(b, a).flatten(-2)
        return Total(total)

    def linearize(
        self, theta: Tensor, seen: Pass, discount: Tensor | None, slope: Tensor, curvature: Tensor
    ) -> Linearization:
        """The batch to first order. ``seen`` has the states' rows first, then, unless ``discount`` is ``None``, those of
        their successors."""
        ones = torch.ones_like(slope)
        seed = ones if discount is None else torch.cat([ones, -discount], -1)
        roles = (1 if discount is None else 2, slope.shape[-1])
        gradients = self.backward(theta, seen, seed)
        pieces = [
            _piece(layer, span, a, b, roles)
            for layer, span, a, b in zip(self.layers, self.spans, seen.columns, gradients, strict=True)
        ]
        return Linearization(tuple(pieces), slope, curvature)

    def hessian(self, theta: Tensor, state: Tensor, slope: Tensor) -> Tensor:
        """``Σ_k slope_k ∇²value_k``, ``[runs, n, n]``: what the paper leaves out of its Taylor term."""

        activate = getattr(F, self.activation)  # one that autograd follows

        def weighted(own: Tensor, seen: Tensor, weight: Tensor) -> Tensor:
            h = self.layers[0].columns(self.look(seen))
            *hidden, last = self._matrices(own)
            for matrix, layer in zip(hidden, self.layers[1:], strict=True):
                h = layer.columns(activate(matrix @ h))
            return (self.head.answer(last @ h, seen[..., -1]).values * weight).sum()

        return torch.vmap(torch.func.jacrev(torch.func.grad(weighted)))(theta, state, slope)

    def _matrices(self, theta: Tensor) -> list[Tensor]:
        return [theta[..., span].unflatten(-1, shape) for span, shape in zip(self.spans, self.shapes, strict=True)]


def _summed_outer(b: Tensor, a: Tensor) -> Tensor:
    """``Σ_k b_k a_kᵀ``. On a GPU a product over very many samples keeps few processors busy: it is cut up there."""
    if not a.is_cuda:
        return b @ a.mT
    rows = a.shape[-1]
    part = max(size for size in range(1, max(128, rows // PARTS) + 1) if rows % size == 0)
    if rows > 2 * part > 64:
        many_b, many_a = (x.unflatten(-1, (-1, part)).movedim(-2, -3) for x in (b, a))
        return (many_b @ many_a.mT).sum(-3)
    return b @ a.mT


def _piece(layer: Layer, span: slice, a: Tensor, b: Tensor, roles: tuple[int, int]) -> Piece:
    """A layer's gradients by sample, in whichever form holds fewer numbers: a layer that is applied at many positions
    has its gradients written out."""
    outputs, inputs = layer.shape

    def by_sample(x: Tensor) -> Tensor:
        return x.unflatten(-1, (*roles, layer.positions))  # [..., i, t, k, l]

    if layer.positions == 1 or layer.positions * (outputs + inputs) < layer.size:
        factors = [by_sample(x).movedim(-4, -1).movedim(-2, -3).flatten(-4, -3) for x in (a, b)]
        return Outer(span, (factors[0], factors[1]), head=layer.positions)
    a, b = (by_sample(x).movedim(-4, -2) for x in (a, b))  # [..., t, k, i, l]
    gradients = (b @ a.mT).flatten(-2)
    return Matrix(span, (gradients[..., 0, :, :], gradients.sum(-3)))


def plain(state: Tensor) -> Tensor:
    """A state as it is."""
    return state.mT


def radial(grid: int, width: float) -> Look:
    """Radial basis functions ``exp(-‖s-u‖²/σ²)`` on a regular grid over ``[-1, 1]²``, ``σ`` being measured in cells of
    the grid: at ``σ² = 1`` few overlap, as the paper says of its own. (Its appendix has a variance of ``σ²/grid``: in
    units of the state, neighbours would then be four fifths of one another, and momentum diverges.)"""
    per_cell = (grid / 2) ** 2 / width

    def features(state: Tensor) -> Tensor:
        line = torch.linspace(-1, 1, grid, dtype=state.dtype, device=state.device)
        # A Gaussian on a plane is the product of two on lines: 2·grid exponentials a state, not grid².
        near = torch.exp(-(state.unsqueeze(-1) - line).square() * per_cell)
        return (near[..., 0, :, None] * near[..., 1, None, :]).flatten(-2).mT

    return features
