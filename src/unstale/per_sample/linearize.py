"""From a prediction and its target, as live tensors, to per-sample gradients of both.

Parameters of layers whose rows belong to one sample each get factored gradients from one backward pass. All others
(shared rows, operations without a rule, parameters used outside of layers) get theirs from batched vector-Jacobian
products. The decision depends on the graph of this batch only; nothing is cached between batches.

Predictions of shape ``[m, k]`` come flattened, ``[m k]``. If the columns share rows (several heads on one trunk), they
are linearized one by one, which takes ``k`` backward passes instead of one per entry.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._flat_params import FlatParams
from .autograd_graph import Edge, backward_listening, gradient_edge, run_backward, shape
from .gradients import Batch, EmbeddingRows, Linearization, Materialized, OuterProducts, SampleGradients, merged
from .jacobian import jacobian
from .layer_rules import RowGradients
from .sample_rows import RowsOfSamples, by_sample
from .trace import Trace, Units, trace

# Gradients of a parameter with at most this many entries are materialized: one large matrix product is then faster
# than several small ones.
MAX_MATERIALIZED_ENTRIES = 512
# Materialized gradients of neighbouring parameters are concatenated, unless one has more entries than this over all
# samples: copying then costs more than another product.
MAX_SHARED_ENTRIES = 1 << 14
# Listening in on a backward pass costs some Python per layer; below this many multiply-adds another pass is cheaper.
MIN_WORK_TO_LISTEN = 1 << 21


class TracedBatch(NamedTuple):
    """A prediction and its target with the owners of their rows, before any backward pass."""

    roots: list[Tensor]
    traces: list[Trace]
    columns: int = 1  # of the tensors before they were flattened

    def without_target(self) -> TracedBatch:
        """The same with a constant target."""
        return TracedBatch(self.roots[:1], self.traces[:1], self.columns)

    def irregular(self, wanted: set[int]) -> dict[int, str]:
        """Which of the parameters, given by their ids, have no factored gradients, and why."""
        return {key: why for found in reversed(self.traces) for key, why in found.irregular.items() if key in wanted}

    @property
    def reached(self) -> set[int]:
        """The ids of the leaves that the prediction depends on."""
        return self.traces[0].reached


class Linearized(NamedTuple):
    """What :func:`linearize` found."""

    gradients: list[tuple[SampleGradients, ...]]  # one tuple per group
    irregular: dict[int, str]  # ids of the parameters without factored gradients, and the reasons
    is_finite: bool
    columns: int = 1  # that were linearized one by one
    mixed: int = 0  # rows whose gradients every sample combines


OutputGradients = dict[Edge, Tensor]  # of layer calls, by the edges of their outputs


@torch.no_grad()
def trace_batch(prediction: Tensor, target: Tensor | None, columns: int = 1) -> TracedBatch:
    """Find the owners of all rows behind ``prediction [m]`` and ``target [m]`` (None if it is constant).

    Args:
        prediction: the prediction.
        target: the target.
        columns: the size of their last axis before they were flattened.
    """
    roots = [prediction] if target is None else [prediction, target]
    return TracedBatch(roots, [trace(root) for root in roots], columns)


def fill_grad(batch: TracedBatch, slope: Tensor) -> OutputGradients | None:
    """Run autograd's backward pass of ``Σ_k slope_k prediction_k``, which fills ``.grad``, and listen in on it.

    Returns:
        The gradients of the outputs of the prediction's layer calls, divided by the slopes again, so that
        :func:`linearize` needs no pass of its own; None where that does not pay, or a slope is too small to divide by.
    """
    prediction, calls = batch.roots[0], batch.traces[0].calls
    slope = slope.to(prediction.dtype)
    edges = [call.call.edge for call in calls if call.units.edge is None]
    if len(prediction) * batch.traces[0].size < MIN_WORK_TO_LISTEN:
        edges = []
    seen = backward_listening(prediction, slope, edges)
    smallest = torch.finfo(slope.dtype).tiny ** 0.25  # products with it do not underflow
    if not edges or any(b.dtype == torch.float16 for b in seen.values()) or not bool((slope.abs() > smallest).all()):
        return None
    found: OutputGradients = {}
    slopes: dict[int, Tensor] = {}  # of rows, by the id of their owner: the layers of a network mostly share one
    for call in calls:
        b = seen.get(call.call.edge)
        if b is not None and call.units.edge is None:
            if id(call.owner) not in slopes:
                slopes[id(call.owner)] = slope[call.owner.clamp(min=0).to(slope.device)].unsqueeze(1)
            each = slopes[id(call.owner)]
            is_matrix = b.ndim == 2 and len(b) == len(each)
            found[call.call.edge] = b / each if is_matrix else (b.reshape(len(each), -1) / each).reshape(b.shape)
    return found


def linearize_one(prediction: Tensor, target: Tensor | None, groups: Sequence[FlatParams]) -> Linearized | None:
    """:func:`linearize` for a single sample, materialized: its gradients are those of its prediction and its target.

    No rows have to be distinguished, so that any graph will do.

    Returns:
        What was found; None if the prediction does not depend on the parameters.
    """
    parameters = [p for group in groups for p in group.parameters if p.requires_grad]
    if not parameters:
        return None
    roots = [prediction] if target is None else [prediction, target]
    found = [torch.autograd.grad(root, parameters, retain_graph=True, allow_unused=True) for root in roots]
    if all(gradient is None for gradient in found[0]):
        return None
    by_id = [dict(zip(map(id, parameters), gradients, strict=True)) for gradients in found]
    pieces: list[tuple[SampleGradients, ...]] = []
    for group in groups:
        rows = [_flat_row(group, gradients) for gradients in by_id]
        u = rows[0] if target is None else rows[0] - rows[1]
        pieces.append((Materialized(slice(0, group.size), (rows[0], u)),))
    return Linearized(pieces, {}, all_finite([piece.tensors[1] for (piece,) in pieces]))


def _flat_row(group: FlatParams, gradients: Mapping[int, Tensor | None]) -> Tensor:
    """Gradients of one sample over a group, ``[1, n]``; zero for parameters that it does not depend on."""
    found = (gradients.get(id(p)) for p in group.parameters)
    return group.flat(torch.zeros_like(p) if g is None else g for p, g in zip(group.parameters, found, strict=True))[
        None
    ]


@torch.no_grad()
def linearize(
    batch: TracedBatch,
    groups: Sequence[FlatParams],
    prediction_outputs: OutputGradients | None = None,
    kept: Sequence[int] | None = None,
) -> Linearized:
    """The gradients ``v`` of the prediction and ``u`` of the residual, for every sample.

    Args:
        batch: what :func:`trace_batch` found.
        groups: the parameters to differentiate by, one flat vector per group.
        prediction_outputs: what :func:`fill_grad` returned, if it was called.
        kept: how many samples each group will store in the same form, if more than the batch has.
    """
    wanted = {id(p) for group in groups for p in group.parameters if p.requires_grad}
    irregular = batch.irregular(wanted)
    counts = kept or [len(batch.roots[0])] * len(groups)
    columns = _columns(batch, wanted) if irregular and batch.columns > 1 else []
    if columns:
        return _interleaved([linearize(column, groups, None, counts) for column in columns], groups)
    given: dict[int, _Given] = {key: _Given([], []) for key in wanted if key not in irregular}
    rows = RowsOfSamples(batch.roots[0])
    used: list[Tensor] = []
    joint = _joint_output_gradients(batch) if prediction_outputs is None and _is_disjoint(batch) else {}
    for role, traced in enumerate(batch.traces):
        known = prediction_outputs if role == 0 and prediction_outputs is not None else joint
        outputs = _output_gradients(batch.roots[role], traced, 1.0 if role == 0 else -1.0, known)
        # .grad shows whether the gradients that fill_grad heard are finite.
        used += [b for edge, b in outputs.items() if known is joint or edge not in known]
        for call in traced.calls:
            b = outputs.get(call.call.edge)
            for gradients in () if b is None else call.call.row_gradients(b):
                parts = given.get(id(gradients.parameter))
                if parts is not None:
                    parts[role].append(by_sample(gradients, rows.of(call)))
    jacobians = _Jacobians(batch.roots)
    pieces = [_gradients_of_group(*each, given, jacobians) for each in zip(groups, counts, strict=True)]
    return Linearized(pieces, irregular, all_finite(used + jacobians.made + rows.mixings), mixed=rows.mixed)


def _columns(batch: TracedBatch, wanted: set[int]) -> list[TracedBatch]:
    """The columns of a batch one by one; empty if that gives factored gradients to no more parameters."""
    found: list[TracedBatch] = []
    for number in range(batch.columns):
        with torch.enable_grad():
            roots = [root[number :: batch.columns] for root in batch.roots]
        found.append(TracedBatch(roots, [trace(root) for root in roots]))
        if number == 0 and len(found[0].irregular(wanted)) >= len(batch.irregular(wanted)):
            return []
    return found


def _interleaved(columns: list[Linearized], groups: Sequence[FlatParams]) -> Linearized:
    """The samples of all columns in the order of the flattened batch: the first of every column, and so on."""
    pieces: list[tuple[SampleGradients, ...]] = []
    for number, group in enumerate(groups):
        parts: list[Batch] = []
        for column in columns:
            tensor, axis = next(column.gradients[number][0].with_axes())
            weight = torch.empty(tensor.shape[axis], dtype=group.dtype, device=group.device)
            parts.append(Linearization(column.gradients[number], weight, weight))
        while len(parts) > 1:  # neighbours, so that a sample is copied a logarithmic number of times
            parts = [merged(parts[start : start + 2]) for start in range(0, len(parts), 2)]
        (whole,) = parts
        assert isinstance(whole, Linearization)
        order = torch.arange(whole.samples, device=group.device).reshape(len(columns), -1).T.flatten()
        pieces.append(whole.select(order).pieces)
    irregular = {key: why for column in columns for key, why in column.irregular.items()}
    mixed = max(column.mixed for column in columns)
    return Linearized(pieces, irregular, all(column.is_finite for column in columns), len(columns), mixed)


# -------------------------------------------------------------------------------------------------- backward passes


def _is_disjoint(batch: TracedBatch) -> bool:
    """Whether prediction and target come from different calls of the network: then one pass does for both."""
    one, *others = batch.traces
    units = (call.units for found in batch.traces for call in found.calls)
    return bool(others) and one.nodes.isdisjoint(others[0].nodes) and all(unit.edge is None for unit in units)


def _joint_output_gradients(batch: TracedBatch) -> OutputGradients:
    """The gradients of ``Σ_k (prediction_k - target_k)`` with respect to the outputs of all layer calls."""
    edges = [call.call.edge for found in batch.traces for call in found.calls]
    if not edges:
        return {}
    weights = [torch.ones_like(batch.roots[0]), -torch.ones_like(batch.roots[1])]
    found = zip(edges, run_backward(batch.roots, weights, edges), strict=True)
    return {edge: b for edge, b in found if b is not None}


def _output_gradients(root: Tensor, traced: Trace, weight: float, known: OutputGradients) -> OutputGradients:
    """The gradients of ``weight · Σ_k root_k`` with respect to the outputs of all layer calls, in float32 or better."""
    by_units: dict[Units, list[Edge]] = {}
    for call in traced.calls:
        if call.call.edge not in known:
            by_units.setdefault(call.units, []).append(call.call.edge)
    found = {call.call.edge: known[call.call.edge] for call in traced.calls if call.call.edge in known}
    for units, edges in by_units.items():
        start, size = (root, root.shape) if units.edge is None else (gradient_edge(units.edge), shape(units.edge))
        weights = torch.full(size, weight, dtype=root.dtype, device=root.device)
        found.update(
            (e, b) for e, b in zip(edges, run_backward([start], [weights], edges), strict=True) if b is not None
        )
    return {edge: b.float() if b.dtype.itemsize < 4 else b for edge, b in found.items()}


# ------------------------------------------------------------------------------------------ gradients of parameters


class _Given(NamedTuple):
    """What layer calls give to one parameter, through the prediction and through the target."""

    prediction: list[RowGradients]
    target: list[RowGradients]


# Materialized gradients of the prediction and of the target (negated; None if it has none), [m, p] each.
_Pair = tuple[Tensor, "Tensor | None"]


class _Jacobians:
    """Per-sample gradients of any graph, for the parameters that have no others."""

    def __init__(self, roots: list[Tensor]) -> None:
        self.roots = roots
        self.made: list[Tensor] = []

    def of(self, parameters: list[Tensor], group: FlatParams) -> dict[int, _Pair]:
        """For every parameter the gradients of the prediction and those of the target, negated."""
        if not parameters:
            return {}
        roles: list[list[Any]] = []
        for role, root in enumerate(self.roots):
            found = jacobian(root, parameters)
            flat = [
                torch.zeros(len(root), p.numel(), dtype=group.dtype, device=group.device)
                if part is None
                else part.reshape(len(root), -1).to(group.device, group.dtype)
                for p, part in zip(parameters, found, strict=True)
            ]
            roles.append([-part for part in flat] if role else flat)
        self.made += [part for role in roles for part in role]
        if len(roles) == 1:
            roles.append([None] * len(parameters))
        return dict(zip(map(id, parameters), zip(*roles, strict=True), strict=True))


def _gradients_of_group(
    group: FlatParams, kept: int, found: dict[int, _Given], jacobians: _Jacobians
) -> tuple[SampleGradients, ...]:
    """The gradients of a group, one piece per parameter, except that small materialized neighbours share one."""
    samples = len(jacobians.roots[0])
    other = [p for p in group.parameters if p.requires_grad and id(p) not in found]
    full = jacobians.of(other, group)
    pieces: list[SampleGradients] = []
    small: list[_Pair] = []  # neighbours

    def close(stop: int) -> None:
        if small:
            v, y = _concatenated(small)
            small.clear()
            pieces.append(Materialized(slice(stop - v.shape[1], stop), (v, v if y is None else v + y)))

    for parameter, span in zip(group.parameters, group.spans, strict=True):
        given = found.get(id(parameter), _NOTHING)
        is_large = samples * parameter.numel() > MAX_SHARED_ENTRIES
        if is_large:
            close(span.start)
        if id(parameter) in full:
            small.append(full[id(parameter)])
        elif _is_smaller_materialized(parameter, given, kept):
            small.append(_materialized(parameter, given, group, samples))
        else:
            close(span.start)
            pieces.append(_factored(parameter, span, given, group, samples))
        if is_large:
            close(span.stop)
    close(group.size)
    return tuple(pieces)


_NOTHING = _Given([], [])


def _concatenated(parts: list[_Pair]) -> _Pair:
    if len(parts) == 1:
        return parts[0]
    v = torch.cat([part[0] for part in parts], 1)
    if all(part[1] is None for part in parts):
        return v, None
    return v, torch.cat([torch.zeros_like(part[0]) if part[1] is None else part[1] for part in parts], 1)


def _is_smaller_materialized(parameter: Tensor, given: _Given, samples: int) -> bool:
    """Whether ``v`` and ``u`` take less room materialized than as positions, or too little to matter."""
    if parameter.numel() <= MAX_MATERIALIZED_ENTRIES and samples * parameter.numel() <= MAX_SHARED_ENTRIES:
        return True
    both = given.prediction + given.target
    kinds = {gradients.kind for gradients in both}
    if kinds == {OuterProducts}:
        positions = sum(len(gradients.tensors[0]) for gradients in both)
        width = sum(x.shape[-1] for x in both[0].tensors)
        return positions * width > 2 * parameter.numel()
    return bool(kinds) and kinds != {EmbeddingRows}


def _materialized(parameter: Tensor, given: _Given, group: FlatParams, samples: int) -> _Pair:
    """The gradients of the prediction and those of the target, negated."""
    v, y = (_summed(role, group) if role else None for role in given)
    if v is None:
        v = torch.zeros(samples, parameter.numel(), dtype=group.dtype, device=group.device)
    return v, y


def _summed(calls: list[RowGradients], group: FlatParams) -> Tensor:
    total = _full(calls[0])
    for call in calls[1:]:
        total = total + _full(call)
    return total.to(group.device, group.dtype)


def _full(gradients: RowGradients) -> Tensor:
    """``[m, p]``."""
    if gradients.kind is Materialized:
        return gradients.tensors[0]
    if gradients.kind is OuterProducts:
        a, b = gradients.tensors
        if len(a) == 1:
            return (b[0].unsqueeze(2) * a[0].unsqueeze(1)).flatten(1)
        return torch.bmm(b.permute(1, 2, 0), a.transpose(0, 1)).flatten(1)
    span = slice(0, gradients.parameter.numel())
    return EmbeddingRows(span, gradients.tensors, len(gradients.tensors[0])).matrices()[0]


def _factored(parameter: Tensor, span: slice, given: _Given, group: FlatParams, samples: int) -> SampleGradients:
    """The calls of a layer, concatenated: positions of the prediction first, then those of the target."""
    both = given.prediction + given.target
    if not both:  # not in this graph
        outputs = parameter.shape[0] if parameter.ndim else 1
        nothing = torch.zeros(0, samples, 1, device=group.device, dtype=group.dtype)
        wide = nothing.expand(-1, -1, parameter.numel() // outputs), nothing.expand(-1, -1, outputs)
        return OuterProducts(span, wide, 0)
    head = sum(len(gradients.tensors[0]) for gradients in given.prediction)
    tensors = tuple(_joined(list(parts), group) for parts in zip(*(g.tensors for g in both), strict=True))
    return both[0].kind(span, tensors, head)


def _joined(parts: list[Tensor], group: FlatParams) -> Tensor:
    dtype = group.dtype if parts[0].is_floating_point() else parts[0].dtype
    parts = [x if x.dtype == dtype and x.device == group.device else x.to(group.device, dtype) for x in parts]
    # A copy also where there is one part: data are the user's, who may refill the tensor before the step.
    return torch.cat(parts) if len(parts) > 1 else parts[0].clone()


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether all entries are finite, and their sums."""
    # A sum is not finite if a part is not. Half-precision numbers are summed in float32, or they might overflow.
    sums = [x.sum(dtype=torch.promote_types(x.dtype, torch.float32)) for x in tensors]
    return all(math.isfinite(abs(total.item())) for total in sums)
