"""Owners: which sample every part of a tensor serves.

An *owner* is an int64 tensor on the CPU whose shape is a prefix of the tensor's. Entry ``k`` means that this part
influences sample ``k`` at most; -1 means none. The owner of a prediction ``[m]`` is ``arange(m)``, and that of a
layer's output ``[m, h]`` below it is usually the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .autograd_graph import Unavailable


class Shared(NamedTuple):
    """Parts of a tensor may influence several samples; ``reason`` names the operation that makes it so."""

    reason: str


Owner = Tensor | Shared
Shape = tuple[int, ...]


def merge(one: Owner, other: Owner, reason: str) -> Owner:
    """The owner of a tensor with two consumers."""
    if one is other or isinstance(one, Shared):
        return one
    if isinstance(other, Shared):
        return other
    ndim = max(one.ndim, other.ndim)
    a, b = torch.broadcast_tensors(padded(one, ndim), padded(other, ndim))
    if bool(((a == b) | (a < 0) | (b < 0)).all()):
        return torch.maximum(a, b)
    return Shared(reason)


def merge_all(owners: Sequence[Tensor], reason: str) -> Owner:
    """The owner of a tensor with several consumers."""
    result: Owner = owners[0]
    for owner in owners[1:]:
        result = merge(result, owner, reason)
    return result


def padded(owner: Tensor, ndim: int) -> Tensor:
    """``owner`` with dimensions of size 1 added at the end."""
    return owner.reshape(owner.shape + (1,) * (ndim - owner.ndim))


def common(owner: Tensor, dims: Sequence[int], reason: str) -> Owner:
    """The owner that all entries along ``dims`` have in common, with these dimensions kept at size 1."""
    if not dims or owner.numel() == 0:
        return owner
    highest = owner.amax(tuple(dims), keepdim=True)
    return highest if bool(((owner == highest) | (owner < 0)).all()) else Shared(reason)


def shortened(owner: Tensor, ndim: int, reason: str) -> Owner:
    """The owner over the first ``ndim`` dimensions alone."""
    if owner.ndim <= ndim:
        return owner
    result = common(owner, range(ndim, owner.ndim), reason)
    return result if isinstance(result, Shared) else result.reshape(result.shape[:ndim])


def broadcast_owner(owner: Tensor, out_shape: Shape, in_shape: Shape, reason: str) -> Owner:
    """The owner of an input that an elementwise operation broadcasts to ``out_shape``."""
    if in_shape == out_shape or owner.numel() == 0:  # an empty tensor influences nothing, whatever its owner
        return owner
    added = len(out_shape) - len(in_shape)
    spread = [d for d in range(owner.ndim) if d < added or in_shape[d - added] != out_shape[d]]
    result = common(owner, spread, reason)
    return result if isinstance(result, Shared) else result.reshape(result.shape[added:])


def view_owner(owner: Tensor, out_shape: Shape, in_shape: Shape) -> Tensor:
    """The owner of an input with the same elements in the same order."""
    if owner.ndim == 0 or (owner.ndim == 1 and in_shape and in_shape[0] == out_shape[0]):
        return owner
    for ndim in range(owner.ndim, len(out_shape) + 1):
        size = math.prod(out_shape[:ndim])
        for length in range(len(in_shape) + 1):
            if math.prod(in_shape[:length]) == size:
                return padded(owner, ndim).expand(out_shape[:ndim]).reshape(in_shape[:length])
    raise Unavailable("a view of another size")


def scattered(owner: Tensor, index: Tensor, size: int, reason: str) -> Owner:
    """The owner ``[size]`` of rows that ``index [k]`` picks for the parts of ``owner [k]``."""
    rows = owner.new_full((size,), -1)
    rows[index] = owner
    return rows if torch.equal(rows[index], owner) else Shared(reason)


def permuted(owner: Tensor, dims: list[int], in_shape: Shape) -> Tensor:
    """The owner of an input whose dimension ``dims[d]`` became the output's dimension ``d``."""
    if owner.ndim == 0:
        return owner
    length = max(dims[: owner.ndim]) + 1
    back = sorted(range(len(dims)), key=dims.__getitem__)
    full = padded(owner, len(dims)).permute(back)
    return full.reshape(full.shape[:length]).expand(in_shape[:length])
