"""Which rows of a layer's input belong to which sample.

A user may call the network once on ``cat([s, s'])``, twice, on a whole trajectory, or on a masked part of the
batch, and may gather, index or mix its outputs in any way. Rather than guess from shapes, the dependence is read
off the graph between the network's outputs and the prediction and target: two cheap backward passes over that
small part, with random weights ``w`` on the samples. A row that serves one sample alone answers with ``w_k`` times
what it answers to ones. Where rows serve several samples, as in TD(λ), the Jacobian of that small part is taken.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from .graph import Graph, Site
from .layers import Form, Full


class Rows(NamedTuple):
    """How the rows of one call become samples: they are the samples, in order; or ``index`` picks one for each
    (``present`` is 0 where a sample has none); or each has a mixture of rows, with weights ``mix [m, r]``."""

    index: slice | Tensor | None = None
    present: Tensor | None = None
    mix: Tensor | None = None

    def take(self, form: Form) -> Form:
        """The gradients of rows, as gradients of samples."""
        if self.index is None and self.mix is None:
            return form
        *inputs, outputs = form
        if isinstance(form, Full) and self.mix is not None:
            return Full(self.mix.to(outputs) @ outputs)
        if self.mix is None:
            rows = self.index if isinstance(form, Full) else (slice(None), self.index)
            outputs = outputs[rows]
            if self.present is not None:
                outputs = outputs * self.present.to(outputs).unsqueeze(-1)
            return type(form)(*(part[rows] for part in inputs), outputs)
        # Every row becomes a position of every sample, weighed by how much the sample has of it.
        (inputs,) = inputs
        samples = self.mix.shape[0]
        weighed = outputs.unsqueeze(2) * self.mix.to(outputs).T.unsqueeze(-1)
        wide = inputs.unsqueeze(2).expand(*inputs.shape[:2], samples, *inputs.shape[2:])
        return type(form)(wide.flatten(0, 1), weighed.flatten(0, 1))


class Share(NamedTuple):
    """What one call gives to the prediction, or to the target."""

    site: Site
    rows: Rows
    outputs: Tensor  # gradients of the call's output, rows first


class Reading(NamedTuple):
    prediction: list[Share]
    target: list[Share]


class _Plan(NamedTuple):
    """What was found for a signature."""

    expected: Tensor  # by how much the second probe's answer is larger, over all rows of all top calls
    rows: list[tuple[Rows | None, Rows | None]]  # for every call, its rows in the prediction and in the target


class RowReader:
    """Reads rows. What it found for a signature is kept, so that later steps need only confirm it."""

    def __init__(self) -> None:
        self._plans: dict[tuple, _Plan] = {}
        self._weights: dict[tuple, Tensor] = {}

    def read(self, prediction: Tensor, target: Tensor | None, graph: Graph, signature: tuple) -> Reading | None:
        """What every call gives to prediction and target, or None where rows cannot be told apart."""
        return self._read_single_use(prediction, target, graph, signature) or _read_shared(prediction, target, graph)

    def _read_single_use(
        self, prediction: Tensor, target: Tensor | None, graph: Graph, signature: tuple
    ) -> Reading | None:
        """The common case: every row serves one sample, of the prediction or of the target."""
        samples = len(prediction)
        ones, weights = self._probes(prediction)
        roles = [prediction] if target is None else [prediction, target]
        edges = [site.edge for site in graph.sites]
        gradients = _backward(roles, [ones] * len(roles), edges)
        probed = _backward(roles, [weights[:samples], weights[samples:]][: len(roles)], edges[: len(graph.tops)])
        if any(gradient is None for gradient in gradients):
            return None

        plain = gradients[: len(probed)]
        plan = self._plans.get(signature)
        if plan is None or not _fits(_flat(plain), _flat(probed), plan.expected):
            plan = _plan(graph, plain, probed, weights)
            if plan is None:
                return None
            self._plans[signature] = plan

        reading = Reading([], [])
        for site, gradient, (in_prediction, in_target) in zip(graph.sites, gradients, plan.rows, strict=True):
            if in_prediction is not None:
                reading.prediction.append(Share(site, in_prediction, gradient))
            if in_target is not None:
                reading.target.append(Share(site, in_target, gradient))
        return reading

    def _probes(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Ones, and distinct weights for ``m`` predictions and ``m`` targets, from a generator of our own."""
        key = (len(like), like.dtype, like.device)
        if key not in self._weights:
            count = 2 * len(like)
            generator = torch.Generator().manual_seed(count)
            spread = torch.randperm(count, generator=generator) + 0.5 * torch.rand(count, generator=generator)
            self._weights[key] = (1 + spread / count).to(like)
        return torch.ones_like(like), self._weights[key]


