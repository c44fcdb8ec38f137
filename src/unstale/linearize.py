"""From a prediction and its target, as live tensors, to per-sample gradients of both.

Layers that are observed give theirs in factored form from one backward pass. All else (other layers, bare
parameters, graphs whose samples cannot be told apart by rows) goes through batched vector-Jacobian products, which
are right for any graph.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor

from .block import Block
from .graph import Graph, trace
from .layers import Factors, Form, Full, Table, per_row
from .rows import Calls, RowReader, batched_backward
from .samples import Linearization, Lookup, Matrix, Outer, Piece

# Gradients of a layer with fewer parameters than this are written out: one large matrix product is then quicker
# than several small ones.
SMALL = 512

# Factored gradients are compared with autograd's at steps 1, 2, 4, 8, … of a graph; at every one of its first few while
# some gradients are zero (an output layer that starts at zero hides all that is below it); and at every step if
# something between its layers is not known to leave rows in their places.
FIRST_FEW = 16
MANY = 1000


class Linearized(NamedTuple):
    """Per-sample gradients, block by block; which parameters the prediction reaches (by id); and every leaf of the
    graph, whosever it is."""

    pieces: list[tuple[Piece, ...]]
    reached: set[int]
    leaves: list[Tensor]


class Linearizer:
    """Linearises batches over blocks of parameters. Remembers only what it learned about the model's shape."""

    def __init__(self) -> None:
        self._reader = RowReader()
        self._uses: Counter[tuple] = Counter()  # how often a signature came
        self._inconclusive: set[tuple] = set()  # signatures that could not be compared with autograd yet
        self._moving: set[tuple] = set()  # signatures with something between layers that may move rows
        self._mixing: set[tuple] = set()  # signatures that failed

    @torch.no_grad()
    def linearize(self, prediction: Tensor, target: Tensor | None, blocks: Sequence[Block]) -> Linearized:
        """The gradients ``v`` of the prediction and ``u`` of the residual, for every sample."""
        graph = trace(prediction) if target is None else trace(prediction, target)
        with ExitStack() as quiet:
            for block in blocks:
                quiet.enter_context(block.without_hooks())
            result = self._factored(prediction, target, graph, blocks) if graph.sites else None
            if result is None:
                jacobians = _Jacobians(prediction, target)
                pieces = [_pieces(block, {}, jacobians) for block in blocks]
                result = pieces, jacobians.reached
        return Linearized(*result, _leaves(graph))

    def _factored(
        self, prediction: Tensor, target: Tensor | None, graph: Graph, blocks: Sequence[Block]
    ) -> tuple[list[tuple[Piece, ...]], set[int]] | None:
        signature = (len(prediction), target is None, graph.signature)
        if signature in self._mixing:
            return None
        calls = self._reader.read(prediction, target, graph, signature)
        if calls is None:
            return None
        # A parameter reached past the layers (tied, or used bare) has more to its gradient than the layers know.
        bare = {id(leaf) for leaf in graph.leaves}
        jacobians = _Jacobians(prediction, target)
        found = []
        for block in blocks:
            given = _collect(calls, block, bare)
            found.append(_pieces(block, given, jacobians))
            jacobians.reached.update(
                key for key, parts in given.items() if any(call.prediction is not None for _, call in parts)
            )
        if self._should_compare(signature, graph):
            halves = any(call.outputs.dtype.itemsize < 4 for call in calls)
            agreement = _agreement(prediction, target, blocks, found, halves)
            if agreement is None:
                self._inconclusive.add(signature)
            elif agreement:
                self._inconclusive.discard(signature)
            else:
                self._mixing.add(signature)
                warnings.warn(
                    "this model mixes the rows of a batch between its layers, so per-sample gradients are taken by "
                    "batched vector-Jacobian products instead: right, but slower.",
                    stacklevel=6,  # the caller of the optimizer's backward()
                )
                return None
        return found, jacobians.reached

    def _should_compare(self, signature: tuple, graph: Graph) -> bool:
        if signature not in self._uses:
            if len(self._uses) >= MANY:  # graphs that are never the same must not fill the memory
                for known in (self._uses, self._inconclusive, self._moving):
                    known.clear()
            if not graph.is_rowwise:
                self._moving.add(signature)
        self._uses[signature] += 1
        uses = self._uses[signature]
        if uses.bit_count() == 1 or signature in self._moving:
            return True
        return uses <= FIRST_FEW and signature in self._inconclusive


def _leaves(graph: Graph) -> list[Tensor]:
    found = {id(leaf): leaf for leaf in graph.leaves}
    for site in graph.sites:
        found.update((id(p), p) for p in site.note.parameters.values() if p is not None and p.requires_grad)
    return list(found.values())


