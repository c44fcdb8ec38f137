"""Layers of networks that are stepped side by side: every one is a matrix, met by columns.

A layer sees activations ``[..., channels, rows · places]`` and lays them out as columns, ``[..., 1 + inputs, rows ·
positions]``, whose first entry is always 1 and meets the bias. ``places`` are those of the picture that comes in (1 for
a plain vector), ``positions`` those of the one that goes out.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Write = Callable[[Tensor], object]  # fills the tensor it is given with activations


class Layer(ABC):
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
    def columns(self, x: Tensor) -> Tensor:
        """Activations laid out for the matrix."""

    @abstractmethod
    def spread(self, gradient: Tensor) -> Tensor:
        """The gradient by the activations, of that by the columns without their first entry."""

    def laid_out(self, write: Write, like: Tensor) -> tuple[Tensor, Tensor]:
        """The columns of activations that ``write`` fills in, and those activations, of the shape of ``like``."""
        h = torch.empty_like(like)
        write(h)
        return self.columns(h), h


class Dense(Layer):
    """Every input meets every output."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, positions=1)

    def columns(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 1, 0), value=1.0)

    def spread(self, gradient: Tensor) -> Tensor:
        return gradient

    def laid_out(self, write: Write, like: Tensor) -> tuple[Tensor, Tensor]:
        columns = _room(like, like.shape[-2], like.shape[-1])
        write(columns[..., 1:, :])
        return columns, columns[..., 1:, :]


class Flat(Layer):
    """A dense layer on a picture taken apart, channel by channel."""

    def __init__(self, channels: int, places: int, outputs: int) -> None:
        super().__init__(channels * places, outputs, positions=1)
        self._channels, self._places = channels, places

    def columns(self, x: Tensor) -> Tensor:
        by_row = x.unflatten(-1, (-1, self._places))
        columns = _room(x, self._channels * self._places, by_row.shape[-2])
        columns[..., 1:, :].unflatten(-2, (self._channels, self._places)).copy_(by_row.mT)
        return columns

    def spread(self, gradient: Tensor) -> Tensor:
        return gradient.unflatten(-2, (self._channels, self._places)).mT.flatten(-2)


class Conv(Layer):
    """A convolution of square pictures, ``side`` pixels wide. Columns are the patches that its kernel sees."""

    def __init__(
        self, channels: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, *, side: int
    ) -> None:
        self.side_out = (side + 2 * padding - kernel) // stride + 1
        super().__init__(channels * kernel**2, outputs, positions=self.side_out**2)
        self._channels, self._side = channels, side
        self._kernel, self._stride, self._padding = kernel, stride, padding

    def columns(self, x: Tensor) -> Tensor:
        picture = F.pad(x.unflatten(-1, (-1, self._side, self._side)), (self._padding,) * 4)
        patches = picture.unfold(-2, self._kernel, self._stride).unfold(-2, self._kernel, self._stride)
        rows = picture.shape[-3]
        columns = _room(x, self._channels * self._kernel**2, rows * self.positions)
        self._by_patch(columns[..., 1:, :], rows).copy_(patches.movedim((-2, -1), (-5, -4)))
        return columns

    def spread(self, gradient: Tensor) -> Tensor:
        side = self._side + 2 * self._padding
        rows = gradient.shape[-1] // self.positions
        picture = gradient.new_zeros(*gradient.shape[:-2], self._channels, rows, side, side)
        patches = self._by_patch(gradient, rows)
        reach = self._stride * (self.side_out - 1) + 1
        for i in range(self._kernel):
            for j in range(self._kernel):
                met = picture[..., i : i + reach : self._stride, j : j + reach : self._stride]
                met += patches[..., i, j, :, :, :]
        inside = slice(self._padding, self._padding + self._side)
        return picture[..., inside, inside].flatten(-3)

    def _by_patch(self, columns: Tensor, rows: int) -> Tensor:
        """``[..., channels, kernel, kernel, rows, side, side]``."""
        split = columns.unflatten(-2, (self._channels, self._kernel, self._kernel))
        return split.unflatten(-1, (rows, self.side_out, self.side_out))


def initial(layer: Layer, generator: torch.Generator) -> Tensor:
    """Parameters as ``torch.nn.Linear`` and ``torch.nn.Conv2d`` draw them, ``[outputs · (1 + inputs)]``."""
    bound = 1 / math.sqrt(layer.shape[1] - 1)
    return (2 * torch.rand(layer.size, generator=generator, dtype=torch.float64) - 1) * bound


def _room(like: Tensor, inputs: int, length: int) -> Tensor:
    """Columns yet to be filled in, below their ones."""
    columns = like.new_empty(*like.shape[:-2], inputs + 1, length)
    columns[..., 0, :] = 1
    return columns
