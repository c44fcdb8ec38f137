"""From a prediction and its target, as live tensors, to per-sample gradients of both.

Layers that are observed give theirs in factored form from one backward pass. All else (other layers, bare
parameters, graphs whose samples cannot be told apart by rows) goes through batched vector-Jacobian products, which
are right for any graph.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .block import Block
from .graph import Graph, Site, trace
from .layers import Factors, Form, Full, Table, per_row
from .rows import Reading, RowReader, batched_backward
from .samples import Linearization, Lookup, Matrix, Outer, Piece

# Gradients of a layer with fewer parameters than this are written out: one large matrix product is then quicker
# than several small ones.
SMALL = 512

# Factored gradients are compared with autograd's when a graph is new, and again, up to this many times, while some
# gradients are zero (an output layer that starts at zero hides all that is below it).
LOOKS = 16


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
        self._looks: Counter[tuple] = Counter()  # how often a signature was compared with autograd
        self._mixing: set[tuple] = set()  # signatures that failed

    @torch.no_grad()
    def linearize(self, prediction: Tensor, target: Tensor | None, blocks: Sequence[Block]) -> Linearized:
        """The gradients ``v`` of the prediction and ``u`` of the residual, for every sample."""
        graph = trace(prediction) if target is None else trace(prediction, target)
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
        reading = self._reader.read(prediction, target, graph, signature)
        if reading is None:
            return None
        # A parameter reached past the layers (tied, or used bare) has more to its gradient than the layers know.
        bare = {id(leaf) for leaf in graph.leaves}
        jacobians = _Jacobians(prediction, target)
        found = []
        for block in blocks:
            forms = _collect(reading, block, bare)
            found.append(_pieces(block, forms, jacobians))
            jacobians.reached.update(key for key, (own, _) in forms.items() if own)
        if self._looks[signature] < LOOKS:
            agreement = _agreement(prediction, target, blocks, found)
            self._looks[signature] += 1 if agreement is None else LOOKS
            if agreement is False:
                self._mixing.add(signature)
                warnings.warn(
                    "this model mixes the rows of a batch between its layers, so per-sample gradients are taken by "
                    "batched vector-Jacobian products instead: right, but slower.",
                    stacklevel=5,
                )
                return None
        return found, jacobians.reached


def _leaves(graph: Graph) -> list[Tensor]:
    found = {id(leaf): leaf for leaf in graph.leaves}
    for site in graph.sites:
        found.update((id(p), p) for p in site.note.module._parameters.values() if p is not None and p.requires_grad)
    return list(found.values())


class Forms(NamedTuple):
    """What the calls of a parameter's layer give to the prediction, and to the target."""

    own: list[Form]
    target: list[Form]


def _collect(reading: Reading, block: Block, bare: set[int]) -> dict[int, Forms]:
    """Sort what the calls give by parameter (id), leaving out those in ``bare``."""
    forms = {id(p): Forms([], []) for p in block.parameters if id(p) not in bare and p.requires_grad}
    opened: dict[tuple[Site, int], list[tuple[int, Form]]] = {}  # a call that serves both roles is opened once
    for role, shares in enumerate(reading):
        for site, rows, outputs in shares:
            key = (site, id(outputs))
            if key not in opened:
                opened[key] = [(id(p), form) for p, form in per_row(*site.note, outputs, block.dtype) if id(p) in forms]
            for parameter, form in opened[key]:
                forms[parameter][role].append(rows.take(form))
    return forms


class _Jacobians:
    """Per-sample gradients of any graph, taken only for the parameters that ask for them."""

    def __init__(self, prediction: Tensor, target: Tensor | None) -> None:
        self._prediction, self._target = prediction, target
        self.samples = len(prediction)
        self.reached: set[int] = set()

    def of(self, parameters: list[Tensor], block: Block) -> list[tuple[Tensor, Tensor | None]]:
        """``v``, and the target's part of ``u``, of each parameter, written out."""
        if not parameters:
            return []
        v = self._role(self._prediction, parameters, block)
        y = [None] * len(v) if self._target is None else self._role(self._target, parameters, block)
        return list(zip(v, y, strict=True))

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