Given = list[tuple[Form, Calls]]  # what a layer's calls give to one of its parameters


def _collect(calls: list[Calls], block: Block, bare: set[int]) -> dict[int, Given]:
    """Sort what the calls give by parameter (id), leaving out those in ``bare``."""
    given: dict[int, Given] = {id(p): [] for p in block.parameters if id(p) not in bare and p.requires_grad}
    for call in calls:
        parameters = call.note.parameters
        if any(id(p) in given for p in parameters.values()):
            for name, form in per_row(call.note.module, call.inputs, call.outputs, block.dtype):
                if id(parameters[name]) in given:
                    given[id(parameters[name])].append((form, call))
    return given


class _Jacobians:
    """Per-sample gradients of any graph, taken only for the parameters that ask for them."""

    def __init__(self, prediction: Tensor, target: Tensor | None) -> None:
        self._prediction, self._target = prediction, target
        self.samples = len(prediction)
        self.reached: set[int] = set()

    @property
    def roles(self) -> int:
        """1 for a prediction alone, 2 with a target."""
        return 1 if self._target is None else 2

    def of(self, parameters: list[Tensor], block: Block) -> list[Tensor]:
        """For each parameter ``[roles, m, p]``: the prediction's gradients and the target's, negated."""
        if not parameters:
            return []
        v = self._role(self._prediction, parameters, block)
        if self._target is None:
            return [part.unsqueeze(0) for part in v]
        y = self._role(self._target, parameters, block)
        return [torch.stack([one, -two]) for one, two in zip(v, y, strict=True)]

    def _role(self, values: Tensor, parameters: list[Tensor], block: Block) -> list[Tensor]:
        trainable = [p for p in parameters if p.requires_grad]
        identity = torch.eye(self.samples, dtype=values.dtype, device=values.device)
        found = iter(batched_backward(values, trainable, identity) if trainable else [])
        parts = []
        for parameter in parameters:
            gradient = next(found) if parameter.requires_grad else None
            if gradient is None:
                gradient = torch.zeros(self.samples, parameter.numel())
            elif values is self._prediction:
                self.reached.add(id(parameter))
            parts.append(gradient.reshape(self.samples, -1).to(block.device, block.dtype))
        return parts


def _pieces(block: Block, given: dict[int, Given], jacobians: _Jacobians) -> tuple[Piece, ...]:
    """One piece a parameter, except that neighbours which are written out share one."""
    unknown = [p for p in block.parameters if id(p) not in given]
    written = dict(zip(map(id, unknown), jacobians.of(unknown, block), strict=True))
    pieces: list[Piece] = []
    run: list[Tensor] = []  # neighbours that are written out, [roles, m, p] each

    def close(stop: int) -> None:
        if run:
            both = run[0] if len(run) == 1 else torch.cat(run, 2)
            u = both[0] if len(both) == 1 else both[0] + both[1]
            pieces.append(Matrix(slice(stop - u.shape[1], stop), (both[0], u)))
            run.clear()

    for parameter, span in zip(block.parameters, block.spans, strict=True):
        if id(parameter) in written:
            run.append(written[id(parameter)])
        elif _is_better_written(parameter, given[id(parameter)]):
            run.append(_written(parameter, given[id(parameter)], jacobians, block))
        else:
            close(span.start)
            pieces.append(_positional(parameter, span, given[id(parameter)], jacobians, block))
    close(block.size)
    return tuple(pieces)


def _is_better_written(parameter: Tensor, given: Given) -> bool:
    """Whether ``v`` and ``u`` are smaller written out than as positions, or too small to matter."""
    if parameter.numel() < SMALL:
        return True
    if not given:
        return False
    kinds = {type(form) for form, _ in given}
    if kinds != {Factors}:
        return kinds != {Table}
    outputs = parameter.shape[0]
    inputs = parameter.numel() // outputs
    positions = sum(len(form[0]) * (2 if call.paired else _positions(call)) for form, call in given)
    return positions * (outputs + inputs) > 2 * outputs * inputs


def _positions(call: Calls) -> int:
    """How many positions of a sample each position of a layer becomes."""
    return sum(1 if rows.mix is None else rows.mix.shape[1] for rows in (call.prediction, call.target) if rows)


