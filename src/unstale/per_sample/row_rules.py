"""How the rows of an operation's output depend on the rows of its inputs, one rule per operation.

A rule takes a node of the autograd graph with the owner of its output (:mod:`.owners`). It returns the owner of every
input, or :class:`Shared` for an input whose parts may influence several samples. Rules follow from what an operation is
and from the shapes, dimensions and indices that it was called with, never from the values that flow through it. They
may claim too much dependence, never too little. An operation without a rule shares its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .autograd_graph import (
    Edge,
    Node,
    Unavailable,
    is_ddp_output,
    operation,
    output_count,
    saved,
    saved_dim,
    saved_dims,
    saved_int,
    shape,
)
from .owners import (
    Owner,
    Shape,
    Shared,
    broadcast_owner,
    common,
    merge_all,
    padded,
    permuted,
    scattered,
    shortened,
    view_owner,
)

Edges = Sequence[Edge | tuple[None, int]]
Rule = Callable[[Node, Tensor, Edges], "list[Owner | None]"]


def input_owners(node: Node, owners: dict[int, Owner], edges: Edges) -> list[Owner | None]:
    """The owner of every input of ``node``, given those of its outputs; None for one without influence."""
    name = operation(node)
    try:
        for owner in owners.values():
            if isinstance(owner, Shared):
                refuse_batch_norm(node)
                return [owner] * len(edges)
        if name in MULTIPLE_OUTPUTS:
            return MULTIPLE_OUTPUTS[name](node, owners, edges)  # type: ignore[arg-type]
        if is_ddp_output(node):
            return [owners.get(number) for number in range(len(edges))]
        rule = RULES.get(name)
        if rule is not None and owners.keys() == {0}:
            return rule(node, owners[0], edges)  # type: ignore[arg-type]
    except Unavailable:
        pass
    return [Shared(name)] * len(edges)


# ------------------------------------------------------------------------------------------- operations on elements


def unary(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    """One input, of the output's shape, element by element."""
    return [owner] * len(edges)


