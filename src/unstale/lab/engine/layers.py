"""Layers of networks that are stepped side by side: each is a matrix, its bias the first column.

A dense layer sees vectors as columns, ``[..., inputs, rows]``: layers are narrow and rows many, and both the matrix
products and the activations of a CPU are several times as fast along a long last axis. A convolution sees pictures,
``[..., rows, channels, places]``. What a layer keeps of them is what its matrix meets: columns below a 1 that meets the
bias, or the patches that a kernel sees.

Index letters: ``t`` is 0 for a state and 1 for its successor, ``k`` counts samples, ``l`` positions in a picture, ``i``
and ``o`` inputs and outputs of a layer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ...samples import Matrix, Outer, Piece

PARTS = 64  # of a sum over samples on a GPU, at least, where they are many
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
    def summed(self, kept: Tensor, gradient: Tensor) -> Tensor:
        """The gradient by the matrix, ``[..., o, i]``, of all rows together."""

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
        return matrix @ kept

    def into(self, matrix: Tensor, gradient: Tensor) -> Tensor:
        return matrix[..., 1:].mT @ gradient

    def summed(self, kept: Tensor, gradient: Tensor) -> Tensor:
        return _summed_outer(gradient, kept)

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
    """A convolution of square pictures, ``side`` pixels wide."""

    row_axis = -3

    def __init__(
        self, channels: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, *, side: int
    ) -> None:
        self.side_out = (side + 2 * padding - kernel) // stride + 1
        super().__init__(channels * kernel**2, outputs, positions=self.side_out**2)
        self._channels, self._side = channels, side
        self._geometry = dict(kernel_size=kernel, stride=stride, padding=padding)

    def keep(self, x: Tensor) -> Tensor:
        pictures = x.reshape(-1, self._channels, self._side, self._side)
        return F.unfold(pictures, **self._geometry).unflatten(0, x.shape[:-2])  # [..., rows, i, l]

    def apply(self, matrix: Tensor, kept: Tensor) -> Tensor:
        bias, weight = matrix.unsqueeze(-3).split([1, self.shape[1] - 1], -1)
        return (weight @ kept).add_(bias)

    def into(self, matrix: Tensor, gradient: Tensor) -> Tensor:
        patches = matrix[..., 1:].mT.unsqueeze(-3) @ gradient
        pictures = F.fold(patches.flatten(0, -3), (self._side, self._side), **self._geometry)
        return pictures.reshape(*patches.shape[:-2], self._channels, self._side**2)

    def summed(self, kept: Tensor, gradient: Tensor) -> Tensor:
        return self._by_row(kept, gradient).sum(-3)

    def by_sample(self, span: slice, kept: Tensor, gradient: Tensor, roles: tuple[int, int]) -> Piece:
        """Written out, unless factors would hold fewer numbers: a kernel meets many patches."""
        outputs, inputs = self.shape
        if self.positions * (outputs + inputs) < self.size:
            ones = F.pad(kept, (0, 0, 1, 0), value=1.0)
            a, b = (x.unflatten(-3, roles).movedim(-1, -3).flatten(-4, -3) for x in (ones, gradient))  # [..., tl, k, i]
            return Outer(span, (a, b), head=self.positions)
        gradients = self._by_row(kept, gradient).flatten(-2).unflatten(-2, roles)
        return Matrix(span, (gradients[..., 0, :, :], gradients.sum(-3)))

    def _by_row(self, kept: Tensor, gradient: Tensor) -> Tensor:
        """``[..., rows, o, i]``."""
        return torch.cat([gradient.sum(-1, keepdim=True), gradient @ kept.mT], -1)


def initial(layer: Layer, generator: torch.Generator) -> Tensor:
    """Parameters as ``torch.nn.Linear`` and ``torch.nn.Conv2d`` draw them, ``[outputs · (1 + inputs)]``."""
    bound = 1 / math.sqrt(layer.shape[1] - 1)
    return (2 * torch.rand(layer.size, generator=generator, dtype=torch.float64) - 1) * bound


def _below_ones(like: Tensor, inputs: int, rows: int) -> Tensor:
    """Columns yet to be filled in, below a row of ones."""
    columns = like.new_empty(*like.shape[:-2], inputs + 1, rows)
    columns[..., 0, :] = 1
    return columns


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