def _written(parameter: Tensor, given: Given, jacobians: _Jacobians, block: Block) -> Tensor:
    """``[roles, m, p]``: the prediction's gradients and the target's."""
    if len(given) == 1 and given[0][1].paired:
        full = _full(given[0][0], parameter)
        if full.shape[0] == jacobians.roles * jacobians.samples:
            return full.view(jacobians.roles, jacobians.samples, -1)
    shape = (jacobians.roles, jacobians.samples, parameter.numel())
    both = torch.zeros(shape, dtype=block.dtype, device=block.device)
    for form, call in given:
        for role, rows in zip(both, (call.prediction, call.target), strict=False):
            if rows is not None:
                role += _full(rows.take(form), parameter).to(role)
    return both


def _positional(parameter: Tensor, span: slice, given: Given, jacobians: _Jacobians, block: Block) -> Piece:
    """The calls of a layer put side by side: the prediction's positions first, then the target's."""
    if not given:  # not in this graph at all
        outputs = parameter.shape[0]
        nothing = torch.zeros(0, jacobians.samples, 1, device=block.device, dtype=block.dtype)
        return Outer(span, (nothing.expand(-1, -1, parameter.numel() // outputs), nothing.expand(-1, -1, outputs)))
    kind = Lookup if isinstance(given[0][0], Table) else Outer
    if len(given) == 1 and given[0][1].paired:
        form, _ = given[0]
        head = len(form[0])
        return kind(span, tuple(_side_by_side(part, jacobians.samples).to(block.device) for part in form), head)
    own = [call.prediction.take(form) for form, call in given if call.prediction is not None]
    target = [call.target.take(form) for form, call in given if call.target is not None]
    head = sum(len(form[0]) for form in own)
    first, second = (torch.cat([form[place] for form in own + target]).to(block.device) for place in (0, 1))
    return kind(span, (first, second), head)


def _side_by_side(x: Tensor, samples: int) -> Tensor:
    """Positions ``[t, roles · m, ...]`` as ``[roles · t, m, ...]``."""
    if len(x) == 1:
        return x.view(-1, samples, *x.shape[2:])
    return x.unflatten(1, (-1, samples)).transpose(0, 1).flatten(0, 1)


def _full(form: Form, parameter: Tensor) -> Tensor:
    if isinstance(form, Full):
        return form.gradient
    if isinstance(form, Factors):
        a, b = form
        if len(a) == 1:
            return (b.unsqueeze(3) * a.unsqueeze(2)).view(a.shape[1], -1)
        return torch.bmm(b.permute(1, 2, 0), a.transpose(0, 1)).flatten(1)
    return Lookup(slice(0, parameter.numel()), form, len(form.entries)).matrices()[0]


def _agreement(
    prediction: Tensor, target: Tensor | None, blocks: Sequence[Block], found: list[tuple[Piece, ...]], halves: bool
) -> bool | None:
    """Compare random mixtures of samples with what autograd says of them: a model that mixes the rows of its batch
    in between its layers shows here, and nowhere else. None: too many gradients are zero to tell."""
    generator = torch.Generator().manual_seed(len(prediction))
    # Of one sign, so that sums over samples do not cancel to mere rounding.
    mixture = (0.5 + torch.rand(len(prediction), generator=generator)).to(prediction)
    own = [prediction], [mixture]
    residual = own if target is None else ([prediction, target], [mixture, -mixture])
    # Rounding is far smaller than this (even that of TF32 convolutions, or of layers run in half precision), mixed
    # rows far larger.
    tolerance = 1e-1 if halves else 1e-2 if torch.finfo(prediction.dtype).bits <= 32 else 1e-6
    conclusive = True
    for block, pieces in zip(blocks, found, strict=True):
        trainable = [p for p in block.parameters if p.requires_grad]
        if not trainable:
            continue
        weight = mixture.to(block.device, block.dtype)
        sizes = torch.zeros(len(block.parameters), dtype=block.dtype, device=block.device)
        for (values, weights), side in ((own, pieces), (residual, tuple(piece.of_residual() for piece in pieces))):
            true = torch.autograd.grad(values, trainable, weights, retain_graph=True, allow_unused=True)
            by_id = {id(p): g for p, g in zip(trainable, true, strict=True) if g is not None}
            expected = block.flat(by_id.get(id(p), torch.zeros_like(p)) for p in block.parameters)
            got = Linearization(side, weight, weight).gradient(weight)
            errors = torch.stack(torch._foreach_norm(block.split(got - expected)))
            # The residual's gradient may be the small difference of two large ones, whose rounding it carries.
            sizes = sizes + torch.stack(torch._foreach_norm(block.split(expected)))
            nothing = 100 * torch.finfo(prediction.dtype).eps * sizes.max()
            if bool((errors > tolerance * sizes + nothing).any()):
                return False
            conclusive = conclusive and bool((sizes > nothing).all())
    return True if conclusive else None
