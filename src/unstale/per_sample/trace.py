"""Which sample every row of every layer call serves, derived from each graph.

:func:`trace` walks the graph from a prediction or target ``[m]`` down to the parameters, once, and hands the owners of
rows from every operation to its inputs (:mod:`.row_rules`). It ends with

- layer calls (:mod:`.layer_rules`) whose rows belong to one sample each: these have factored per-sample gradients;
- parameters that were reached in any other way: these need batched vector-Jacobian products.

Where rows serve several samples (the values behind λ-returns, a bootstrap shared by a trajectory), the walk
restarts: every element of that tensor becomes a *unit* that owns rows, and how much each sample takes of each unit is
an exact Jacobian of the small graph above it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .autograd_graph import Edge, Unavailable, operation, read_graph, root_edge, shape
from .jacobian import jacobian
from .layer_rules import LayerCall, is_layer, match_layer
from .owners import Owner, Shared, merge
from .row_rules import input_owners

# A tensor with shared rows is cut into units while its Jacobian has at most this many entries.
MAX_JACOBIAN_ENTRIES = 1 << 22


@dataclass(eq=False)
class Units:
    """What owns rows: the samples of ``root [m]``, or the elements of a tensor (``edge``) that samples share."""

    root: Tensor
    edge: Edge | None = None
    reason: str = "a use outside of layers"  # why a parameter below needs vector-Jacobian products, if it does
    _mixing: Tensor | None = None

    def shared(self, found: Shared) -> Shared:
        """Why rows below are shared: what was found there, or the older reason for which these units exist."""
        return found if self.edge is None else Shared(self.reason)

    def mixing(self) -> Tensor | None:
        """How much each sample takes of each unit, ``[m, units]``; None if units are samples."""
        if self.edge is not None and self._mixing is None:
            (found,) = jacobian(self.root, [self.edge])
            size = math.prod(shape(self.edge))
            self._mixing = self.root.new_zeros(len(self.root), size) if found is None else found.reshape(-1, size)
        return self._mixing


class OwnedCall(NamedTuple):
    """A layer call whose row ``r`` serves unit ``owner[r]`` (-1: none)."""

    call: LayerCall
    units: Units
    owner: Tensor


@dataclass
class Trace:
    """Everything behind one tensor ``[m]``."""

    calls: list[OwnedCall] = field(default_factory=list)
    reached: set[int] = field(default_factory=set)  # ids of all leaves
    size: int = 0  # entries of all leaves
    nodes: set[Any] = field(default_factory=set)  # of the graph, without leaves
    irregular: dict[int, str] = field(default_factory=dict)  # ids of leaves with other uses than layer calls, and why


def leaves(root: Tensor) -> list[Tensor]:
    """The leaves that ``root`` depends on."""
    edge = root_edge(root)
    return [root] if edge is None else list(read_graph(edge).leaves.values())


def reached_leaves(root: Tensor) -> set[int]:
    """The ids of the leaves that ``root`` depends on."""
    return set(map(id, leaves(root)))


class _Owned(NamedTuple):
    units: Units
    owner: Tensor


_Label = _Owned | Shared


def trace(root: Tensor) -> Trace:
    """Find the owners of all rows behind ``root [m]``."""
    result = Trace()
    edge = root_edge(root)
    if edge is None:
        result.reached.add(id(root))
        result.irregular[id(root)] = "a parameter that is a prediction or target itself"
        return result
    graph = read_graph(edge)
    result.nodes.update(graph.order)
    for leaf in graph.leaves.values():
        result.reached.add(id(leaf))
        result.size += leaf.numel()
    labels: dict[Any, dict[int, _Label]] = {edge[0]: {edge[1]: _Owned(Units(root), torch.arange(len(root)))}}
    for node in graph.order:
        own = labels.pop(node, None)
        if own is None:  # nothing depends on it, or a layer's rule takes care of it
            continue
        edges = graph.edges[node]
        units, owners = _units_and_owners(node, own, root)
        matched = match_layer(node, owners, edges) if is_layer(node) else None
        if matched is not None:
            result.calls.append(OwnedCall(matched.call, units, matched.owner))
            edges = [(None, 0) if place in matched.handled else edge for place, edge in enumerate(edges)]
        for (child, number), owner in zip(edges, input_owners(node, owners, edges), strict=True):
            if child is None or owner is None or (isinstance(owner, Tensor) and owner.numel() == 0):
                continue  # nothing depends on an empty tensor
            label: _Label = _Owned(units, owner) if isinstance(owner, Tensor) else units.shared(owner)
            if child in graph.leaves:
                reason = label.reason if isinstance(label, Shared) else label.units.reason
                result.irregular[id(graph.leaves[child])] = reason
                continue
            there = labels.setdefault(child, {})
            there[number] = _merged(there[number], label, operation(node)) if number in there else label
    return result


def _units_and_owners(node: Any, own: dict[int, _Label], root: Tensor) -> tuple[Units, dict[int, Owner]]:
    """The owners of a node's outputs, and the units that they name. Shared rows become units of their own."""
    labels = list(own.values())
    first = labels[0]
    if isinstance(first, _Owned):
        if len(labels) == 1:
            return first.units, {next(iter(own)): first.owner}
        if all(isinstance(label, _Owned) and label.units is first.units for label in labels):
            return first.units, {number: label.owner for number, label in own.items()}  # type: ignore[union-attr]
    shared = next((label for label in labels if isinstance(label, Shared)), Shared(operation(node)))
    if len(own) == 1:
        (number,) = own
        try:
            size = shape((node, number))
        except Unavailable:
            size = None
        if size is not None and len(root) * math.prod(size) <= MAX_JACOBIAN_ENTRIES:
            units = Units(root, (node, number), shared.reason)
            return units, {number: torch.arange(math.prod(size)).reshape(size)}
    return Units(root), dict.fromkeys(own, shared)


def _merged(one: _Label, other: _Label, reason: str) -> _Label:
    if isinstance(one, Shared):
        return one
    if isinstance(other, Shared):
        return other
    if one.units is not other.units:
        return Shared(reason)
    owner = merge(one.owner, other.owner, reason)
    return owner if isinstance(owner, Shared) else _Owned(one.units, owner)
