"""Which rows of a layer's input belong to which sample.

A user may call the network once on ``cat([s, s'])``, twice, on a whole trajectory, or on a masked part of the
batch, and may gather, index or mix its outputs in any way. Rather than guess from shapes, the dependence is read
off the graph between the network's outputs and the prediction and target: two cheap backward passes over that
small part, with random weights ``w`` on the samples. A row that serves one sample alone answers with ``w_k`` times
what it answers to ones. Where rows serve several samples, as in TD(λ), the Jacobian of that small part is taken. What
was found is confirmed at every step, unless that part of the graph is one path of operations that cannot move rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from .graph import Graph, Site
from .layers import Form, Full
from .observe import Note

# How many plans are kept; a graph that looks different at every step must not fill the memory.
PLANS = 1000

# The largest weight of a probe. Weights are spread evenly in their logarithms, to be far apart in any precision.
SPREAD = 1024.0


class Rows(NamedTuple):
    """How the rows of a layer's calls become samples: ``chosen`` names one for each (``present`` is 0 where a sample
    has none), or each has a mixture of them, with weights ``mix [m, r]``."""

    chosen: slice | Tensor | None = None
    present: Tensor | None = None
    mix: Tensor | None = None

    def take(self, form: Form) -> Form:
        """The gradients of rows, as gradients of samples."""
        outputs = form[-1]
        if self.mix is None:
            rows = self.chosen if isinstance(form, Full) else (slice(None), self.chosen)
            outputs = outputs[rows]
            if self.present is not None:
                outputs = outputs * self.present.to(outputs).unsqueeze(-1)
            return Full(outputs) if isinstance(form, Full) else type(form)(form[0][rows], outputs)
        mix = self.mix.to(outputs)
        if isinstance(form, Full):
            return Full(mix @ outputs)
        # Every row becomes a position of every sample, weighed by how much the sample has of it.
        inputs = form[0]
        weighed = outputs.unsqueeze(2) * mix.T.unsqueeze(-1)
        wide = inputs.unsqueeze(2).expand(*inputs.shape[:2], mix.shape[0], *inputs.shape[2:])
        return type(form)(wide.flatten(0, 1), weighed.flatten(0, 1))


class Calls(NamedTuple):
    """Calls of one layer, their rows one after the other, and what they give to the prediction and to the target.

    ``paired``: the rows are the prediction's samples in order, followed by the target's, if there is one.
    """

    note: Note  # of one of them
    inputs: Tensor
    outputs: Tensor  # gradients of the layer's output, the target's negated
    prediction: Rows | None
    target: Rows | None
    paired: bool = False


class _Bundle(NamedTuple):
    """Which calls are put together, by their places in the graph, and whose rows they are."""

    places: list[int]
    prediction: Rows | None
    target: Rows | None
    paired: bool


class _Plan(NamedTuple):
    """What was found for a signature."""

    reached: list[int]  # the places of the calls that matter
    expected: list[Tensor]  # for every top call among them, by how much each row's second answer is larger, [r]
    bundles: list[_Bundle]
    in_order: bool  # rows are samples in order; then even rows that nobody used this time have a known owner


class RowReader:
    """Reads rows. What it found for a signature is kept, so that later steps need only confirm it."""

    def __init__(self) -> None:
        self._plans: dict[tuple, _Plan] = {}
        self._ways: dict[tuple, int] = {}
        self._probes: dict[tuple, tuple[Tensor, Tensor, Tensor]] = {}

    def read(self, prediction: Tensor, target: Tensor | None, graph: Graph, signature: tuple) -> list[Calls] | None:
        """What the calls give to prediction and target, or None where rows cannot be told apart."""
        ways: list[Callable[[], list[Calls] | None]] = [
            lambda: self._read_single_use([prediction, target], graph, signature),
            # On a trajectory a row serves its own sample, and the one before as a target: each role by itself.
            lambda: _both(
                self._read_single_use([prediction, None], graph, (*signature, "prediction")),
                self._read_single_use([None, target], graph, (*signature, "target")),
            ),
            lambda: _both(
                _read_shared(prediction, graph, is_target=False), _read_shared(target, graph, is_target=True)
            ),
        ]
        for way in range(self._ways.get(signature, 0), len(ways)):
            calls = ways[way]()
            self._ways[signature] = way  # what failed once is not tried again
            if calls is not None:
                return calls
        return None

    def _read_single_use(self, roles: list[Tensor | None], graph: Graph, signature: tuple) -> list[Calls] | None:
        """The common case: every row serves one sample, of one of the given roles (prediction, target)."""
        given = [role for role in roles if role is not None]
        if not given:
            return []
        signs, weights, weighted_signs = self._probe(given[0])
        edges = [site.edge for site in graph.sites]
        outputs = _backward(given, _of_given(signs, roles), edges)
        key = (signature, graph.surface)
        plan = self._plans.get(key)
        # Where data cannot change which row serves whom, what was found once holds for good.
        if plan is None or not plan.in_order or graph.surface is None:
            reached = [place for place, output in enumerate(outputs) if output is not None]
            tops = [place for place in reached if place < len(graph.tops)]
            probed = _backward(given, _of_given(weighted_signs, roles), [edges[place] for place in tops])
            plain = [outputs[place] for place in tops]
            if plan is None or plan.reached != reached or not _fits(plain, probed, plan.expected):
                first = 0 if roles[0] is not None else len(weights) // 2
                plan = _plan([graph.sites[place] for place in tops], graph, reached, plain, probed, weights, first)
                if plan is None:
                    return None
                if len(self._plans) >= PLANS:
                    self._plans.clear()
                self._plans[key] = plan
        calls = []
        for places, own, targets, paired in plan.bundles:
            notes = [graph.sites[place].note for place in places]
            inputs = _rows_joined([note.input for note in notes])
            calls.append(Calls(notes[0], inputs, _outputs_joined([outputs[i] for i in places]), own, targets, paired))
        return calls

    def _probe(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For ``m`` predictions and ``m`` targets: signs, distinct weights, and their product. From a generator of our
        own: a user's random numbers are the user's."""
        samples = like.shape[0]
        key = (samples, like.dtype, like.device)
        if key not in self._probes:
            count = 2 * samples
            generator = torch.Generator().manual_seed(count)
            spread = torch.randperm(count, generator=generator) + 0.5 * torch.rand(count, generator=generator)
            weights = (SPREAD ** (spread / count)).to(like)
            signs = torch.ones_like(weights)
            signs[samples:] = -1
            self._probes[key] = signs, weights, signs * weights
        return self._probes[key]


