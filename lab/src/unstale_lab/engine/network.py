"""Networks of one shape, batched over runs: their parameters are the rows of one tensor ``[runs, n]``.

Every layer is one matrix, and its per-sample gradients are sums of outer products, the form that the library's
corrections take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from unstale.per_sample.gradients import Linearization, Materialized, SummedGradient

from .layers import Conv, Layer, initial_parameters
from .objectives import STATE_VALUE, Objective, Prediction

aten = torch.ops.aten
SELU = (1.6732632423543772, 1.0507009873554805)  # α and scale

Forward = Callable[[Tensor, Tensor], Tensor]  # z, out → h, written to out
Backward = Callable[[Tensor, Tensor], Tensor]  # gradient with respect to h, h → gradient with respect to z

FeatureMap = Callable[[Tensor], Tensor]  # states → input of the first layer

# Each pass is a single kernel; derivatives are computed from the *outputs* h.
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


class ForwardPass(NamedTuple):
    """The result of a forward pass, with what the backward pass needs."""

    saved_inputs: list[Tensor]  # per layer
    activations: list[Tensor]  # per hidden layer
    outputs: Tensor  # [..., outputs, rows]
    prediction: Prediction

    @property
    def values(self) -> Tensor:
        """The predictions, ``[..., rows]``."""
        return self.prediction.values


class Network:
    """A feed-forward network: ``feature_map``, layers with an activation between them, and ``objective``."""

    def __init__(
        self, layers: Sequence[Layer], activation: str, feature_map: FeatureMap, objective: Objective = STATE_VALUE
    ) -> None:
        self.layers = list(layers)
        self.shapes = [layer.shape for layer in layers]
        self.spans: list[slice] = []
        for layer in layers:
            start = self.spans[-1].stop if self.spans else 0
            self.spans.append(slice(start, start + layer.size))
        self.size = self.spans[-1].stop
        self.macs = sum(layer.macs for layer in layers)  # multiply-adds per row
        self.numbers_per_sample = sum(layer.numbers_per_sample for layer in layers)  # of per-sample gradients
        # Elements of the largest saved input, per row.
        self.max_saved_elements = max(layer.shape[1] * layer.positions for layer in layers)
        self.activation = activation
        self.feature_map = feature_map
        self.objective = objective
        self.rows_backward = 0  # rows of all backward passes so far: the cost of a method
        self._activate, self._activation_backward = ACTIVATIONS[activation]

    def initial(self, seed: int, dtype: torch.dtype, initialization: str = "default") -> Tensor:
        """Draw the parameters of all layers, ``[n]``; they depend on the seed and the kind of initialization alone."""
        generator = torch.Generator().manual_seed(seed)
        return torch.cat([initial_parameters(layer, generator, initialization) for layer in self.layers]).to(dtype)

    def forward(self, theta: Tensor, state: Tensor) -> ForwardPass:
        """Run the network on states ``[..., rows, inputs]``.

        If the objective needs an output index (action or class), it is the last element of a state.
        """
        saved_inputs, activations = [self.layers[0].save_input(self.feature_map(state))], []
        weights = self._matrices(theta)
        for layer, next_layer, weight in zip(self.layers, self.layers[1:], weights, strict=False):
            z = layer.forward(weight, saved_inputs[-1])
            saved, h = next_layer.save_activation(partial(self._activate, z), like=z)
            saved_inputs.append(saved)
            activations.append(h)
        outputs = self._to_columns(self.layers[-1].forward(weights[-1], saved_inputs[-1]))
        prediction = self.objective.predict(outputs, state[..., -1])
        return ForwardPass(saved_inputs, activations, outputs, prediction)

    def state_rows(self, forward: ForwardPass, samples: int) -> ForwardPass:
        """Return the first ``samples`` rows: the states, without their successors."""
        return self._rows(forward, 0, samples)

    def last_rows(self, forward: ForwardPass, samples: int) -> ForwardPass:
        """Return the last ``samples`` rows."""
        rows = forward.outputs.shape[-1]
        return self._rows(forward, rows - samples, rows)

    def values(self, theta: Tensor, state: Tensor) -> Tensor:
        """Return the predictions, ``[..., rows]``."""
        return self.forward(theta, state).values

    def errors(self, theta: Tensor, state: Tensor, true: Tensor) -> dict[str, Tensor]:
        """Return the objective's error metrics against these true values, ``[..., rows]`` each."""
        forward = self.forward(theta, state)
        return self.objective.errors(forward.outputs, forward.values, state[..., -1], true)

    def backward(self, theta: Tensor, forward: ForwardPass, grad_values: Tensor) -> list[Tensor]:
        """Return the gradients of ``Σ grad_values · value`` with respect to every layer's output, first layer first."""
        self.rows_backward += grad_values.shape[-1]
        derivative = forward.prediction.derivative
        last = grad_values.unsqueeze(-2) if derivative is None else derivative * grad_values.unsqueeze(-2)
        gradients = [self._from_columns(last)]
        weights = self._matrices(theta)
        for i in range(len(self.layers) - 1, 0, -1):
            input_gradient = self.layers[i].input_gradient(weights[i], gradients[-1])
            gradients.append(self._activation_backward(input_gradient, forward.activations[i - 1]))
        return gradients[::-1]

    def gradient(self, theta: Tensor, forward: ForwardPass, slope: Tensor) -> SummedGradient:
        """Return ``Σ_k slope_k ∇value_k``, without computing per-sample gradients."""
        total = theta.new_empty(*slope.shape[:-1], self.size)
        gradients = self.backward(theta, forward, slope)
        layers = zip(self.layers, self._matrices(total), forward.saved_inputs, gradients, strict=True)
        for layer, out, saved, gradient in layers:
            layer.weight_gradient_(out, saved, gradient)
        return SummedGradient(total)

    def linearize(
        self, theta: Tensor, forward: ForwardPass, discount: Tensor | None, slope: Tensor, curvature: Tensor
    ) -> Linearization:
        """Return the per-sample gradients of a batch.

        Args:
            forward: rows of the states first, then, unless ``discount`` is ``None``, of their successors.
            discount: ``[..., k]``, or ``None`` if targets do not bootstrap.
            slope: first derivative of the loss with respect to the residuals, ``[..., k]``.
            curvature: second derivative, ``[..., k]``.
        """
        ones = torch.ones_like(slope)
        grad_values = ones if discount is None else torch.cat([ones, -discount], -1)
        roles = (1 if discount is None else 2, slope.shape[-1])
        gradients = self.backward(theta, forward, grad_values)
        pieces = [
            layer.per_sample_gradients(span, saved, gradient, roles)
            for layer, span, saved, gradient in zip(
                self.layers, self.spans, forward.saved_inputs, gradients, strict=True
            )
        ]
        return Linearization(tuple(pieces), slope, curvature)

    def linearize_mean(
        self, theta: Tensor, forward: ForwardPass, discount: Tensor | None, curvature: Tensor
    ) -> Linearization:
        """Return the batch as one sample, whose gradients are the means of the per-sample gradients.

        Its Taylor term is the outer product of mean gradients, not the mean of outer products. Its slope is 0: the
        gradient of the batch is no multiple of the mean gradient. Arguments are those of ``linearize``.
        """
        count = curvature.shape[-1]
        share = torch.full_like(curvature, 1 / count)
        v = self.gradient(theta, self.state_rows(forward, count), share).total
        u = v
        if discount is not None:
            u = v - self.gradient(theta, self.last_rows(forward, count), discount * share).total
        pieces = [Materialized(span, (v[..., None, span], u[..., None, span])) for span in self.spans]
        total = curvature.sum(-1, keepdim=True)
        return Linearization(tuple(pieces), torch.zeros_like(total), total)

    def hessian(self, theta: Tensor, state: Tensor, slope: Tensor) -> Tensor:
        """Return ``Σ_k slope_k ∇²value_k``, ``[runs, n, n]``, which the paper's Taylor term leaves out."""

        activate = getattr(F, self.activation)  # differentiable by autograd, unlike ``self._activate``

        def weighted_sum(run_theta: Tensor, run_state: Tensor, weight: Tensor) -> Tensor:
            h = self.feature_map(run_state)
            *hidden, last = zip(self.layers, self._matrices(run_theta), strict=True)
            for layer, matrix in hidden:
                h = activate(layer.forward(matrix, layer.save_input(h)))
            layer, matrix = last
            outputs = self._to_columns(layer.forward(matrix, layer.save_input(h)))
            return (self.objective.predict(outputs, run_state[..., -1]).values * weight).sum()

        return torch.vmap(torch.func.jacrev(torch.func.grad(weighted_sum)))(theta, state, slope)

    def select_rows(self, forward: ForwardPass, rows: Tensor) -> ForwardPass:
        """Return the rows of the given indices."""
        return self._map_rows(forward, lambda x, axis: x.index_select(axis, rows))

    def _rows(self, forward: ForwardPass, start: int, stop: int) -> ForwardPass:
        return self._map_rows(forward, lambda x, axis: x.narrow(axis, start, stop - start))

    def _map_rows(self, forward: ForwardPass, take: Callable[[Tensor, int], Tensor]) -> ForwardPass:
        saved = [take(x, layer.row_axis) for layer, x in zip(self.layers, forward.saved_inputs, strict=True)]
        activations = [take(h, layer.row_axis) for layer, h in zip(self.layers, forward.activations, strict=False)]
        values, derivative = forward.prediction
        prediction = Prediction(take(values, -1), None if derivative is None else take(derivative, -1))
        return ForwardPass(saved, activations, take(forward.outputs, -1), prediction)

    def _to_columns(self, outputs: Tensor) -> Tensor:
        """Return the outputs as ``[..., outputs, rows]``; a final convolution has images of one pixel."""
        return outputs.squeeze(-1).mT if isinstance(self.layers[-1], Conv) else outputs

    def _from_columns(self, outputs: Tensor) -> Tensor:
        return outputs.mT.unsqueeze(-1) if isinstance(self.layers[-1], Conv) else outputs

    def _matrices(self, theta: Tensor) -> list[Tensor]:
        return [theta[..., span].unflatten(-1, shape) for span, shape in zip(self.spans, self.shapes, strict=True)]


