"""Per-sample gradients of layers, one rule per kind of autograd node.

A layer is recognized by the node that it leaves in the graph: a product with a weight, a convolution, a normalization.
The node holds what the rule needs (the layer's input), so it does not matter which module made it, how that module was
called, or what was done to its output. A rule takes the gradients of the node's output, rows first, and yields the
gradient that every row sends to each parameter, as the tensors of one of the classes in :mod:`.gradients`.

Index letters: ``r`` rows, ``t`` positions within a row (pixels, time steps), ``o`` and ``i`` outputs and inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .autograd_graph import (
    Edge,
    Node,
    Unavailable,
    inputs,
    is_complex,
    leaf_variable,
    operation,
    saved,
    saved_dim,
    saved_int,
    shape,
)
from .gradients import EmbeddingRows, Materialized, OuterProducts, SampleGradients
from .owners import Owner, Shared, shortened
from .row_rules import Edges


class RowGradients(NamedTuple):
    """The gradients that rows send to one parameter: the tensors of ``kind``, with rows in the place of samples.

    ``OuterProducts``: inputs ``[t, r, i]`` and output gradients ``[t, r, o]``. ``EmbeddingRows``: indices
    ``[t, r]`` and their gradients ``[t, r, o]``. ``Materialized``: the gradients themselves, ``[r, p]``.
    """

    parameter: Tensor
    kind: type[SampleGradients]
    tensors: tuple[Tensor, ...]


class LayerCall(NamedTuple):
    """One use of a layer: the edge of its output, and the rule that turns the output's gradients into those of rows."""

    edge: Edge
    row_gradients: Callable[[Tensor], Iterator[RowGradients]]


class _Match(NamedTuple):
    """``owner [r]`` of the rows, and the places of the input edges that the rule takes care of."""

    call: LayerCall
    owner: Tensor
    handled: list[int]


def is_layer(node: Node) -> bool:
    """Whether there is a rule for a node."""
    return operation(node) in LAYERS


def match_layer(node: Node, owners: dict[int, Owner], edges: Edges) -> _Match | None:
    """Recognize a layer whose rows have one owner each; None for anything else."""
    owner = owners.get(0)
    if len(owners) > 1 or not isinstance(owner, Tensor):
        return None
    try:
        # Gradients of complex tensors contain conjugates, which the rules do not know of.
        return None if is_complex((node, 0)) else LAYERS[operation(node)](node, owner, edges)
    except Unavailable:
        return None


def _leaf(edge: Edge | tuple[None, int]) -> tuple[Tensor, bool] | None:
    """The parameter behind an edge, and whether it was transposed on the way. Casts (autocast) are passed over."""
    node, transposed = edge[0], False
    while node is not None:
        leaf = leaf_variable(node)
        if leaf is not None:
            return leaf, transposed
        name = operation(node)
        if name == "TBackward0":
            transposed = not transposed
        elif name == "TransposeBackward0":
            ndim = len(shape((node, 0)))
            if ndim != 2 or saved_dim(node, 2, "dim0") == saved_dim(node, 2, "dim1"):
                return None
            transposed = not transposed
        elif name != "ToCopyBackward0":
            return None
        node = inputs(node)[0][0]
    return None


def _plain_leaf(edge: Edge | tuple[None, int], size: tuple[int, ...]) -> Tensor | None:
    """The parameter of the given shape behind an edge that does not transpose it."""
    found = _leaf(edge)
    return found[0] if found and not found[1] and tuple(found[0].shape) == size else None


def _row_owner(owner: Tensor, rows: int, name: str) -> Tensor | None:
    """The owner ``[r]`` of the rows of an output ``[r, ...]``."""
    short = shortened(owner, 1, name)
    if isinstance(short, Shared):
        return None
    return short.expand(rows) if short.ndim == 0 else short


# ----------------------------------------------------------------------------------------------------------- layers


def addmm(node: Node, owner: Tensor, edges: Edges) -> _Match | None:
    """``bias + x @ weightᵀ``."""
    if saved(node, "alpha") != 1 or saved(node, "beta") != 1:
        return None
    return _product(node, owner, edges[2], 2, "mat1", edges[0])


def mm(node: Node, owner: Tensor, edges: Edges) -> _Match | None:
    """``x @ weightᵀ``."""
    return _product(node, owner, edges[1], 1, "self")


def _product(
    node: Node, owner: Tensor, weight_edge: Edge, place: int, name: str, bias_edge: Edge | tuple[None, int] = (None, 0)
) -> _Match | None:
    rows, outputs = shape((node, 0))
    weight, bias = _leaf(weight_edge), _plain_leaf(bias_edge, (outputs,))
    row_owner = _row_owner(owner, rows, operation(node))
    if row_owner is None or (weight is None and bias is None):
        return None
    x: Any = saved(node, name) if weight is not None else None

    def row_gradients(b: Tensor) -> Iterator[RowGradients]:
        if weight is not None:
            parameter, transposed = weight
            # A weight that is used as it is, x @ weight, has the roles of inputs and outputs exchanged.
            a, b_ = x.to(b.dtype).unsqueeze(0), b.unsqueeze(0)
            yield RowGradients(parameter, OuterProducts, (a, b_) if transposed else (b_, a))
        if bias is not None:
            yield RowGradients(bias, Materialized, (b,))

    handled = [place] * (weight is not None) + [0] * (bias is not None)
    return _Match(LayerCall((node, 0), row_gradients), row_owner, handled)


