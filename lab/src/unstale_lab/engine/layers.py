"""Layers of networks that are stepped side by side: each is a matrix, its bias the first column.

A dense layer sees vectors as columns, ``[..., inputs, rows]``: layers are narrow and rows many, and both the matrix
products and the activations of a CPU are several times as fast along a long last axis. A convolution sees pictures,
``[..., rows, channels, places]``, in memory with the channels of a place side by side, as convolutions like them.
What a layer keeps is columns below a 1 that meets the bias, or pictures.

Index letters: ``t`` is 0 for a state and 1 for its successor, ``k`` counts samples, ``l`` positions in a picture, ``i``
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

from unstale.samples import Matrix, Outer, Piece

# A product with a long sum and a small result keeps little of a GPU busy: the sum is cut up there.
PART, PARTS = 128, 64  # samples that go together; and how many such parts, where samples are many
LONG, FEW, PIECES = 4096, 256, 16  # inputs that are many, rows that are few, and how many pieces inputs are cut into
STREAMS = 8  # convolutions that a GPU does at a time
Write = Callable[[Tensor], object]  # fills the tensor it is given with activations


class Layer(ABC):
    row_axis: int  # of what it keeps and of what comes out

    def __init__(self, inputs: int, outputs: int, positions: int) -> None:
        self.shape = (outputs, inputs + 1)
        self.positions = positions

    @property
    def size(self) -> int:
        """Parameters, bias included."""
        return self.shape[0] * self.shape[1]

    @property
    def work(self) -> int:
        """Multiply-adds a row."""
        return self.size * self.positions

    @abstractmethod
    def keep(self, x: Tensor) -> Tensor:
        """What the matrix meets of activations."""

    @abstractmethod
    def apply(self, matrix: Tensor, kept: Tensor) -> Tensor:
        """What comes out."""

    @abstractmethod
    def into(self, matrix: Tensor, gradient: Tensor) -> Tensor:
        """The gradient by the activations, of that by what came out."""

    @abstractmethod
    def sum_into(self, out: Tensor, kept: Tensor, gradient: Tensor) -> None:
        """``out [..., o, i]`` ← the gradient by the matrix, of all rows together."""

    @abstractmethod
    def by_sample(self, span: slice, kept: Tensor, gradient: Tensor, roles: tuple[int, int]) -> Piece:
        """The gradients by the matrix of rows that are ``roles``: of so many kinds, so many samples."""

    def keep_written(self, write: Write, like: Tensor) -> tuple[Tensor, Tensor]:
        """What is kept of activations that ``write`` fills in, and those, of the shape of ``like``."""
        h = torch.empty_like(like)
        write(h)
        return self.keep(h), h


class Dense(Layer):
    """Every input meets every output."""

    row_axis = -1

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, positions=1)

    def keep(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 1, 0), value=1.0)

    def keep_written(self, write: Write, like: Tensor) -> tuple[Tensor, Tensor]:
        columns = _below_ones(like, *like.shape[-2:])
        write(columns[..., 1:, :])
        return columns, columns[..., 1:, :]

    def apply(self, matrix: Tensor, kept: Tensor) -> Tensor:
        inputs = self.shape[1] - 1
        if not kept.is_cuda or inputs < LONG or inputs % PIECES or kept.shape[-1] > FEW:
            return matrix @ kept
        pieces = matrix[..., 1:].unflatten(-1, (PIECES, -1)).movedim(-2, -3)
        return (pieces @ kept[..., 1:, :].unflatten(-2, (PIECES, -1))).sum(-3) + matrix[..., :1]

    def into(self, matrix: Tensor, gradient: Tensor) -> Tensor:
        return matrix[..., 1:].mT @ gradient

    def sum_into(self, out: Tensor, kept: Tensor, gradient: Tensor) -> None:
        _sum_outer(gradient, kept, out)

    def by_sample(self, span: slice, kept: Tensor, gradient: Tensor, roles: tuple[int, int]) -> Piece:
        a, b = (x.mT.unflatten(-2, roles) for x in (kept, gradient))  # [..., t, k, i]
        return Outer(span, (a, b), head=1)


class Flat(Dense):
    """A dense layer on a picture taken apart, channel by channel."""

    def __init__(self, channels: int, places: int, outputs: int) -> None:
        super().__init__(channels * places, outputs)
        self._picture = (channels, places)

    def keep(self, x: Tensor) -> Tensor:
        columns = _below_ones(x[..., 0], self.shape[1] - 1, x.shape[-3])
        columns[..., 1:, :].copy_(x.flatten(-2).mT)
        return columns

    keep_written = Layer.keep_written

    def into(self, matrix: Tensor, gradient: Tensor) -> Tensor:
        return super().into(matrix, gradient).mT.unflatten(-1, self._picture)


class Conv(Layer):
    """A convolution of square pictures, ``side`` pixels wide. Each run has a kernel of its own: patches laid out for
    all of them together would take room, and time to copy."""

    row_axis = -3

    def __init__(
        self, channels: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, *, side: int
    ) -> None:
        self.side_out = (side + 2 * padding - kernel) // stride + 1
        super().__init__(channels * kernel**2, outputs, positions=self.side_out**2)
        self._kernel, self._stride, self._padding = kernel, stride, padding
        self._weight_shape = (outputs, channels, kernel, kernel)
        self._side = side

    def keep(self, x: Tensor) -> Tensor:
        return x

    def apply(self, matrix: Tensor, kept: Tensor) -> Tensor:
        def convolve(weight: Tensor, bias: Tensor, kept: Tensor) -> Tensor:
            return F.conv2d(_square(kept), weight, bias, self._stride, self._padding).flatten(-2)

        return _run_by_run(convolve, (self._weight(matrix), 4), (matrix[..., 0], 1), (kept, 3))

    def into(self, matrix: Tensor, gradient: Tensor) -> Tensor:
        def backward(weight: Tensor, gradient: Tensor) -> Tensor:
            rows, channels = gradient.shape[0], self._weight_shape[1]
            like = gradient.new_empty(()).expand(rows, channels, self._side, self._side)  # only its shape counts
            return self._backward(gradient, like, weight, (True, False))[0].flatten(-2)

        return _run_by_run(backward, (self._weight(matrix), 4), (gradient, 3))

    def sum_into(self, out: Tensor, kept: Tensor, gradient: Tensor) -> None:
        def backward(kept: Tensor, gradient: Tensor) -> Tensor:
            like = gradient.new_empty(()).expand(self._weight_shape)
            return self._backward(gradient, _square(kept), like, (False, True))[1].flatten(1)

        out[..., 0] = gradient.sum((-3, -1))
        out[..., 1:] = _run_by_run(backward, (kept, 3), (gradient, 3))

    def by_sample(self, span: slice, kept: Tensor, gradient: Tensor, roles: tuple[int, int]) -> Piece:
        """Written out, unless factors would hold fewer numbers: a kernel meets many patches."""
        outputs, inputs = self.shape
        patches = self._patches(kept)  # [..., rows, i, l]
        if self.positions * (outputs + inputs) < self.size:
            patches = F.pad(patches, (0, 0, 1, 0), value=1.0)
            a, b = (x.unflatten(-3, roles).movedim(-1, -3).flatten(-4, -3) for x in (patches, gradient))
            return Outer(span, (a, b), head=self.positions)
        by_row = torch.cat([gradient.sum(-1, keepdim=True), gradient @ patches.mT], -1)
        gradients = by_row.flatten(-2).unflatten(-2, roles)
        return Matrix(span, (gradients[..., 0, :, :], gradients.sum(-3)))

    def _weight(self, matrix: Tensor) -> Tensor:
        """The kernels of all runs, their channels side by side."""
        return matrix[..., 1:].unflatten(-1, self._weight_shape[1:]).movedim(-3, -1).contiguous().movedim(-1, -3)

    def _backward(self, gradient: Tensor, seen: Tensor, weight: Tensor, wanted: tuple[bool, bool]) -> list[Tensor]:
        stride, padding, none = [self._stride] * 2, [self._padding] * 2, [0, 0]
        return torch.ops.aten.convolution_backward(
            _square(gradient), seen, weight, None, stride, padding, [1, 1], False, none, 1, [*wanted, False]
        )

    def _patches(self, x: Tensor) -> Tensor:
        """What the kernel sees at each position. (``F.unfold`` goes row by row on a GPU.)"""
        picture = F.pad(_square(x), (self._padding,) * 4)
        patches = picture.unfold(-2, self._kernel, self._stride).unfold(-2, self._kernel, self._stride)
        return patches.movedim((-2, -1), (-4, -3)).flatten(-2).flatten(-4, -2)


def initial(layer: Layer, generator: torch.Generator) -> Tensor:
    """Parameters as ``torch.nn.Linear`` and ``torch.nn.Conv2d`` draw them, ``[outputs · (1 + inputs)]``."""
    bound = 1 / math.sqrt(layer.shape[1] - 1)
    return (2 * torch.rand(layer.size, generator=generator, dtype=torch.float64) - 1) * bound


def _run_by_run(work: Callable[..., Tensor], *operands: tuple[Tensor, int]) -> Tensor:
    """``work`` done for each run. With every operand comes how many of its last dimensions are its own: those before
    count runs."""
    runs = torch.broadcast_shapes(*(x.shape[: x.ndim - own] for x, own in operands))
    if not runs:
        return work(*(x for x, _ in operands))
    each = [x.expand(*runs, *x.shape[x.ndim - own :]).flatten(0, len(runs) - 1) for x, own in operands]
    # What comes out has its channels side by side; so does the stack of it.
    done = _at_the_same_time(lambda number: work(*(x[number] for x in each)).mT, len(each[0]), each[0].device)
    return torch.stack(done).mT.unflatten(0, runs)


def _at_the_same_time(work: Callable[[int], Tensor], count: int, device: torch.device) -> list[Tensor]:
    """Of every number below the count. One run's work leaves most of a GPU idle: there it is done on several streams.

    They begin with what the present stream has done so far, and it waits for them. So no memory that one stream gives
    back is taken by another that is still ahead."""
    if device.type != "cuda" or count == 1:
        return [work(number) for number in range(count)]
    present, streams = torch.cuda.current_stream(device), _streams(device)[:count]
    for stream in streams:
        stream.wait_stream(present)
    done = []
    try:
        for number in range(count):
            with torch.cuda.stream(streams[number % len(streams)]):
                done.append(work(number))
    finally:
        for stream in streams:
            present.wait_stream(stream)
    return done


@cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(STREAMS)]


def _square(x: Tensor) -> Tensor:
    """Places as a square."""
    side = math.isqrt(x.shape[-1])
    return x.unflatten(-1, (side, side))


def _below_ones(like: Tensor, inputs: int, rows: int) -> Tensor:
    """Columns yet to be filled in, below a row of ones."""
    columns = like.new_empty(*like.shape[:-2], inputs + 1, rows)
    columns[..., 0, :] = 1
    return columns


def _sum_outer(b: Tensor, a: Tensor, out: Tensor) -> None:
    """``out ← Σ_k b_k a_kᵀ``."""
    rows = a.shape[-1]
    if not a.is_cuda:
        out.copy_(b @ a.mT)  # which is quicker there than to write to places apart
        return
    if rows > 2 * PART:
        part = max(size for size in range(1, max(PART, rows // PARTS) + 1) if rows % size == 0)
        if part > PART // 4:
            many_b, many_a = (x.unflatten(-1, (-1, part)).movedim(-2, -3) for x in (b, a))
            torch.sum(many_b @ many_a.mT, -3, out=out)
            return
    torch.matmul(b, a.mT, out=out)
