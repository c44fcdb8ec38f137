"""Layers batched over runs. The parameters of a layer are one matrix ``[..., outputs, 1 + inputs]``, bias first.

A dense layer takes columns, ``[..., inputs, rows]``: layers are narrow and rows many, and on a CPU both matrix products
and activations are several times faster along a long last axis. A convolution takes images, ``[..., rows, channels,
pixels]``, in channels-last memory format. A layer saves its input for the backward pass: columns with a row of ones on
top that multiplies the bias, or images.

Index letters: ``t`` is 0 for a state and 1 for its successor, ``k`` counts samples, ``l`` positions in an image, ``i``
and ``o`` inputs and outputs of a layer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from unstale.per_sample.gradients import Materialized, OuterProducts, SampleGradients

# A matrix product with a long inner dimension and a small result underuses a GPU. Its sum is split (split-K).
ROWS_PER_SPLIT, MAX_ROW_SPLITS = 128, 64  # for weight gradients
MIN_INPUTS_TO_SPLIT, MAX_ROWS_TO_SPLIT, INPUT_SPLITS = 4096, 256, 16  # for forward passes of dense layers
NUM_STREAMS = 8  # convolutions that run concurrently on a GPU
WriteActivation = Callable[[Tensor], object]  # fills the given tensor with activations


class Layer(ABC):
    """A linear layer, fully connected or convolutional, of all runs."""

    row_axis: int  # of the saved input and of the output

    def __init__(self, inputs: int, outputs: int, positions: int) -> None:
        self.shape = (outputs, inputs + 1)
        self.positions = positions

    @property
    def size(self) -> int:
        """Number of parameters, bias included."""
        return self.shape[0] * self.shape[1]

    @property
    def macs(self) -> int:
        """Multiply-adds per row."""
        return self.size * self.positions

    @property
    @abstractmethod
    def numbers_per_sample(self) -> int:
        """How many numbers ``per_sample_gradients`` stores per sample: a state and its successor."""

    @abstractmethod
    def save_input(self, x: Tensor) -> Tensor:
        """Return the input in the form that the forward and backward passes use."""

    @abstractmethod
    def forward(self, matrix: Tensor, saved: Tensor) -> Tensor:
        """Return the output for a saved input."""

    @abstractmethod
    def input_gradient(self, matrix: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient with respect to the input, given that with respect to the output."""

    @abstractmethod
    def weight_gradient_(self, out: Tensor, saved: Tensor, gradient: Tensor) -> None:
        """Write the gradient with respect to the matrix, summed over rows, to ``out [..., o, i]``."""

    @abstractmethod
    def per_sample_gradients(
        self, span: slice, saved: Tensor, gradient: Tensor, roles: tuple[int, int]
    ) -> SampleGradients:
        """Return the gradients with respect to the matrix, per sample.

        Args:
            span: position of the layer's parameters.
            saved: saved input.
            gradient: gradient with respect to the output.
            roles: ``(t, k)``: rows are states, or states and successors, of ``k`` samples.
        """

    def save_activation(self, write: WriteActivation, like: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the activations that enter this layer, shaped as ``like``; return the saved input and them."""
        h = torch.empty_like(like)
        write(h)
        return self.save_input(h), h


class Dense(Layer):
    """A fully connected layer."""

    row_axis = -1

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, positions=1)

    @property
    def numbers_per_sample(self) -> int:
        return 2 * sum(self.shape)

    def save_input(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 1, 0), value=1.0)

    def save_activation(self, write: WriteActivation, like: Tensor) -> tuple[Tensor, Tensor]:
        columns = _empty_with_ones_row(like, *like.shape[-2:])
        write(columns[..., 1:, :])
        return columns, columns[..., 1:, :]

    def forward(self, matrix: Tensor, saved: Tensor) -> Tensor:
        inputs = self.shape[1] - 1
        rows = saved.shape[-1]
        if not saved.is_cuda or inputs < MIN_INPUTS_TO_SPLIT or inputs % INPUT_SPLITS or rows > MAX_ROWS_TO_SPLIT:
            if saved.ndim < matrix.ndim:  # or torch would fold the runs into one product, which rounds otherwise
                saved = saved.expand(*matrix.shape[:-2], *saved.shape)
            return matrix @ saved
        splits = matrix[..., 1:].unflatten(-1, (INPUT_SPLITS, -1)).movedim(-2, -3)
        return (splits @ saved[..., 1:, :].unflatten(-2, (INPUT_SPLITS, -1))).sum(-3) + matrix[..., :1]

    def input_gradient(self, matrix: Tensor, gradient: Tensor) -> Tensor:
        return matrix[..., 1:].mT @ gradient

    def weight_gradient_(self, out: Tensor, saved: Tensor, gradient: Tensor) -> None:
        _sum_outer_products(gradient, saved, out)

    def per_sample_gradients(
        self, span: slice, saved: Tensor, gradient: Tensor, roles: tuple[int, int]
    ) -> SampleGradients:
        a, b = (x.mT.unflatten(-2, roles) for x in (saved, gradient))  # [..., t, k, i]
        return OuterProducts(span, (a, b), head=1)


class FlattenDense(Dense):
    """A dense layer on a flattened image."""

    def __init__(self, channels: int, pixels: int, outputs: int) -> None:
        super().__init__(channels * pixels, outputs)
        self._image_shape = (channels, pixels)

    def save_input(self, x: Tensor) -> Tensor:
        columns = _empty_with_ones_row(x[..., 0], self.shape[1] - 1, x.shape[-3])
        columns[..., 1:, :].copy_(x.flatten(-2).mT)
        return columns

    save_activation = Layer.save_activation

    def input_gradient(self, matrix: Tensor, gradient: Tensor) -> Tensor:
        return super().input_gradient(matrix, gradient).mT.unflatten(-1, self._image_shape)


class Conv(Layer):
    """A convolution of square images, ``side`` pixels wide.

    Runs have different kernels, so that each run is a convolution of its own: im2col patches for all runs would take
    too much memory and time.
    """

    row_axis = -3

    def __init__(
        self, channels: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, *, side: int
    ) -> None:
        self.side_out = (side + 2 * padding - kernel) // stride + 1
        super().__init__(channels * kernel**2, outputs, positions=self.side_out**2)
        self._kernel, self._stride, self._padding = kernel, stride, padding
        self._weight_shape = (outputs, channels, kernel, kernel)
        self._side = side
        # The factors of a gradient: an input and an output gradient per position.
        self._is_factored = self.positions * sum(self.shape) < self.size

    @property
    def numbers_per_sample(self) -> int:
        return 2 * (self.positions * sum(self.shape) if self._is_factored else self.size)

    def save_input(self, x: Tensor) -> Tensor:
        return x

    def forward(self, matrix: Tensor, saved: Tensor) -> Tensor:
        def convolve(weight: Tensor, bias: Tensor, saved: Tensor) -> Tensor:
            return F.conv2d(_square(saved), weight, bias, self._stride, self._padding).flatten(-2)

        return _map_runs(convolve, (self._weight(matrix), 4), (matrix[..., 0], 1), (saved, 3))

    def input_gradient(self, matrix: Tensor, gradient: Tensor) -> Tensor:
        def backward(weight: Tensor, gradient: Tensor) -> Tensor:
            rows, channels = gradient.shape[0], self._weight_shape[1]
            like = gradient.new_empty(()).expand(rows, channels, self._side, self._side)  # only its shape is used
            return self._backward(gradient, like, weight, (True, False))[0].flatten(-2)

        return _map_runs(backward, (self._weight(matrix), 4), (gradient, 3))

    def weight_gradient_(self, out: Tensor, saved: Tensor, gradient: Tensor) -> None:
        def backward(saved: Tensor, gradient: Tensor) -> Tensor:
            like = gradient.new_empty(()).expand(self._weight_shape)
            return self._backward(gradient, _square(saved), like, (False, True))[1].flatten(1)

        out[..., 0] = gradient.sum((-3, -1))
        out[..., 1:] = _map_runs(backward, (saved, 3), (gradient, 3))

    def per_sample_gradients(
        self, span: slice, saved: Tensor, gradient: Tensor, roles: tuple[int, int]
    ) -> SampleGradients:
        """Materialize the gradients, unless their factors are smaller: a kernel is applied to many patches."""
        patches = self._patches(saved)  # [..., rows, l, kernel rows, kernel columns, channels]
        if self._is_factored:
            inputs = F.pad(patches.movedim(-1, -3).flatten(-3), (1, 0), value=1.0)
            a, b = (x.unflatten(-3, roles).movedim(-2, -3).flatten(-4, -3) for x in (inputs, gradient.mT))
            return OuterProducts(span, (a, b), head=self.positions)
        by_row = gradient.new_empty(*gradient.shape[:-1], self.shape[1])  # [..., rows, o, 1 + i]
        by_row[..., 0] = gradient.sum(-1)
        products = (gradient @ patches.flatten(-3)).unflatten(-1, patches.shape[-3:])
        by_row[..., 1:].unflatten(-1, self._weight_shape[1:]).copy_(products.movedim(-1, -3))
        gradients = by_row.flatten(-2).unflatten(-2, roles)
        return Materialized(span, (gradients[..., 0, :, :], gradients.sum(-3)))

    def _weight(self, matrix: Tensor) -> Tensor:
        """Return the kernels of all runs, in channels-last memory format."""
        return matrix[..., 1:].unflatten(-1, self._weight_shape[1:]).movedim(-3, -1).contiguous().movedim(-1, -3)

    def _backward(self, gradient: Tensor, x: Tensor, weight: Tensor, output_mask: tuple[bool, bool]) -> list[Tensor]:
        stride, padding, output_padding = [self._stride] * 2, [self._padding] * 2, [0, 0]
        return torch.ops.aten.convolution_backward(
            _square(gradient), x, weight, None, stride, padding, [1, 1], False, output_padding, 1, [*output_mask, False]
        )

    def _patches(self, x: Tensor) -> Tensor:
        """Return what the kernel is applied to, ``[..., rows, l, kernel rows, kernel columns, channels]``.

        Channels come last, as in memory, so that long runs of numbers are copied. (``F.unfold`` loops over rows on a
        GPU.)
        """
        image = F.pad(_square(x).movedim(-3, -1), (0, 0) + (self._padding,) * 4)
        patches = image.unfold(-3, self._kernel, self._stride).unfold(-3, self._kernel, self._stride)
        return patches.movedim(-3, -1).contiguous().flatten(-5, -4)


INITIALIZATIONS = ("default", "glorot")


def initial_parameters(layer: Layer, generator: torch.Generator, initialization: str = "default") -> Tensor:
    """Draw the parameters of a layer, ``[outputs · (1 + inputs)]``.

    ``"default"`` is the distribution of ``torch.nn.Linear`` and ``Conv2d``. ``"glorot"`` draws weights uniformly within
    ``±√(6 / (inputs + outputs))`` and sets biases to 0. A kernel has ``channels · k²`` inputs and ``channels_out``
    outputs, as in the authors' code; ``torch.nn.init.xavier_uniform_`` multiplies its outputs by ``k²`` too.
    """
    outputs, inputs = layer.shape[0], layer.shape[1] - 1
    bound = 1 / math.sqrt(inputs) if initialization == "default" else math.sqrt(6 / (inputs + outputs))
    parameters = (2 * torch.rand(layer.size, generator=generator, dtype=torch.float64) - 1) * bound
    if initialization == "glorot":
        parameters.view(layer.shape)[:, 0] = 0
    return parameters


def _map_runs(function: Callable[..., Tensor], *operands: tuple[Tensor, int]) -> Tensor:
    """Apply ``function`` to each run and stack the results.

    Args:
        operands: pairs of a tensor and the number of its last dimensions that belong to one run; the dimensions before
            them count runs and broadcast.
    """
    runs = torch.broadcast_shapes(*(x.shape[: x.ndim - own] for x, own in operands))
    if not runs:
        return function(*(x for x, _ in operands))
    flat = [x.expand(*runs, *x.shape[x.ndim - own :]).flatten(0, len(runs) - 1) for x, own in operands]
    # Transposed, so that the stack keeps the channels-last memory format of the results.
    results = _map_concurrently(lambda run: function(*(x[run] for x in flat)).mT, len(flat[0]), flat[0].device)
    return torch.stack(results).mT.unflatten(0, runs)


def _map_concurrently(function: Callable[[int], Tensor], count: int, device: torch.device) -> list[Tensor]:
    """Return ``[function(0), ..., function(count - 1)]``, computed on several streams of a GPU.

    One run alone underuses a GPU. The streams wait for the current stream first, and it waits for all of them at the
    end, so that the allocator never reuses memory of one stream in another that is ahead.
    """
    if device.type != "cuda" or count == 1:
        return [function(i) for i in range(count)]
    current, streams = torch.cuda.current_stream(device), _streams(device)[:count]
    for stream in streams:
        stream.wait_stream(current)
    results = []
    try:
        for i in range(count):
            with torch.cuda.stream(streams[i % len(streams)]):
                results.append(function(i))
    finally:
        for stream in streams:
            current.wait_stream(stream)
    return results


@cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(NUM_STREAMS)]


def _square(x: Tensor) -> Tensor:
    """Return ``[..., side²]`` as ``[..., side, side]``."""
    side = math.isqrt(x.shape[-1])
    return x.unflatten(-1, (side, side))


def _empty_with_ones_row(like: Tensor, inputs: int, rows: int) -> Tensor:
    """Return uninitialized columns ``[..., 1 + inputs, rows]`` with ones in the first row."""
    columns = like.new_empty(*like.shape[:-2], inputs + 1, rows)
    columns[..., 0, :] = 1
    return columns


def _sum_outer_products(b: Tensor, a: Tensor, out: Tensor) -> None:
    """Compute ``out ← Σ_k b_k a_kᵀ``."""
    rows = a.shape[-1]
    if not a.is_cuda:
        out.copy_(b @ a.mT)  # faster on a CPU than a product written to a strided ``out``
        return
    if rows > 2 * ROWS_PER_SPLIT:
        sizes = range(1, max(ROWS_PER_SPLIT, rows // MAX_ROW_SPLITS) + 1)
        split = max(size for size in sizes if rows % size == 0)
        if split > ROWS_PER_SPLIT // 4:
            split_b, split_a = (x.unflatten(-1, (-1, split)).movedim(-2, -3) for x in (b, a))
            torch.sum(split_b @ split_a.mT, -3, out=out)
            return
    torch.matmul(b, a.mT, out=out)