def convolution(node: Node, owner: Tensor, edges: Edges) -> _Match | None:
    """A convolution is a linear layer over the patches of its input, with one position per pixel of its output."""
    out_shape = shape((node, 0))
    size = len(out_shape) - 2
    row_owner = _row_owner(owner, out_shape[0], operation(node))
    if row_owner is None or size not in (1, 2) or saved(node, "transposed"):
        return None
    found = _leaf(edges[1])
    weight = found[0] if found and not found[1] and found[0].ndim == size + 2 else None
    bias = _plain_leaf(edges[2], (out_shape[1],))
    if weight is None and bias is None:
        return None
    settings = [list(saved(node, name)) for name in ("padding", "stride", "dilation")]
    groups, x = saved_int(node, "groups"), saved(node, "input")

    def row_gradients(b: Tensor) -> Iterator[RowGradients]:
        if weight is not None:
            patches = _patches(x.to(b.dtype), weight.shape[2:], *settings)
            if groups == 1:
                patches = patches.reshape(len(x), -1, weight[0].numel())  # [r, t, i]
                yield RowGradients(weight, OuterProducts, (patches.transpose(0, 1), b.flatten(2).permute(2, 0, 1)))
            else:
                patches = patches.unflatten(3, (groups, -1)).permute(0, 3, 1, 2, 4, 5, 6)
                patches = patches.reshape(len(x), groups, -1, weight[0].numel())  # [r, g, t, i]
                grouped = b.flatten(2).unflatten(1, (groups, -1)) @ patches
                yield RowGradients(weight, Materialized, (grouped.flatten(1),))
        if bias is not None:
            yield RowGradients(bias, Materialized, (b.flatten(2).sum(2),))

    handled = [1] * (weight is not None) + [2] * (bias is not None)
    return _Match(LayerCall((node, 0), row_gradients), row_owner, handled)


def _patches(x: Tensor, kernel: torch.Size, padding: list[int], stride: list[int], dilation: list[int]) -> Tensor:
    """The patches that a convolution sees, as a view ``[r, height, width, channels, kernel height, kernel width]``."""
    if any(padding):
        x = F.pad(x, [amount for side in reversed(padding) for amount in (side, side)])
    for axis, (length, step, spread) in enumerate(zip(kernel, stride, dilation, strict=True)):
        # Views, where F.unfold would launch a kernel for every image.
        x = x.unfold(axis + 2, spread * (length - 1) + 1, step)
        if spread > 1:
            x = x[..., ::spread]
    if len(kernel) == 1:
        x = x.unsqueeze(2).unsqueeze(-2)
    return x.permute(0, 2, 3, 1, 4, 5)


def embedding(node: Node, owner: Tensor, edges: Edges) -> _Match | None:
    found = _leaf(edges[0])
    if found is None or found[1] or saved(node, "scale_grad_by_freq"):
        return None
    weight, index, padding = found[0], saved(node, "indices"), saved_int(node, "padding_idx")
    if owner.ndim > index.ndim:
        return None
    rows = owner.numel()

    def row_gradients(b: Tensor) -> Iterator[RowGradients]:
        if padding >= 0:
            b = b.masked_fill((index == padding).unsqueeze(-1), 0)
        by_row = b.reshape(rows, -1, b.shape[-1]).transpose(0, 1)
        yield RowGradients(weight, EmbeddingRows, (index.reshape(rows, -1).T, by_row))

    return _Match(LayerCall((node, 0), row_gradients), owner.flatten(), [0])


def layer_norm(node: Node, owner: Tensor, edges: Edges) -> _Match | None:
    normalized_shape = tuple(saved(node, "normalized_shape"))
    ndim = len(shape((node, 0)))
    mean, rstd, x = saved(node, "result1"), saved(node, "result2"), saved(node, "input")
    if owner.ndim > ndim - len(normalized_shape):
        return None
    return _affine(node, owner, edges, normalized_shape, lambda: (x - mean) * rstd)


def group_norm(node: Node, owner: Tensor, edges: Edges) -> _Match | None:
    out_shape = shape((node, 0))
    groups, x = saved_int(node, "group"), saved(node, "input")
    mean, rstd = saved(node, "result1").unsqueeze(-1), saved(node, "result2").unsqueeze(-1)

    def normalized() -> Tensor:
        by_group = x.reshape(out_shape[0], groups, -1)
        return ((by_group - mean.reshape(-1, groups, 1)) * rstd.reshape(-1, groups, 1)).reshape(out_shape)

    return _by_channel(node, owner, edges, normalized)