def _pieces(block: Block, forms: dict[int, Forms], jacobians: _Jacobians) -> tuple[Piece, ...]:
    """One piece a parameter, except that neighbours which are written out share one."""
    unknown = [p for p in block.parameters if id(p) not in forms]
    written = dict(zip(map(id, unknown), jacobians.of(unknown, block), strict=True))
    pieces: list[Piece] = []
    run: list[tuple[Tensor, Tensor | None]] = []  # v, and the target's part of u, of neighbouring parameters

    def close(stop: int) -> None:
        if run:
            v = _joined([v for v, _ in run])
            if all(y is None for _, y in run):
                u = v
            else:
                u = v - _joined([torch.zeros_like(v) if y is None else y for v, y in run])
            pieces.append(Matrix(slice(stop - v.shape[1], stop), (v, u)))
            run.clear()

    for parameter, span in zip(block.parameters, block.spans, strict=True):
        if id(parameter) in written:
            run.append(written[id(parameter)])
            continue
        own, target = forms[id(parameter)]
        if _is_better_written(parameter, own + target):
            v = _summed(own, parameter)
            if v is None:
                v = torch.zeros(jacobians.samples, parameter.numel(), dtype=block.dtype, device=block.device)
            run.append((v, _summed(target, parameter)))
        else:
            close(span.start)
            pieces.append(_positional(parameter, span, own, target, jacobians.samples, block))
    close(block.size)
    return tuple(pieces)


def _is_better_written(parameter: Tensor, forms: list[Form]) -> bool:
    """Whether ``v`` and ``u`` are smaller written out than as positions, or too small to matter."""
    if parameter.numel() < SMALL:
        return True
    if not forms:
        return False
    kind = type(forms[0])
    if kind is Full or any(type(form) is not kind for form in forms):
        return True
    if kind is Table:
        return False
    outputs = parameter.shape[0]
    inputs = parameter.numel() // outputs
    return sum(len(form[0]) for form in forms) * (outputs + inputs) > 2 * outputs * inputs


def _positional(
    parameter: Tensor, span: slice, own: list[Form], target: list[Form], samples: int, block: Block
) -> Piece:
    """The calls of a layer put side by side: the prediction's positions first, then the target's, negated."""
    every = own + target
    if not every:  # not in this graph at all
        outputs = parameter.shape[0]
        nothing = parameter.new_zeros(0, samples, 1, device=block.device, dtype=block.dtype)
        return Outer(span, (nothing.expand(-1, -1, parameter.numel() // outputs), nothing.expand(-1, -1, outputs)))
    head = sum(len(form[0]) for form in own)
    first = torch.cat([form[0] for form in every]).to(block.device)
    second = torch.cat([form[1] for form in own] + [-form[1] for form in target]).to(block.device)
    return (Lookup if isinstance(every[0], Table) else Outer)(span, (first, second), head)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _summed(forms: list[Form], parameter: Tensor) -> Tensor | None:
    total: Tensor | None = None
    for form in forms:
        full = _full(form, parameter)
        total = full if total is None else total + full
    return total


def _full(form: Form, parameter: Tensor) -> Tensor:
    if isinstance(form, Full):
        return form.gradient
    if isinstance(form, Factors):
        a, b = form
        if len(a) == 1:
            return (b.unsqueeze(3) * a.unsqueeze(2)).view(a.shape[1], -1)
        return torch.einsum("tko,tki->koi", b, a).flatten(1)
    return Lookup(slice(0, parameter.numel()), (form.index, form.outputs), form.index.shape[0]).matrices()[0]


def _agreement(
    prediction: Tensor, target: Tensor | None, blocks: Sequence[Block], found: list[tuple[Piece, ...]]
) -> bool | None:
    """Compare random mixtures of samples with what autograd says of them: a model that mixes the rows of its batch
    in between its layers shows here, and nowhere else. None: too many gradients are zero to tell."""
    generator = torch.Generator().manual_seed(len(prediction))
    mixture = torch.randn(len(prediction), generator=generator).to(prediction)
    own = [prediction], [mixture]
    residual = own if target is None else ([prediction, target], [mixture, -mixture])
    # Rounding is far smaller than this (even that of TF32 convolutions), mixed rows far larger.
    tolerance = 1e-2 if torch.finfo(prediction.dtype).bits <= 32 else 1e-6
    nothing = 100 * torch.finfo(prediction.dtype).eps
    conclusive = True
    for block, pieces in zip(blocks, found, strict=True):
        trainable = [p for p in block.parameters if p.requires_grad]
        weight = mixture.to(block.device, block.dtype)
        for (values, weights), side in ((own, pieces), (residual, tuple(piece.of_residual() for piece in pieces))):
            true = torch.autograd.grad(values, trainable, weights, retain_graph=True, allow_unused=True)
            by_id = {id(p): g for p, g in zip(trainable, true, strict=True) if g is not None}
            expected = block.flat(by_id.get(id(p), torch.zeros_like(p)) for p in block.parameters)
            got = Linearization(side, weight, weight).gradient(weight)
            for one, two in zip(block.split(got), block.split(expected), strict=True):
                size = torch.linalg.vector_norm(two)
                if torch.linalg.vector_norm(one - two) > tolerance * size + nothing:
                    return False
                conclusive = conclusive and bool(size > nothing)
    return True if conclusive else None