def elementwise(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    """Element by element, with broadcasting."""
    out_shape = shape((node, 0))
    return [
        None if edge[0] is None else broadcast_owner(owner, out_shape, shape(edge), operation(node)) for edge in edges
    ]


def rowwise(trailing: int) -> Rule:
    """An operation whose last ``trailing`` dimensions mix, such as pooling over pixels."""

    def rule(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
        keep = len(shape((node, 0))) - trailing
        return [shortened(owner, keep, operation(node))] * len(edges)

    return rule


def along_dim(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    """An operation that mixes along one dimension and keeps the shape of the others, such as softmax."""
    ndim = len(shape((node, 0)))
    dim = saved_dim(node, ndim)
    if dim < owner.ndim:
        mixed = common(owner, [dim], operation(node))
        if isinstance(mixed, Shared) or shape((node, 0)) != shape(edges[0]):  # type: ignore[arg-type]
            return [Shared(operation(node))]
        owner = mixed.expand(owner.shape)
    return [owner]


def gather(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    out_shape, in_shape = shape((node, 0)), shape(edges[0])  # type: ignore[arg-type]
    dim = saved_dim(node, len(out_shape))
    rows = shortened(owner, dim, operation(node)) if dim else owner
    if isinstance(rows, Tensor) and dim >= rows.ndim and in_shape[: rows.ndim] == out_shape[: rows.ndim]:
        return [rows]
    if dim == 0 and len(in_shape) == 1:
        return [scattered(owner, saved(node, "index").cpu(), in_shape[0], operation(node))]
    return [Shared(operation(node))]


def reduction(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    """A sum, mean, maximum, … over some dimensions."""
    in_shape = shape(edges[0])  # type: ignore[arg-type]
    dims = saved_dims(node, len(in_shape))
    if not saved(node, "keepdim"):
        for dim in dims:
            if dim < owner.ndim:
                owner = owner.unsqueeze(dim)
    return [owner.expand(in_shape[: owner.ndim])]


def whole_reduction(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    """A sum, mean, … of all elements, which serve the same sample as the result."""
    return [owner.reshape(())]


# -------------------------------------------------------------------------------------------- operations on shapes


def view(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    return [view_owner(owner, shape((node, 0)), shape(edges[0]))]  # type: ignore[arg-type]


def permute(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    in_shape = shape(edges[0])  # type: ignore[arg-type]
    dims = [dim if dim >= 0 else dim + len(in_shape) for dim in map(_signed_dim, saved(node, "dims"))]
    return [permuted(owner, dims, in_shape)]


def _signed_dim(dim: int) -> int:
    return dim - (1 << 64) if dim >= 1 << 63 else dim


def transpose(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    in_shape = shape(edges[0])  # type: ignore[arg-type]
    dims = list(range(len(in_shape)))
    one, other = (saved_dim(node, len(dims), name) for name in ("dim0", "dim1"))
    dims[one], dims[other] = dims[other], dims[one]
    return [permuted(owner, dims, in_shape)]


def matrix_transpose(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    in_shape = shape(edges[0])  # type: ignore[arg-type]
    return [permuted(owner, list(range(len(in_shape)))[::-1], in_shape)]


def select(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    in_shape = shape(edges[0])  # type: ignore[arg-type]
    dim = saved_dim(node, len(in_shape))
    if dim >= owner.ndim:
        return [owner]
    rows = owner.new_full(in_shape[: owner.ndim + 1], -1)
    rows.select(dim, saved_int(node, "index")).copy_(owner)
    return [rows]


def slice_(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    in_shape = shape(edges[0])  # type: ignore[arg-type]
    dim = saved_dim(node, len(in_shape))
    if dim >= owner.ndim:
        return [owner]
    start, stop, step = (saved_int(node, name) for name in ("start", "end", "step"))
    rows = owner.new_full((*owner.shape[:dim], in_shape[dim], *owner.shape[dim + 1 :]), -1)
    rows[(slice(None),) * dim + (slice(start, stop, step),)] = owner
    return [rows]


def cat(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    out_shape = shape((node, 0))
    dim = saved_dim(node, len(out_shape))
    # torch lets empty vectors take part, whatever the shape of the others.
    edges = [edge if edge[0] is None or len(shape(edge)) == len(out_shape) else (None, 0) for edge in edges]
    if dim >= owner.ndim:
        return [None if edge[0] is None else owner for edge in edges]
    # An input that needs no gradient has no shape here: what lies between two such inputs cannot be placed.
    sizes = [None if edge[0] is None else shape(edge)[dim] for edge in edges]
    found: list[Owner | None] = [Shared(operation(node))] * len(edges)
    start, end = 0, out_shape[dim]
    for i, size in enumerate(sizes):
        if size is None:
            break
        found[i] = owner.narrow(dim, start, size)
        start += size
    for i, size in reversed(list(enumerate(sizes))):
        if size is None:
            break
        end -= size
        found[i] = owner.narrow(dim, end, size)
    return found


def stack(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    dim = saved_dim(node, len(shape((node, 0))))
    return [owner if dim >= owner.ndim else owner.select(dim, i) for i in range(len(edges))]


def flip(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    ndim = len(shape((node, 0)))
    dims = saved_dims(node, ndim, "dims") if saved(node, "dims") else []  # here an empty list means none
    return [owner.flip([dim for dim in dims if dim < owner.ndim])]


def index_select(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    in_shape = shape(edges[0])  # type: ignore[arg-type]
    dim = saved_dim(node, len(in_shape))
    if dim >= owner.ndim:
        return [owner]
    if dim == 0 and owner.ndim == 1:
        return [scattered(owner, saved(node, "index").cpu(), in_shape[0], operation(node))]
    return [Shared(operation(node))]


def _positions(indices: Sequence[Tensor | None], in_shape: Shape) -> tuple[Tensor, int] | None:
    """The parts of a tensor's first ``count`` dimensions that an index picks, numbered in order, and ``count``. None if
    the index does not begin with the first dimension, or goes on after a gap."""
    present = [index is not None for index in indices]
    count = present.index(False) if False in present else len(present)
    if not count or any(present[count:]):
        return None
    picked: list[Tensor] = []
    for index in indices[:count]:
        assert index is not None
        index = index.cpu()
        picked.extend(index.nonzero(as_tuple=True) if index.dtype in (torch.bool, torch.uint8) else [index.long()])
    flat = torch.zeros((), dtype=torch.int64)
    for index, size in zip(picked, in_shape, strict=False):
        flat = flat * size + torch.where(index < 0, index + size, index)
    return flat, len(picked)


def index(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    """``x[i, j, …]`` with tensors of whole numbers or masks, in the first dimensions or after the rows."""
    in_shape = shape(edges[0])  # type: ignore[arg-type]
    indices = saved(node, "indices")
    found = _positions(indices, in_shape)
    if found is None:  # after the rows
        first = next(place for place, part in enumerate(indices) if part is not None)
        rows = shortened(owner, first, operation(node)) if first and _is_contiguous(indices) else None
        return [rows if rows is not None else Shared(operation(node))]
    flat, count = found
    whole = shortened(owner, flat.ndim, operation(node))
    if isinstance(whole, Shared):
        return [whole]
    each = padded(whole, flat.ndim).expand(flat.shape).flatten()
    rows = scattered(each, flat.flatten(), math.prod(in_shape[:count]), operation(node))
    return [rows if isinstance(rows, Shared) else rows.reshape(in_shape[:count])]


def _is_contiguous(indices: Sequence[Tensor | None]) -> bool:
    """Whether the indices are adjacent. Otherwise torch moves their dimensions to the front."""
    places = [place for place, index in enumerate(indices) if index is not None]
    return places == list(range(places[0], places[-1] + 1))


def index_put(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    """``x[i, j, …] = values``: each value serves the sample of the place that it is written to."""
    out_shape = shape((node, 0))
    values: Owner | None = None
    if len(edges) > 1 and edges[1][0] is not None:
        found = _positions(saved(node, "indices"), out_shape)
        if found is None or owner.ndim > found[1]:
            values = Shared(operation(node))
        else:
            flat, count = found
            whole = padded(owner, count).expand(out_shape[:count]).flatten()
            values = broadcast_owner(whole[flat], (*flat.shape, *out_shape[count:]), shape(edges[1]), operation(node))
    return [owner, values, *[None] * (len(edges) - 2)]


def constant_pad(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    dims = len(saved(node, "pad")) // 2
    return [shortened(owner, len(shape((node, 0))) - dims, operation(node))]


# ------------------------------------------------------------------------------------ products and normalizations


def _used_by_all(edge: Edge | tuple[None, int], owner: Tensor, reason: str) -> Owner | None:
    """The owner of an input that every row uses: shared, unless all rows serve one sample."""
    if edge[0] is None:
        return None
    whole = common(owner, range(owner.ndim), reason)
    return whole if isinstance(whole, Shared) else whole.reshape(())


def mm(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    """``[r, i] @ [i, o]``: rows of the first factor stay apart, all of them use the second."""
    name = operation(node)
    return [shortened(owner, 1, name), _used_by_all(edges[1], owner, name)]


def addmm(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    name = operation(node)
    bias = None if edges[0][0] is None else broadcast_owner(owner, shape((node, 0)), shape(edges[0]), name)
    return [bias, shortened(owner, 1, name), _used_by_all(edges[2], owner, name)]


def bmm(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    name = operation(node)
    return [shortened(owner, 2, name), shortened(owner, 1, name)]


def baddbmm(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    name = operation(node)
    bias = None if edges[0][0] is None else broadcast_owner(owner, shape((node, 0)), shape(edges[0]), name)
    return [bias, shortened(owner, 2, name), shortened(owner, 1, name)]


def linear(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    name = operation(node)
    rest = [_used_by_all(edge, owner, name) for edge in edges[1:]]
    return [shortened(owner, len(shape((node, 0))) - 1, name), *rest]


def input_rows(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    """The first input and the output have the same rows; all rows use the other inputs (weights)."""
    name = operation(node)
    return [shortened(owner, 1, name), *[_used_by_all(edge, owner, name) for edge in edges[1:]]]


def weights_only(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    """No input but weights that all rows use, such as an embedding table."""
    return [_used_by_all(edge, owner, operation(node)) for edge in edges]


def layer_norm(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    name = operation(node)
    rows = len(shape((node, 0))) - len(saved(node, "normalized_shape"))
    return [shortened(owner, rows, name), *[_used_by_all(edge, owner, name) for edge in edges[1:]]]


def batch_norm(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    name = operation(node)
    weights = [_used_by_all(edge, owner, name) for edge in edges[1:]]
    if not saved(node, "training"):
        return [owner, *weights]
    # Statistics over every dimension but the second. Instance norm runs as batch norm over a batch of one, whose
    # channels are the samples' own.
    out_shape = shape((node, 0))
    own = padded(owner, 2).expand(out_shape[:2]) if owner.ndim <= 2 else owner
    by_channel = common(own, [0, *range(2, own.ndim)], name)
    if isinstance(by_channel, Shared):
        refuse_batch_norm(node)
        return [by_channel, *weights]
    return [by_channel.reshape(1, -1).expand(out_shape[:2]), *weights]


def refuse_batch_norm(node: Node) -> None:
    """Raise if a node is batch normalization in training mode over several rows."""
    if operation(node) in BATCH_NORMS and saved(node, "training") and shape((node, 0))[0] > 1:
        raise RuntimeError(
            "batch normalization in training mode mixes the samples of a batch, so the gradient of one sample depends "
            "on all others. Call eval() on those layers, or use LayerNorm or GroupNorm instead."
        )


def attention(node: Node, owner: Tensor, edges: Edges) -> list[Owner | None]:
    """Scaled dot-product attention: the first dimension of query, key and value is the batch."""
    name = operation(node)
    rows = shortened(owner, 1, name)
    size = shape((node, 0))[0]
    return [
        rows if edge[0] is not None and shape(edge)[0] == size else _used_by_all(edge, owner, name) for edge in edges
    ]


# ---------------------------------------------------------------------------------- operations with several outputs


def split(node: Node, owners: dict[int, Tensor], edges: Edges) -> list[Owner | None]:
    in_shape = shape(edges[0])  # type: ignore[arg-type]
    dim = saved_dim(node, len(in_shape))
    if all(dim >= owner.ndim for owner in owners.values()):
        return [merge_all(list(owners.values()), operation(node))]
    ndim = max(dim + 1, *(owner.ndim for owner in owners.values()))
    parts = []
    for number in range(output_count(node)):
        part_shape = shape((node, number))[:ndim]
        owner = owners.get(number)
        none = torch.full(part_shape, -1, dtype=torch.int64)
        parts.append(none if owner is None else padded(owner, ndim).expand(part_shape))
    return [torch.cat(parts, dim)]


def unbind(node: Node, owners: dict[int, Tensor], edges: Edges) -> list[Owner | None]:
    in_shape = shape(edges[0])  # type: ignore[arg-type]
    dim = saved_dim(node, len(in_shape))
    if all(dim >= owner.ndim + 1 for owner in owners.values()):
        return [merge_all(list(owners.values()), operation(node))]
    ndim = max(dim, *(owner.ndim for owner in owners.values()))
    rest = (*in_shape[:dim], *in_shape[dim + 1 :])[:ndim]
    none = torch.full(rest, -1, dtype=torch.int64)
    parts = [
        none if number not in owners else padded(owners[number], ndim).expand(rest) for number in range(in_shape[dim])
    ]
    return [torch.stack(parts, dim)]


def values_only(rule: Rule) -> Callable[[Node, dict[int, Tensor], Edges], list[Owner | None]]:
    """For operations whose further outputs (indices, statistics) have no gradient or are not used."""

    def first(node: Node, owners: dict[int, Tensor], edges: Edges) -> list[Owner | None]:
        return rule(node, owners[0], edges) if owners.keys() == {0} else [Shared(operation(node))] * len(edges)

    return first


def _names(text: str, number: str = "0") -> list[str]:
    return [f"{name}Backward{number}" for name in text.split()]


BATCH_NORMS = _names("NativeBatchNorm CudnnBatchNorm MiopenBatchNorm")

RULES: dict[str, Rule] = {
    **dict.fromkeys(
        _names(
            "Abs Acos Acosh Alias Asin Asinh Atan Atanh Celu Clone Cos Cosh Elu Erf Erfc Erfinv Exp Exp2 Expm1 "
            "Gelu Hardshrink Hardsigmoid Hardswish Hardtanh LeakyRelu Lgamma Log Log10 Log1P Log2 LogSigmoid Logit "
            "Mish NanToNum Neg Reciprocal Relu Round Rsqrt Sgn Sigmoid Sign Silu Sin Sinc Sinh "
            "Softplus Softshrink Sqrt Tan Tanh Threshold ToCopy Trunc Floor Ceil Frac NativeDropout FusedDropout"
        ),
        unary,
    ),
    **dict.fromkeys(["AddBackward1", "ClampBackward1", "LogSigmoidBackward0", "PowBackward0", "RsubBackward1"], unary),
    **dict.fromkeys(
        _names(
            "Add Addcdiv Addcmul Atan2 Clamp ClampMax ClampMin Copysign Div Expand Fmax Fmin Hypot Lerp Logaddexp "
            "Logaddexp2 MaskedFill Maximum Minimum Mul PreluKernel Rsub Sub Where Xlogy"
        ),
        elementwise,
    ),
    **dict.fromkeys(
        _names("ClampMax ClampMin Lerp MaskedFill Pow", "1"),
        elementwise,
    ),
    **dict.fromkeys(
        _names("ReflectionPad1D ReplicationPad1D UpsampleNearest1D UpsampleLinear1D"),
        rowwise(1),
    ),
    **dict.fromkeys(
        _names(
            "AvgPool2D AdaptiveAvgPool2D ReflectionPad2D ReplicationPad2D UpsampleNearest2D UpsampleBilinear2D "
            "UpsampleBicubic2D"
        ),
        rowwise(2),
    ),
    **dict.fromkeys(_names("AvgPool3D AdaptiveAvgPool3D ReflectionPad3D ReplicationPad3D"), rowwise(3)),
    **dict.fromkeys(_names("Softmax LogSoftmax Cumsum Cumprod Logcumsumexp Glu"), along_dim),
    **dict.fromkeys(_names("Amax Amin Logsumexp Std Var LinalgVectorNorm"), reduction),
    **dict.fromkeys(["SumBackward1", "MeanBackward1", "ProdBackward1"], reduction),
    **dict.fromkeys(
        ["SumBackward0", "MeanBackward0", "ProdBackward0", "MaxBackward1", "MinBackward1"], whole_reduction
    ),
    **dict.fromkeys(_names("View UnsafeView ReshapeAlias Unsqueeze Squeeze"), view),
    **dict.fromkeys([f"SqueezeBackward{number}" for number in range(1, 6)], view),
    "AddmmBackward0": addmm,
    "BaddbmmBackward0": baddbmm,
    "BmmBackward0": bmm,
    "CatBackward0": cat,
    "ConstantPadNdBackward0": constant_pad,
    "ConvolutionBackward0": input_rows,
    "EmbeddingBackward0": weights_only,
    "FlipBackward0": flip,
    "GatherBackward0": gather,
    "IndexBackward0": index,
    "IndexPutBackward0": index_put,
    "IndexSelectBackward0": index_select,
    "LinearBackward0": linear,
    "MmBackward0": mm,
    "MvBackward0": mm,
    "PermuteBackward0": permute,
    "SelectBackward0": select,
    "SliceBackward0": slice_,
    "StackBackward0": stack,
    "TBackward0": matrix_transpose,
    "TransposeBackward0": transpose,
}

MULTIPLE_OUTPUTS: dict[str, Callable[[Node, dict[int, Tensor], Edges], list[Owner | None]]] = {
    **dict.fromkeys(_names("Split SplitWithSizes UnsafeSplit UnsafeSplitWithSizes"), split),
    "UnbindBackward0": unbind,
    **dict.fromkeys(_names("Max Min"), values_only(reduction)),
    **dict.fromkeys(_names("Sort Topk Cummax Cummin"), values_only(along_dim)),
    "MaxPool2DWithIndicesBackward0": values_only(rowwise(2)),
    "MaxPool3DWithIndicesBackward0": values_only(rowwise(3)),
    "AdaptiveMaxPool2DBackward0": values_only(rowwise(2)),
    "AdaptiveMaxPool3DBackward0": values_only(rowwise(3)),
    "NativeLayerNormBackward0": values_only(layer_norm),
    "NativeGroupNormBackward0": values_only(input_rows),
    **dict.fromkeys(BATCH_NORMS, values_only(batch_norm)),
    **dict.fromkeys(
        _names(
            "ScaledDotProductFlashAttention ScaledDotProductFlashAttentionForCpu ScaledDotProductEfficientAttention "
            "ScaledDotProductCudnnAttention"
        ),
        values_only(attention),
    ),
}