def _both(first: list[Calls] | None, second: list[Calls] | None) -> list[Calls] | None:
    return None if first is None or second is None else first + second


def _of_given(weights: Tensor, roles: list[Tensor | None]) -> list[Tensor]:
    """The halves of ``weights`` that belong to the roles which are there."""
    return [half for half, role in zip(weights.chunk(2), roles, strict=True) if role is not None]


def _plan(
    tops: list[Site],
    graph: Graph,
    reached: list[int],
    plain: Sequence[Tensor],
    probed: Sequence[Tensor],
    weights: Tensor,
    first: int,
) -> _Plan | None:
    """Who owns each row: sample ``k`` of the prediction is owner ``k``, of the target owner ``m + k``. Rows that nobody
    uses go to owner ``first``."""
    owners: dict[Site, list[int]] = {}
    expected = []
    in_order = True
    for top, one, two in zip(tops, plain, probed, strict=True):
        found = _owners(one.reshape(top.rows, -1), two.reshape(top.rows, -1), weights, first)
        if found is None or not _pass_down(top, found.tolist(), owners):
            return None
        # (A call that is of no consequence this time, all its samples being terminal, does not show whose it is.)
        in_order = in_order and bool((found.diff() == 1).all() & one.any())
        expected.append(weights[found])
    bundles: dict[tuple, list[int]] = {}
    for place in reached:
        site = graph.sites[place]
        # Calls whose rows can stand in one tensor. Those without a row axis stay by themselves.
        shape = tuple(site.note.input.shape)
        alike = shape[1:] if shape[:1] == (site.rows,) else place
        lent = tuple(map(id, site.note.parameters.values()))
        bundles.setdefault((id(site.note.module), lent, len(shape), alike), []).append(place)
    whose = [_bundle(graph, places, owners, weights) for places in bundles.values()]
    return _Plan(reached, expected, whose, in_order)


