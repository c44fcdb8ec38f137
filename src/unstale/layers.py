"""Per-sample gradients of single layers, one function a kind.

Each takes the layer, its input and the gradients of its output, rows first, and yields for every parameter the
gradient that each row sends to it, in one of three forms. Positions ``t`` (time steps, pixels) come before rows
``r``: that keeps the prediction's and the target's positions contiguous when they are put side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Factors(NamedTuple):
    """A weight ``[o, i]`` whose gradient in row ``r`` is ``Σ_t outputs[t, r] inputs[t, r]ᵀ``."""

    inputs: Tensor
    outputs: Tensor


class Table(NamedTuple):
    """An embedding table: the rows looked up, ``[t, r]``, and the gradients sent to them, ``[t, r, o]``."""

    entries: Tensor
    outputs: Tensor


class Full(NamedTuple):
    """The gradient itself, flattened: ``[r, p]``."""

    gradient: Tensor


Form = Factors | Table | Full
Layer = Callable[[Any, Tensor, Tensor], Iterator[tuple[str, Form]]]


def linear(module: nn.Linear, x: Tensor, b: Tensor) -> Iterator[tuple[str, Form]]:
    if x.ndim == 1:
        x, b = x.unsqueeze(0), b.unsqueeze(0)
    if x.ndim == 2:
        yield "weight", Factors(x.unsqueeze(0), b.unsqueeze(0))
        yield "bias", Full(b)
    else:
        x, b = x.flatten(1, -2), b.flatten(1, -2)
        yield "weight", Factors(x.transpose(0, 1), b.transpose(0, 1))
        yield "bias", Full(b.sum(1))


def conv(module: nn.Conv1d | nn.Conv2d, x: Tensor, b: Tensor) -> Iterator[tuple[str, Form]]:
    """A convolution is a linear layer over the patches of its input, one position a pixel of its output."""
    size = len(module.kernel_size)
    if x.ndim == size + 1:
        x, b = x.unsqueeze(0), b.unsqueeze(0)
    padding = module._reversed_padding_repeated_twice
    if any(padding):
        x = F.pad(x, padding, mode="constant" if module.padding_mode == "zeros" else module.padding_mode)
    for axis, (kernel, stride, dilation) in enumerate(
        zip(module.kernel_size, module.stride, module.dilation, strict=True)
    ):
        # Windows as views, [..., pixels, ..., kernel], where F.unfold would launch a kernel for every image.
        x = x.unfold(axis + 2, dilation * (kernel - 1) + 1, stride)
        if dilation > 1:
            x = x[..., ::dilation]
    rows, groups = x.shape[0], module.groups
    width = module.weight.numel() // module.out_channels
    if size == 1:
        x, b = x.unsqueeze(2).unsqueeze(-2), b.unsqueeze(2)
    patches = x.permute(0, 2, 3, 1, 4, 5)  # [r, height, width, channels, kernel height, kernel width]
    if groups == 1:
        patches = patches.reshape(rows, -1, width)  # [r, t, i]
        yield "weight", Factors(patches.transpose(0, 1), b.flatten(2).permute(2, 0, 1))
    else:
        patches = patches.unflatten(3, (groups, -1)).permute(0, 3, 1, 2, 4, 5, 6)
        patches = patches.reshape(rows, groups, -1, width)  # [r, g, t, i]
        yield "weight", Full((b.flatten(2).unflatten(1, (groups, -1)) @ patches).flatten(1))
    yield "bias", Full(b.flatten(2).sum(2))


def embedding(module: nn.Embedding, index: Tensor, b: Tensor) -> Iterator[tuple[str, Form]]:
    if index.ndim == 0:
        index, b = index.unsqueeze(0), b.unsqueeze(0)
    if module.padding_idx is not None:
        b = b.masked_fill((index == module.padding_idx).unsqueeze(-1), 0)
    rows = index.shape[0]
    yield "weight", Table(index.reshape(rows, -1).T, b.reshape(rows, -1, b.shape[-1]).transpose(0, 1))


def layer_norm(module: nn.LayerNorm, x: Tensor, b: Tensor) -> Iterator[tuple[str, Form]]:
    if x.ndim == len(module.normalized_shape):
        x, b = x.unsqueeze(0), b.unsqueeze(0)
    normalized = F.layer_norm(x, module.normalized_shape, eps=module.eps)
    width = module.weight.numel()
    rows = x.shape[0]
    yield "weight", Full((b * normalized).reshape(rows, -1, width).sum(1))
    yield "bias", Full(b.reshape(rows, -1, width).sum(1))


LAYERS: dict[type[nn.Module], Layer] = {
    nn.Linear: linear,
    nn.Conv1d: conv,
    nn.Conv2d: conv,
    nn.Embedding: embedding,
    nn.LayerNorm: layer_norm,
}


def does_what_its_type_says(module: nn.Module) -> bool:
    """Whether a layer computes just what its type says, with parameters that are leaves of the graph."""
    if type(module) not in LAYERS or module._parameters.get("weight") is None:
        return False
    if not all(p is None or p.is_leaf for p in module._parameters.values()):
        return False
    if isinstance(module, nn.Embedding):
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    return True


def rows_of(module: nn.Module, x: Tensor) -> int:
    """How many rows a call had. An input without a batch axis is one row."""
    if isinstance(module, nn.LayerNorm):
        unbatched = len(module.normalized_shape)
    else:
        unbatched = {nn.Linear: 1, nn.Conv1d: 2, nn.Conv2d: 3, nn.Embedding: 0}[type(module)]
    return 1 if x.ndim == unbatched else x.shape[0]


def per_row(module: nn.Module, x: Tensor, outputs: Tensor, dtype: torch.dtype) -> Iterator[tuple[str, Form]]:
    """The gradients of every parameter of a layer, row by row, from its input and its output's gradients."""
    if x.dtype != dtype and x.is_floating_point():
        x = x.to(dtype)
    if outputs.dtype != dtype:
        outputs = outputs.to(dtype)
    return LAYERS[type(module)](module, x, outputs)