def batch_norm(node: Node, owner: Tensor, edges: Edges) -> _Match | None:
    """Batch normalization in evaluation mode."""
    if saved(node, "training"):
        return None
    x, mean, variance, eps = (saved(node, name) for name in ("input", "running_mean", "running_var", "eps"))
    by_channel = (-1, *[1] * (x.ndim - 2))
    return _by_channel(
        node, owner, edges, lambda: (x - mean.reshape(by_channel)) * (variance + eps).rsqrt().reshape(by_channel)
    )


def _by_channel(node: Node, owner: Tensor, edges: Edges, normalized: Callable[[], Tensor]) -> _Match | None:
    """A scale and a bias per channel of an output ``[r, channels, ...]``."""
    out_shape = shape((node, 0))
    row_owner = _row_owner(owner, out_shape[0], operation(node))
    if row_owner is None:
        return None
    parameters = [_plain_leaf(edge, (out_shape[1],)) for edge in edges[1:3]]
    return _scale_and_bias(node, row_owner, parameters, normalized, lambda x: x.reshape(*out_shape[:2], -1).sum(-1))


def _affine(
    node: Node, owner: Tensor, edges: Edges, size: tuple[int, ...], normalized: Callable[[], Tensor]
) -> _Match | None:
    """A scale and a bias over the last dimensions of an output ``[*owner.shape, ..., *size]``."""
    rows, width = owner.numel(), torch.Size(size).numel()
    parameters = [_plain_leaf(edge, size) for edge in edges[1:3]]
    return _scale_and_bias(node, owner.flatten(), parameters, normalized, lambda x: x.reshape(rows, -1, width).sum(1))


def _scale_and_bias(
    node: Node,
    owner: Tensor,
    parameters: list[Tensor | None],
    normalized: Callable[[], Tensor],
    summed: Callable[[Tensor], Tensor],
) -> _Match | None:
    weight, bias = parameters
    if weight is None and bias is None:
        return None

    def row_gradients(b: Tensor) -> Iterator[RowGradients]:
        if weight is not None:
            yield RowGradients(weight, Materialized, (summed(b * normalized().to(b)),))
        if bias is not None:
            yield RowGradients(bias, Materialized, (summed(b),))

    handled = [1] * (weight is not None) + [2] * (bias is not None)
    return _Match(LayerCall((node, 0), row_gradients), owner, handled)


def add(node: Node, owner: Tensor, edges: Edges) -> _Match | None:
    """A parameter that is added to every row."""
    if saved(node, "alpha") != 1:
        return None
    return _broadcast_parameter(node, owner, edges, lambda place: None)


def mul(node: Node, owner: Tensor, edges: Edges) -> _Match | None:
    """A parameter that every row is multiplied by."""
    return _broadcast_parameter(node, owner, edges, lambda place: saved(node, ("other", "self")[place]))


def _broadcast_parameter(
    node: Node, owner: Tensor, edges: Edges, factor_of: Callable[[int], Tensor | None]
) -> _Match | None:
    """A parameter that an elementwise operation spreads over the rows of an output ``[*owner.shape, *rest]``."""
    rest = shape((node, 0))[owner.ndim :]
    for place in (1, 0):
        found = _leaf(edges[place])
        size = None if found is None or found[1] else _without_rows(tuple(found[0].shape), len(rest))
        if found is not None and size is not None:
            rule = _summed_over_spread(found[0], owner.numel(), rest, size, factor_of(place))
            return _Match(LayerCall((node, 0), rule), owner.flatten(), [place])
    return None


def _without_rows(size: tuple[int, ...], ndim: int) -> tuple[int, ...] | None:
    """A parameter's shape without the dimensions of size 1 that stand in the place of rows; None if rows have their own
    entries."""
    extra = max(0, len(size) - ndim)
    return size[extra:] if all(length == 1 for length in size[:extra]) else None


def _summed_over_spread(
    parameter: Tensor, rows: int, rest: tuple[int, ...], size: tuple[int, ...], factor: Tensor | None
) -> Callable[[Tensor], Iterator[RowGradients]]:
    full = (1,) * (len(rest) - len(size)) + size
    spread = [d + 1 for d, (own, out) in enumerate(zip(full, rest, strict=True)) if own != out]

    def row_gradients(b: Tensor) -> Iterator[RowGradients]:
        each = (b if factor is None else b * factor).reshape(rows, *rest)
        each = each.sum(spread) if spread else each
        yield RowGradients(parameter, Materialized, (each.reshape(rows, -1),))

    return row_gradients


LAYERS: dict[str, Callable[[Node, Tensor, Edges], _Match | None]] = {
    "AddBackward0": add,
    "AddmmBackward0": addmm,
    "ConvolutionBackward0": convolution,
    "CudnnBatchNormBackward0": batch_norm,
    "EmbeddingBackward0": embedding,
    "MmBackward0": mm,
    "MulBackward0": mul,
    "NativeBatchNormBackward0": batch_norm,
    "NativeGroupNormBackward0": group_norm,
    "NativeLayerNormBackward0": layer_norm,
}