def identity_features(state: Tensor) -> Tensor:
    """Return the states as columns, ``[..., inputs, rows]``."""
    return state.mT


def rbf_features(grid: int, width: float, amplitude: float = 1.0) -> FeatureMap:
    """Return radial basis functions ``a exp(-‖s-u‖²/σ²)`` with centres ``u`` on a regular grid over ``[-1, 1]²``.

    ``σ`` is in units of grid cells: at ``σ² = 1`` few functions overlap, as the paper says of its own. The paper's
    appendix has a variance of ``σ²/grid`` in units of the state. Neighbouring functions would then overlap by four
    fifths, and momentum diverges.

    States are not scaled. The authors' code applies the same grid to raw states of Mountain Car, whose velocities are
    within ±0.07, and so uses the middle rows of the grid only.

    Args:
        grid: functions along each side.
        width: ``σ²``, in squared grid cells.
        amplitude: ``a``, the value of a function at its centre.
    """
    inverse_variance = (grid / 2) ** 2 / width

    def features(state: Tensor) -> Tensor:
        line = torch.linspace(-1, 1, grid, dtype=state.dtype, device=state.device)
        # A 2-D Gaussian is the product of two 1-D ones: 2·grid exponentials per state instead of grid².
        factors = torch.exp(-(state.unsqueeze(-1) - line).square() * inverse_variance)
        return (amplitude * factors[..., 0, :, None] * factors[..., 1, None, :]).flatten(-2).mT

    return features
