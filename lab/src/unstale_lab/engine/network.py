"""Networks of one shape, many side by side: their parameters are the rows of one tensor ``[runs, n]``.

Every layer is one matrix, and its gradients are sums of outer products, as the library's corrections take them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from unstale.samples import Linearization, Total

from .heads import VALUE, Answer, Head
from .layers import Conv, Layer, initial

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


class Pass(NamedTuple):
    """A forward pass, with what a backward one needs of it."""

    kept: list[Tensor]  # by every layer
    hidden: list[Tensor]  # activations, by the layer that they come out of
    outputs: Tensor  # [..., outputs, rows]
    answer: Answer

    @property
    def values(self) -> Tensor:
        """``[..., rows]``."""
        return self.answer.values


class Network:
    """Layers with an activation between them, from what ``look`` makes of a state to what ``head`` makes of outputs."""

    def __init__(self, layers: Sequence[Layer], activation: str, look: Look, head: Head = VALUE) -> None:
        self.layers = list(layers)
        self.shapes = [layer.shape for layer in layers]
        self.spans: list[slice] = []
        for layer in layers:
            start = self.spans[-1].stop if self.spans else 0
            self.spans.append(slice(start, start + layer.size))
        self.size = self.spans[-1].stop
        self.work = sum(layer.work for layer in layers)  # multiply-adds of a row
        self.widest = max(layer.shape[1] * layer.positions for layer in layers)  # numbers kept of a row
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
        kept, hidden = [self.layers[0].keep(self.look(state))], []
        weights = self._matrices(theta)
        for layer, following, weight in zip(self.layers, self.layers[1:], weights, strict=False):
            z = layer.apply(weight, kept[-1])
            met, h = following.keep_written(partial(self._activate, z), like=z)
            kept.append(met)
            hidden.append(h)
        outputs = self._flat(self.layers[-1].apply(weights[-1], kept[-1]))
        return Pass(kept, hidden, outputs, self.head.answer(outputs, state[..., -1]))

    def of_states(self, seen: Pass, samples: int) -> Pass:
        """The first rows alone: those of the states, without their successors'."""
        return self._rows(seen, 0, samples)

    def newest(self, seen: Pass, samples: int) -> Pass:
        """The last rows alone."""
        rows = seen.outputs.shape[-1]
        return self._rows(seen, rows - samples, rows)

    def values(self, theta: Tensor, state: Tensor) -> Tensor:
        return self.forward(theta, state).values

    def errors(self, theta: Tensor, state: Tensor, true: Tensor) -> dict[str, Tensor]:
        """What the head calls the errors of states with these true values, ``[..., rows]`` each."""
        seen = self.forward(theta, state)
        return self.head.errors(seen.outputs, seen.values, state[..., -1], true)

    def backward(self, theta: Tensor, seen: Pass, seed: Tensor) -> list[Tensor]:
        """The gradients of ``Σ seed · value`` by what comes out of every layer, first layer first."""
        self.rows_backward += seed.shape[-1]
        derivative = seen.answer.derivative
        last = seed.unsqueeze(-2) if derivative is None else derivative * seed.unsqueeze(-2)
        outputs = [self._unflat(last)]
        weights = self._matrices(theta)
        for number in range(len(self.layers) - 1, 0, -1):
            into = self.layers[number].into(weights[number], outputs[-1])
            outputs.append(self._through(into, seen.hidden[number - 1]))
        return outputs[::-1]

    def gradient(self, theta: Tensor, seen: Pass, slope: Tensor) -> Total:
        """``Σ_k slope_k ∇value_k``, without the gradient of any one sample."""
        total = theta.new_empty(*slope.shape[:-1], self.size)
        gradients = self.backward(theta, seen, slope)
        for layer, out, kept, gradient in zip(self.layers, self._matrices(total), seen.kept, gradients, strict=True):
            layer.sum_into(out, kept, gradient)
        return Total(total)

    def linearize(
        self, theta: Tensor, seen: Pass, discount: Tensor | None, slope: Tensor, curvature: Tensor
    ) -> Linearization:
        """The batch to first order. ``seen`` has the states' rows first, then, unless ``discount`` is ``None``, their
        successors'."""
        ones = torch.ones_like(slope)
        seed = ones if discount is None else torch.cat([ones, -discount], -1)
        roles = (1 if discount is None else 2, slope.shape[-1])
        gradients = self.backward(theta, seen, seed)
        pieces = [
            layer.by_sample(span, kept, gradient, roles)
            for layer, span, kept, gradient in zip(self.layers, self.spans, seen.kept, gradients, strict=True)
        ]
        return Linearization(tuple(pieces), slope, curvature)

    def hessian(self, theta: Tensor, state: Tensor, slope: Tensor) -> Tensor:
        """``Σ_k slope_k ∇²value_k``, ``[runs, n, n]``: what the paper leaves out of its Taylor term."""

        activate = getattr(F, self.activation)  # one that autograd follows

        def weighted(own: Tensor, seen: Tensor, weight: Tensor) -> Tensor:
            h = self.look(seen)
            *hidden, last = zip(self.layers, self._matrices(own), strict=True)
            for layer, matrix in hidden:
                h = activate(layer.apply(matrix, layer.keep(h)))
            layer, matrix = last
            outputs = self._flat(layer.apply(matrix, layer.keep(h)))
            return (self.head.answer(outputs, seen[..., -1]).values * weight).sum()

        return torch.vmap(torch.func.jacrev(torch.func.grad(weighted)))(theta, state, slope)

    def _rows(self, seen: Pass, start: int, stop: int) -> Pass:
        def of(layer: Layer, x: Tensor) -> Tensor:
            return x.narrow(layer.row_axis, start, stop - start)

        kept = [of(layer, x) for layer, x in zip(self.layers, seen.kept, strict=True)]
        hidden = [of(layer, h) for layer, h in zip(self.layers, seen.hidden, strict=False)]
        values, derivative = seen.answer
        answer = Answer(values[..., start:stop], None if derivative is None else derivative[..., start:stop])
        return Pass(kept, hidden, seen.outputs[..., start:stop], answer)

    def _flat(self, outputs: Tensor) -> Tensor:
        """``[..., outputs, rows]``, also of a convolution whose pictures have become single points."""
        return outputs.squeeze(-1).mT if isinstance(self.layers[-1], Conv) else outputs

    def _unflat(self, outputs: Tensor) -> Tensor:
        return outputs.mT.unsqueeze(-1) if isinstance(self.layers[-1], Conv) else outputs

    def _matrices(self, theta: Tensor) -> list[Tensor]:
        return [theta[..., span].unflatten(-1, shape) for span, shape in zip(self.spans, self.shapes, strict=True)]


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
