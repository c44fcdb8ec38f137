"""Finding the observed layers behind a prediction and its target.

Walks the autograd graph down from its roots. Between two observed layers only a few nodes (an activation, a
reshape) are looked at; below a layer the walk goes on from its noted input.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge

from .layers import rows_of
from .observe import NOTE, Note

Node = Any  # torch.autograd.graph.Node; its metadata is not in torch's type stubs

# Operations that do the same to every row whatever the data, with the attributes that say what they do.
PLAIN_OPERATIONS = {
    "AddBackward0": (),
    "CloneBackward0": (),
    "DivBackward0": (),
    "GatherBackward0": ("_saved_dim",),
    "MulBackward0": (),
    "NegBackward0": (),
    "RsubBackward1": (),
    "SelectBackward0": ("_saved_dim", "_saved_index"),
    "SliceBackward0": ("_saved_dim", "_saved_start", "_saved_end", "_saved_step"),
    "SplitBackward0": ("_saved_dim", "_saved_split_size"),
    "SqueezeBackward0": (),
    "SqueezeBackward1": ("_saved_dim",),
    "SubBackward0": (),
    "ToCopyBackward0": (),
    "UnsqueezeBackward0": ("_saved_dim",),
    "ViewBackward0": (),
}


@dataclass(eq=False)
class Site:
    """One call of one observed layer: a place in the graph."""

    edge: GradientEdge
    note: Note
    below: list[Site] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return rows_of(*self.note)


@dataclass
class Graph:
    """The observed calls behind some tensors (``tops`` first reached), and the leaves reached past them."""

    tops: list[Site]
    sites: list[Site]
    leaves: list[Tensor]
    surface: tuple | None  # what is between the tensors and the tops; None if its effect on rows depends on data

    @property
    def signature(self) -> tuple:
        """Equal for steps that ran the same layers, wired alike, on inputs of the same shapes."""
        place = {site: number for number, site in enumerate(self.sites)}
        calls = tuple(
            (id(site.note.module), site.note.input.shape, tuple(place[low] for low in site.below))
            for site in self.sites
        )
        return (*calls, len(self.tops), tuple(id(leaf) for leaf in self.leaves), self.surface)


def trace(*roots: Tensor) -> Graph:
    """The graph behind ``roots``."""
    sites: dict[Node, Site] = {}
    leaves: dict[int, Tensor] = {}
    surface: list[Any] = []
    tops = _frontier(roots, sites, leaves, surface)
    order = list(sites.values())
    for site in order:  # grows as it goes
        known = len(sites)
        site.below = _frontier([site.note.input], sites, leaves)
        order.extend(list(sites.values())[known:])
    return Graph(tops, order, list(leaves.values()), None if None in surface else tuple(surface))


def _frontier(
    roots: Iterable[Tensor], sites: dict[Node, Site], leaves: dict[int, Tensor], surface: list[Any] | None = None
) -> list[Site]:
    """The observed calls first met below ``roots``; new ones are entered in ``sites``, leaves in ``leaves``, and a
    description of the nodes on the way in ``surface``."""
    found: list[Site] = []
    stack: list[Node] = []
    for root in roots:
        if root.grad_fn is not None:
            stack.append(root.grad_fn)
        elif root.requires_grad:
            leaves[id(root)] = root
    seen = set(stack)
    while stack:
        node = stack.pop()
        name = type(node).__name__
        if name == "AccumulateGrad":
            leaves[id(node.variable)] = node.variable
            continue
        note = node.metadata.get(NOTE)
        if note is not None:
            if node not in sites:
                sites[node] = Site(GradientEdge(node, 0), note)
            found.append(sites[node])
            continue
        if "BatchNorm" in name:
            _refuse_batch_norm(node)
        if surface is not None:
            surface.append(_described(node, name))
        for follower, _ in node.next_functions:
            if follower is not None and follower not in seen:
                seen.add(follower)
                stack.append(follower)
    return found


def _described(node: Node, name: str) -> tuple | None:
    """What a node does to rows; None if that depends on data."""
    attributes = PLAIN_OPERATIONS.get(name)
    if attributes is None or (name == "GatherBackward0" and (node._saved_dim == 0 or node._saved_index.ndim == 1)):
        return None
    return (name, *[getattr(node, attribute) for attribute in attributes], *[n for _, n in node.next_functions])


def _refuse_batch_norm(node: Node) -> None:
    # Instance norm runs as batch norm over a batch of one, which mixes no samples.
    if getattr(node, "_saved_training", False) and node._saved_input.shape[0] > 1:
        raise RuntimeError(
            "batch normalisation in training mode mixes the samples of a batch, so per-sample gradients do not "
            "exist. Call model.eval() on those layers, or use LayerNorm or GroupNorm instead."
        )