def _bundle(graph: Graph, places: list[int], owners: dict[Site, list[int]], weights: Tensor) -> _Bundle:
    samples = len(weights) // 2
    places = sorted(places, key=lambda place: owners[graph.sites[place]])  # predictions first
    mine = [owner for place in places for owner in owners[graph.sites[place]]]
    own = [owner if owner < samples else -1 for owner in mine]
    targets = [owner - samples if owner >= samples else -1 for owner in mine]
    return _Bundle(
        places,
        _rows_of_samples(own, samples, weights),
        _rows_of_samples(targets, samples, weights),
        mine == list(range(len(mine))) and len(mine) in (samples, 2 * samples),
    )


def _owners(plain: Tensor, weighted: Tensor, weights: Tensor, first: int) -> Tensor | None:
    """The owner of each row, from its answers to the two probes."""
    everyone = torch.arange(len(weights), device=weights.device)
    samples, rows = len(weights) // 2, len(plain)
    ratio = (weighted * plain).sum(-1) / plain.square().sum(-1)
    nearest = (ratio.unsqueeze(-1) - weights).abs().argmin(-1)
    nearest = torch.where(ratio.isnan(), first, nearest)
    guesses = [everyone[first : first + samples], everyone[samples:], everyone]
    # In half precision the weights of a large batch blur: the usual orders are tried by name, others not at all.
    if SPREAD ** (0.5 / len(weights)) > 1 + 4 * torch.finfo(plain.dtype).eps:
        guesses.append(nearest)
    for guess in guesses:
        if len(guess) == rows and _fits([plain], [weighted], [weights[guess]]):
            return guess
    return None


def _rows_joined(parts: list[Tensor]) -> Tensor:
    if len(parts) > 1:
        return torch.cat(parts)
    # Data is the user's, who may refill the tensor before we are done with it; activations are nobody's.
    return parts[0].clone() if parts[0].grad_fn is None else parts[0].detach()


def _outputs_joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _fits(plain: Sequence[Tensor], probed: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether every row of every top call answered the second probe with ``expected [r]`` times its first answer."""
    fits = torch.ones((), dtype=torch.bool, device=plain[0].device)
    for one, two, weight in zip(plain, probed, expected, strict=True):
        one, two = one.reshape(len(weight), -1), two.reshape(len(weight), -1)
        error = torch.addcmul(two, one, weight.unsqueeze(-1), value=-1).abs().amax(1)
        tolerance = (16 if one.dtype.itemsize >= 4 else 2) * torch.finfo(one.dtype).eps
        fits = fits & (error <= tolerance * weight * one.abs().amax(1)).all()
    return bool(fits)


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
        if order == list(range(order[0], order[0] + samples)):
            return Rows(slice(order[0], order[0] + samples))
        return Rows(torch.tensor(order, device=like.device))
    mix = torch.zeros(samples, len(owners))
    for sample, rows in enumerate(found):
        mix[sample, rows] = 1
    return Rows(mix=mix.to(like))


def _read_shared(values: Tensor | None, graph: Graph, is_target: bool) -> list[Calls] | None:
    """Rows that serve several samples, each time along one direction of the network's output."""
    if values is None:
        return []
    lower = {low for site in graph.sites for low in site.below}
    if any(top in lower for top in graph.tops):
        return None
    identity = torch.eye(values.shape[0], dtype=values.dtype, device=values.device)
    jacobians = batched_backward(values, [top.edge for top in graph.tops], identity)
    mixes: dict[Site, Tensor] = {}
    starts, directions = [], []
    for top, jacobian in zip(graph.tops, jacobians, strict=True):
        if jacobian is None:
            continue
        by_row = jacobian.reshape(values.shape[0], top.rows, -1)
        strength = by_row.square().sum(-1)
        direction = by_row[strength.argmax(0), torch.arange(top.rows, device=values.device)]
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
    outputs = _backward(starts, directions, [site.edge for site in graph.sites])
    calls = []
    for site, output in zip(graph.sites, outputs, strict=True):
        if output is not None:
            rows = Rows(mix=-mixes[site] if is_target else mixes[site])
            inputs = _rows_joined([site.note.input])
            calls.append(Calls(site.note, inputs, output, *((None, rows) if is_target else (rows, None))))
    return calls


def _pass_mix_down(site: Site, mix: Tensor, mixes: dict[Site, Tensor]) -> bool:
    if site in mixes:
        return torch.allclose(mixes[site], mix)
    mixes[site] = mix
    return all(low.rows == mix.shape[1] and _pass_mix_down(low, mix, mixes) for low in site.below)


def _backward(values: Sequence, weights: Sequence[Tensor], inputs: Sequence[GradientEdge]) -> Sequence[Any]:
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