def _plan(graph: Graph, plain: Sequence[Tensor], probed: Sequence[Tensor], weights: Tensor) -> _Plan | None:
    """Who owns each row: sample ``k`` of the prediction is owner ``k``, of the target owner ``m + k``."""
    samples = len(weights) // 2
    owners: dict[Site, list[int]] = {}
    expected = []
    for top, one, two in zip(graph.tops, plain, probed, strict=True):
        found = _owners(one.reshape(top.rows, -1), two.reshape(top.rows, -1), weights)
        if found is None or not _pass_down(top, found.tolist(), owners):
            return None
        expected.append(weights[found].repeat_interleave(one.numel() // top.rows))
    rows = []
    for site in graph.sites:
        mine = owners[site]
        own = [owner if owner < samples else -1 for owner in mine]
        targets = [owner - samples if owner >= samples else -1 for owner in mine]
        rows.append(tuple(_rows_of_samples(part, samples, weights) for part in (own, targets)))
    return _Plan(torch.cat(expected), rows)


def _owners(plain: Tensor, weighted: Tensor, weights: Tensor) -> Tensor | None:
    """The owner of each row, from its answers to the two probes."""
    everyone = torch.arange(len(weights), device=weights.device)
    samples, rows = len(weights) // 2, len(plain)
    ratio = (weighted * plain).sum(-1) / plain.square().sum(-1)
    nearest = (ratio.unsqueeze(-1) - weights).abs().nan_to_num(0).argmin(-1)
    # In half precision neighbouring weights blur, so the usual orders are tried by name before the nearest weight.
    for guess in (everyone[:samples], everyone[samples:], everyone, nearest):
        if len(guess) == rows and _fits(plain, weighted, weights[guess].unsqueeze(-1)):
            return guess
    return None


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def _fits(plain: Tensor, probed: Tensor, expected: Tensor) -> bool:
    error = torch.linalg.vector_norm(torch.addcmul(probed, plain, expected, value=-1))
    return bool(error <= 16 * torch.finfo(plain.dtype).eps * torch.linalg.vector_norm(plain))


def _pass_down(site: Site, mine: list[int], owners: dict[Site, list[int]]) -> bool:
    """Give the calls below a call the same owners. False if two calls above one disagree about it."""
    if site in owners:
        return owners[site] == mine
    owners[site] = mine
    for low in site.below:
        times, rest = divmod(low.rows, len(mine))
        if rest:
            return False
        # A call on several rows a sample (frames of a stack, say) has them next to one another. Should a model
        # do otherwise, the self-check of `linearize` finds out.
        if not _pass_down(low, [owner for owner in mine for _ in range(times)], owners):
            return False
    return True


def _rows_of_samples(owners: list[int], samples: int, like: Tensor) -> Rows | None:
    """The rows of each sample; None if the call has none. ``owners`` has -1 for rows that are not asked about."""
    found: list[list[int]] = [[] for _ in range(samples)]
    for row, owner in enumerate(owners):
        if owner >= 0:
            found[owner].append(row)
    if not any(found):
        return None
    if all(len(rows) <= 1 for rows in found):
        order = [rows[0] if rows else 0 for rows in found]
        present = torch.tensor([float(len(rows)) for rows in found], device=like.device)
        if not all(found):
            return Rows(torch.tensor(order, device=like.device), present)
        if order == list(range(len(owners))):
            return Rows()
        if order == list(range(order[0], order[0] + samples)):
            return Rows(slice(order[0], order[0] + samples))
        return Rows(torch.tensor(order, device=like.device))
    mix = torch.zeros(samples, len(owners))
    for sample, rows in enumerate(found):
        mix[sample, rows] = 1
    return Rows(mix=mix.to(like))


def _read_shared(prediction: Tensor, target: Tensor | None, graph: Graph) -> Reading | None:
    """Rows that serve several samples, each time along one direction of the network's output."""
    first = _read_shared_role(prediction, graph)
    second = [] if target is None else _read_shared_role(target, graph)
    return None if first is None or second is None else Reading(first, second)


def _read_shared_role(values: Tensor, graph: Graph) -> list[Share] | None:
    lower = {low for site in graph.sites for low in site.below}
    if any(top in lower for top in graph.tops):
        return None
    identity = torch.eye(len(values), dtype=values.dtype, device=values.device)
    jacobians = batched_backward(values, [top.edge for top in graph.tops], identity)
    mixes: dict[Site, Tensor] = {}
    starts, directions = [], []
    for top, jacobian in zip(graph.tops, jacobians, strict=True):
        if jacobian is None:
            continue
        by_row = jacobian.reshape(len(values), top.rows, -1)
        strength = by_row.square().sum(-1)
        strongest = strength.argmax(0)
        direction = by_row[strongest, torch.arange(top.rows, device=values.device)]
        mix = (by_row * direction).sum(-1) / strength.amax(0)
        mix = mix.nan_to_num(0)  # rows that nobody uses
        error = torch.linalg.vector_norm(mix.unsqueeze(-1) * direction - by_row)
        if error > 16 * torch.finfo(values.dtype).eps * torch.linalg.vector_norm(by_row):
            return None
        starts.append(top.edge)
        directions.append(direction.reshape(jacobian.shape[1:]))
        if not _pass_mix_down(top, mix, mixes):
            return None
    if not starts:
        return []
    gradients = _backward(starts, directions, [site.edge for site in graph.sites])
    return [
        Share(site, Rows(mix=mixes[site]), gradient)
        for site, gradient in zip(graph.sites, gradients, strict=True)
        if gradient is not None
    ]


def _pass_mix_down(site: Site, mix: Tensor, mixes: dict[Site, Tensor]) -> bool:
    if site in mixes:
        return torch.allclose(mixes[site], mix)
    mixes[site] = mix
    return all(low.rows == mix.shape[1] and _pass_mix_down(low, mix, mixes) for low in site.below)


def _backward(values: Sequence, weights: Sequence[Tensor], inputs: Sequence[GradientEdge]) -> Sequence[Tensor | None]:
    return torch.autograd.grad(values, inputs, weights, retain_graph=True, allow_unused=True)


def batched_backward(values: Tensor, inputs: Sequence, weights: Tensor) -> Sequence[Tensor | None]:
    """One backward pass for every row of ``weights``, together where the graph allows it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # batching rules that torch lacks make it slower, not wrong
            return torch.autograd.grad(
                values, inputs, weights, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
    except RuntimeError:
        singles = [torch.autograd.grad(values, inputs, w, retain_graph=True, allow_unused=True) for w in weights]
        return [None if parts[0] is None else torch.stack(parts) for parts in zip(*singles, strict=True)]
