"""Every rule about rows against the Jacobian of its operation: it may claim too much dependence, never too little."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from unstale.per_sample.autograd_graph import inputs, operation, shape
from unstale.per_sample.layer_rules import LAYERS
from unstale.per_sample.owners import Shared
from unstale.per_sample.row_rules import MULTIPLE_OUTPUTS, RULES, input_owners

# Nodes that are made on other devices or by operations without a public name.
ELSEWHERE = {
    "AliasBackward0", "CudnnBatchNormBackward0", "FusedDropoutBackward0", "LinearBackward0", "MiopenBatchNormBackward0",
    "ReshapeAliasBackward0", "ScaledDotProductCudnnAttentionBackward0", "ScaledDotProductEfficientAttentionBackward0",
    "ScaledDotProductFlashAttentionBackward0", "SignBackward0", "SqueezeBackward3", "SqueezeBackward5",
    "UnsafeSplitWithSizesBackward0",
}  # fmt: skip


def index(*sizes, below):
    return torch.randint(below, sizes, generator=torch.Generator().manual_seed(0))


UNARY = (
    "abs acos acosh asin asinh atan atanh ceil clone cos cosh erf erfc erfinv exp exp2 expm1 floor frac lgamma log "
    "log10 log1p log2 logit nan_to_num neg reciprocal round rsqrt sgn sigmoid sin sinc sinh sqrt tan tanh trunc relu"
)
FUNCTIONS = (
    "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish silu softplus softshrink"
)


def other(x):
    """An input of its own with the values of ``x``, so that each input has its own Jacobian."""
    return x.detach().clone().requires_grad_() * 1


EXAMPLES = {
    **{name: (lambda x, name=name: getattr(torch, name)(x)) for name in UNARY.split()},
    **{name: (lambda x, name=name: getattr(F, name)(x)) for name in FUNCTIONS.split()},
    "threshold": lambda x: F.threshold(x, 0.3, 0.1),
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout, eval": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "to": lambda x: x.to(torch.float32),
    "clamp": lambda x: x.clamp(0.2, 0.7),
    "clamp by tensors": lambda x: x.clamp(x.detach() * 0.5, other(x) * 2),
    "clamp_min": lambda x: x.clamp_min(0.4),
    "clamp_max": lambda x: x.clamp_max(0.4),
    "clamp_min by tensor": lambda x: x.clamp_min(other(x[:1]) * 0.9),
    "clamp_max by tensor": lambda x: x.clamp_max(other(x[:1]) * 0.9),
    "pow": lambda x: x**3,
    "pow of tensors": lambda x: x**other(x),
    "number to a power": lambda x: 2**x,
    "rsub": lambda x: torch.rsub(x, 1.0),
    "rsub of tensors": lambda x: torch.rsub(x, other(x.exp())),
    "add a number": lambda x: torch.ops.aten.add.Scalar(x, 1.0),
    "add": lambda x: x + other(x.exp()),
    "add, broadcast": lambda x: x + other(x[:1]),
    "add, lower": lambda x: x + other(x[0]),
    "sub": lambda x: x - other(x[:, :1]),
    "mul": lambda x: x * other(x[:, :1]),
    "div": lambda x: x / other(x[:1]),
    "div, floor": lambda x: torch.div(x, other(x[:1]), rounding_mode="floor"),
    "addcmul": lambda x: torch.addcmul(x, other(x[:1]), other(x)),
    "addcdiv": lambda x: torch.addcdiv(x, other(x), other(x[:1])),
    "atan2": lambda x: torch.atan2(x, other(x[:1])),
    "copysign": lambda x: torch.copysign(x, other(x[:1])),
    "expand": lambda x: x[:1].expand(4, 3),
    "expand, new axis": lambda x: x.expand(2, 4, 3),
    "fmax": lambda x: torch.fmax(other(x), other(x[:1])),
    "fmin": lambda x: torch.fmin(x, other(x[:1])),
    "hypot": lambda x: torch.hypot(x, other(x[:1])),
    "lerp": lambda x: torch.lerp(x, other(x[:1]), 0.3),
    "lerp by tensor": lambda x: torch.lerp(x, other(x[:1]), other(x)),
    "logaddexp": lambda x: torch.logaddexp(other(x), other(x[:1])),
    "logaddexp2": lambda x: torch.logaddexp2(other(x), other(x[:1])),
    "masked_fill": lambda x: x.masked_fill(x.detach() > 0.5, 0.0),
    "masked_fill by tensor": lambda x: x.masked_fill(x.detach() > 0.5, other(x[0, 0])),
    "maximum": lambda x: torch.maximum(other(x), other(x[:1])),
    "minimum": lambda x: torch.minimum(x, other(x[:1])),
    "prelu": lambda x: F.prelu(x - 0.5, torch.rand(3, requires_grad=True)),
    "where": lambda x: torch.where(x.detach() > 0.5, other(x), other(x[:1])),
    "xlogy": lambda x: torch.xlogy(other(x), other(x[:1])),
    "avg_pool1d": lambda x: F.avg_pool1d(x.reshape(2, 1, 6), 2),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x.reshape(2, 1, 6), 2),
    "reflection_pad1d": lambda x: F.pad(x.reshape(2, 1, 6), (1, 1), mode="reflect"),
    "replication_pad1d": lambda x: F.pad(x.reshape(2, 1, 6), (1, 1), mode="replicate"),
    "upsample_nearest1d": lambda x: F.interpolate(x.reshape(2, 1, 6), scale_factor=2),
    "upsample_linear1d": lambda x: F.interpolate(x.reshape(2, 1, 6), scale_factor=2, mode="linear"),
    "avg_pool2d": lambda x: F.avg_pool2d(x.reshape(3, 1, 2, 2), 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x.reshape(2, 1, 2, 3), (2, 2)),
    "reflection_pad2d": lambda x: F.pad(x.reshape(3, 1, 2, 2), (1, 1, 1, 1), mode="reflect"),
    "replication_pad2d": lambda x: F.pad(x.reshape(3, 1, 2, 2), (1, 1, 1, 1), mode="replicate"),
    "upsample_nearest2d": lambda x: F.interpolate(x.reshape(3, 1, 2, 2), scale_factor=2),
    "upsample_bilinear2d": lambda x: F.interpolate(x.reshape(3, 1, 2, 2), scale_factor=2, mode="bilinear"),
    "upsample_bicubic2d": lambda x: F.interpolate(x.reshape(3, 1, 2, 2), scale_factor=2, mode="bicubic"),
    "avg_pool3d": lambda x: F.avg_pool3d(x.reshape(3, 1, 1, 2, 2), (1, 2, 2)),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x.reshape(3, 1, 1, 2, 2), (1, 1, 2)),
    "reflection_pad3d": lambda x: F.pad(x.reshape(1, 3, 2, 2), (1, 1, 1, 1, 1, 1), mode="reflect"),
    "replication_pad3d": lambda x: F.pad(x.reshape(3, 1, 1, 2, 2), (1,) * 6, mode="replicate"),
    "softmax": lambda x: x.softmax(-1),
    "softmax over rows": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumsum over rows": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "glu": lambda x: F.glu(x.reshape(3, 4)),
    "glu over rows": lambda x: F.glu(x, 0),
    "amax": lambda x: x.amax(-1),
    "amax over rows": lambda x: x.amax(0, keepdim=True),
    "amin": lambda x: x.amin((0, 1)),
    "logsumexp": lambda x: x.logsumexp(1, keepdim=True),
    "std": lambda x: x.std(1),
    "std of all": lambda x: x.std(),
    "var": lambda x: x.reshape(2, 2, 3).var((0, 2)),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=0),
    "norm of all": lambda x: x.norm(),
    "sum": lambda x: x.sum(-1),
    "sum of all": lambda x: x.sum(),
    "sum, middle": lambda x: x.reshape(2, 2, 3).sum(1),
    "mean": lambda x: x.mean((0, -1)),
    "mean of all": lambda x: x.mean(),
    "prod": lambda x: x.prod(0),
    "prod of all": lambda x: x.prod(),
    "max of all": lambda x: x.max(),
    "min of all": lambda x: x.min(),
    "view": lambda x: x.reshape(2, 6),
    "view, flat": lambda x: x.reshape(-1),
    "view, more axes": lambda x: x.reshape(2, 2, 3, 1),
    "view, other rows": lambda x: x.reshape(3, 4),
    "unsafe_view": lambda x: torch.ops.aten._unsafe_view(x, [6, 2]),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(),
    "squeeze 1": lambda x: x.unsqueeze(1).squeeze(1),
    "squeeze 2": lambda x: x[:, None, :, None].squeeze((1, 3)),
    "linear on a vector": lambda x: nn.Linear(12, 2, bias=False)(x.flatten()),
    "addmm": lambda x: nn.Linear(3, 2)(x),
    "mm": lambda x: nn.Linear(3, 2, bias=False)(x),
    "mm of activations": lambda x: x @ other(x.T),
    "baddbmm": lambda x: torch.baddbmm(x.reshape(2, 2, 3), x.reshape(2, 2, 3), torch.rand(2, 3, 3)),
    "bmm": lambda x: x.reshape(2, 2, 3) @ other(x.reshape(2, 3, 2)),
    "mv": lambda x: x @ other(x[0]),
    "cat": lambda x: torch.cat([x, torch.rand(2, 3), other(x.exp())]),
    "cat, all": lambda x: torch.cat([x, other(x.exp())]),
    "cat, between constants": lambda x: torch.cat([torch.rand(1, 3), x, torch.rand(2, 3)]),
    "cat of columns": lambda x: torch.cat([x, other(x.exp())], -1),
    "pad": lambda x: F.pad(x, (1, 1)),
    "pad rows": lambda x: F.pad(x, (0, 0, 1, 1)),
    "conv1d": lambda x: nn.Conv1d(1, 2, 2)(x.reshape(4, 1, 3)),
    "conv2d": lambda x: nn.Conv2d(1, 2, 2, padding=1)(x.reshape(3, 1, 2, 2)),
    "embedding": lambda x: F.embedding(index(4, below=4), x),
    "flip": lambda x: x.flip(0),
    "flip of columns": lambda x: x.flip(1),
    "gather": lambda x: x.gather(1, index(4, 1, below=3)),
    "gather rows": lambda x: x.gather(0, index(2, 3, below=4)),
    "gather from a vector": lambda x: x.flatten().gather(0, torch.tensor([5, 1, 7])),
    "gather twice from a vector": lambda x: x.flatten().gather(0, torch.tensor([5, 5, 7])),
    "index": lambda x: x[torch.tensor([2, 0, 1])],
    "index, repeated": lambda x: x[torch.tensor([2, 0, 2])],
    "index of elements": lambda x: x[torch.arange(4), index(4, below=3)],
    "index of columns": lambda x: x[:, torch.tensor([2, 0])],
    "index, negative": lambda x: x[torch.tensor([-1, 0])],
    "index by a mask": lambda x: x[torch.tensor([True, False, True, True])],
    "index by a large mask": lambda x: x[x.detach() > 0.3],
    "index by a matrix": lambda x: x[torch.tensor([[2, 0], [1, 3]])],
    "index apart": lambda x: x.reshape(2, 2, 3)[torch.tensor([1, 0]), :, torch.tensor([2, 0])],
    "index behind": lambda x: x.reshape(2, 2, 3)[:, torch.tensor([1, 0]), torch.tensor([2, 0])],
    "index_put": lambda x: torch.zeros(6).index_put((torch.tensor([5, 0, 2, 3]),), other(x[:, 0])),
    "index_put by a mask": lambda x: x.exp().index_put((torch.tensor([True, False, True, False]),), other(x[:2])),
    "index_put of elements": lambda x: x.exp().index_put((torch.arange(4), index(4, below=3)), other(x[:, 0])),
    "index_put of one value": lambda x: x.exp().index_put((torch.tensor([0, 2]),), other(x[0, 0])),
    "index_select": lambda x: x.index_select(0, torch.tensor([3, 1])),
    "index_select, repeated": lambda x: x.index_select(0, torch.tensor([3, 3])),
    "index_select of columns": lambda x: x.index_select(1, torch.tensor([2, 1])),
    "permute": lambda x: x.reshape(2, 2, 3).permute(2, 0, 1),
    "select": lambda x: x[:, 1],
    "select a row": lambda x: x.reshape(2, 2, 3)[1],
    "select a middle row": lambda x: x.reshape(2, 2, 3)[:, -1],
    "slice": lambda x: x[1:3],
    "slice, strided": lambda x: x[::2],
    "slice, negative": lambda x: x[-3:-1],
    "slice of columns": lambda x: x[:, 1:],
    "stack": lambda x: torch.stack([x, other(x.exp())]),
    "stack of columns": lambda x: torch.stack([x, other(x.exp())], -1),
    "t": lambda x: x.t(),
    "transpose": lambda x: x.reshape(2, 2, 3).transpose(0, -1),
    "split": lambda x: x.split(2)[1],
    "split of columns": lambda x: x.split(2, -1)[0],
    "split with sizes": lambda x: x.split([1, 3])[1],
    "unsafe split": lambda x: torch.unsafe_split(x, 2, 1)[1],
    "unbind": lambda x: x.unbind(0)[2],
    "unbind of columns": lambda x: x.unbind(1)[2],
    "max": lambda x: x.max(-1).values,
    "max over rows": lambda x: x.max(0).values,
    "min": lambda x: x.min(1, keepdim=True).values,
    "sort": lambda x: x.sort(-1).values,
    "sort rows": lambda x: x.sort(0).values,
    "topk": lambda x: x.topk(2).values,
    "cummax": lambda x: x.cummax(-1).values,
    "cummin": lambda x: x.cummin(1).values,
    "max_pool1d": lambda x: F.max_pool1d(x.reshape(2, 1, 6), 2),
    "max_pool2d": lambda x: F.max_pool2d(x.reshape(3, 1, 2, 2), 2),
    "max_pool3d": lambda x: F.max_pool3d(x.reshape(3, 1, 1, 2, 2), (1, 2, 2)),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x.reshape(3, 1, 2, 2), 1),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x.reshape(3, 1, 1, 2, 2), 1),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "layer_norm over rows": lambda x: F.layer_norm(x, (4, 3)),
    "group_norm": lambda x: nn.GroupNorm(1, 3)(x),
    "batch_norm in evaluation": lambda x: nn.BatchNorm1d(3).eval()(x),
    "instance_norm": lambda x: nn.InstanceNorm1d(2)(x.reshape(2, 2, 3)),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.reshape(3, 1, 2, 2)] * 3),
}  # fmt: skip


def owners_of(size):
    """Owners of an output of a shape: one per row, one per element, and one per pair of neighbouring rows."""
    yield torch.arange(torch.Size(size).numel()).reshape(size)
    if size:
        yield torch.arange(size[0])
        yield torch.arange(size[0]) // 2
        yield torch.where(torch.arange(size[0]) % 2 == 0, torch.arange(size[0]), -1)
    if len(size) > 1:
        yield torch.arange(size[0] * size[1]).reshape(size[:2])


def spread(owner, size):
    return owner.reshape(owner.shape + (1,) * (len(size) - owner.ndim)).expand(size).reshape(-1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXAMPLES)
def test_rules_claim_every_dependence(name):
    torch.manual_seed(0)
    x = (torch.rand(4, 3) * 0.8 + 0.1).requires_grad_()
    if name == "acosh":
        x = (x.detach() + 1).requires_grad_()
    out = EXAMPLES[name](x * 1)
    node, number = out.grad_fn, out.output_nr
    size = tuple(out.shape)
    edges = inputs(node)
    known = [i for i, (child, _) in enumerate(edges) if child is not None]
    identity = torch.eye(out.numel()).reshape(-1, *size).to(out)
    wanted = [torch.autograd.graph.GradientEdge(*edges[i]) for i in known]
    jacobians = [
        [torch.autograd.grad(out, edge, row, retain_graph=True, allow_unused=True)[0] for row in identity]
        for edge in wanted
    ]
    for owner in owners_of(size):
        found = input_owners(node, {number: owner}, edges)
        assert len(found) == len(edges)
        for i, rows in zip(known, jacobians, strict=True):
            if isinstance(found[i], Shared) or rows[0] is None:
                continue
            in_size = shape(edges[i])
            depends = torch.stack([row.reshape(-1) != 0 for row in rows])  # [outputs, inputs]
            if found[i] is None:
                assert not depends.any()
                continue
            assert tuple(found[i].shape) == in_size[: found[i].ndim]
            served = spread(owner, size)[:, None].expand_as(depends)
            claimed = spread(found[i], in_size)[None].expand_as(depends)
            wrong = depends & (served >= 0) & (served != claimed)
            assert not wrong.any(), f"{operation(node)} with owner {tuple(owner.shape)}"


# Rows of these stay apart, so their rules must say so: otherwise the fast path is lost without anyone noticing.
FAST = [
    "relu", "tanh", "add", "mul", "sub", "addmm", "mm", "conv1d", "conv2d", "cat of columns", "cat", "gather",
    "index of elements", "index", "index by a mask", "index_put by a mask", "index_put", "select", "slice", "split",
    "slice of columns", "stack of columns", "max", "amax", "sum", "softmax", "log_softmax", "logsumexp", "layer_norm",
    "group_norm", "batch_norm in evaluation", "max_pool2d", "avg_pool2d", "attention", "bmm", "view, more axes",
    "squeeze", "unsqueeze", "expand, new axis", "permute", "dropout", "clamp", "unbind of columns", "flip",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAST)
def test_rows_that_stay_apart_are_not_called_shared(name):
    torch.manual_seed(0)
    out = EXAMPLES[name]((torch.rand(4, 3) * 0.8 + 0.1).requires_grad_() * 1)
    rows = torch.arange(out.shape[0])
    if name in ("expand, new axis", "permute"):
        rows = torch.arange(out.shape[1]).expand(out.shape[:2])
    first = input_owners(out.grad_fn, {out.output_nr: rows}, inputs(out.grad_fn))
    activations = [
        owner
        for owner, (child, _) in zip(first, inputs(out.grad_fn), strict=True)
        if child is not None and "Accumulate" not in operation(child) and operation(child) != "TBackward0"
    ]
    assert activations and not any(isinstance(owner, Shared) for owner in activations)


@pytest.mark.filterwarnings("ignore")
def test_every_rule_has_an_example():
    seen = set()
    for name, example in EXAMPLES.items():
        start = 1.1 if name == "acosh" else 0.1
        stack = [example((torch.rand(4, 3) * 0.8 + start).requires_grad_() * 1).grad_fn]
        while stack:
            node = stack.pop()
            seen.add(operation(node))
            stack += [child for child, _ in inputs(node) if child is not None]
    untested = (RULES.keys() | MULTIPLE_OUTPUTS.keys() | LAYERS.keys()) - seen - ELSEWHERE
    assert not untested


def test_an_operation_without_a_rule_shares_its_inputs():
    out = torch.linalg.inv(torch.rand(3, 3, requires_grad=True) * 1)
    (owner,) = input_owners(out.grad_fn, {0: torch.arange(3)}, inputs(out.grad_fn))
    assert isinstance(owner, Shared)


def test_a_missing_attribute_shares_the_inputs(monkeypatch):
    """A version of torch that saves other things must not make a rule guess."""
    from unstale.per_sample import row_rules
    from unstale.per_sample.autograd_graph import Unavailable

    def unavailable(*_):
        raise Unavailable("nothing is saved")

    norm = nn.BatchNorm1d(3)
    out = norm(torch.rand(4, 3, requires_grad=True) * 1)
    monkeypatch.setattr(row_rules, "saved", unavailable)
    owners = input_owners(out.grad_fn, {0: torch.arange(4)}, inputs(out.grad_fn))
    assert all(isinstance(owner, Shared) for owner in owners)
