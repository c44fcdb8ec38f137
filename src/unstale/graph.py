"""Finding the observed layers behind a prediction and its target.

Walks the autograd graph down from its roots. Between two observed layers only a few nodes (an activation, a
reshape) are looked at; below a layer the walk goes on from its noted input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge

from .layers import rows_of
from .observe import NOTE, Note

Node = Any  # torch.autograd.graph.Node; its metadata is not in torch's type stubs

# Elementwise and shape operations, with the attributes that, beside shapes, say what they do. Along a single path of
# them no data can change which row serves which sample.
STRUCTURAL = {
    "AddBackward0": (),
    "CloneBackward0": (),
    "DivBackward0": (),
    "MulBackward0": (),
    "NegBackward0": (),
    "RsubBackward1": (),
    "SelectBackward0": ("_saved_dim", "_saved_index"),
    "SliceBackward0": ("_saved_dim", "_saved_start", "_saved_end", "_saved_step"),
    "SqueezeBackward0": (),
    "SqueezeBackward1": ("_saved_dim",),
    "SubBackward0": (),
    "ToCopyBackward0": (),
    "UnsqueezeBackward0": ("_saved_dim",),
    "ViewBackward0": (),
}
# What models do between their layers without moving rows, whatever the data.
ROWWISE = re.compile(
    "(Add|AdaptiveAvgPool|AvgPool|Clone|Div|Elu|Gelu|GroupNorm|Hardsigmoid|Hardswish|Hardtanh|LayerNorm|LeakyRelu|"
    "LogSigmoid|MaxPool|Mish|Mul|NativeDropout|NativeGroupNorm|NativeLayerNorm|Neg|Pow|Prelu|Relu|Rsub|Sigmoid|Silu|"
    "Softplus|Sub|Tanh|Threshold|ToCopy|UnsafeView|Unsqueeze|View)[A-Za-z0-9]*Backward[0-9]*"
)


@dataclass(eq=False)
class Site:
    """One call of one observed layer: a place in the graph."""

    edge: GradientEdge
    note: Note
    below: list[Site] = field(default_factory=list)
    between: list[str] = field(default_factory=list)  # names of the nodes from here to the calls below

    @property
    def rows(self) -> int:
        return rows_of(self.note.module, self.note.input)


@dataclass
class Graph:
    """The observed calls behind some tensors (``tops`` first reached), and the leaves reached past them."""

    tops: list[Site]
    sites: list[Site]
    leaves: list[Tensor]
    surface: tuple | None  # what is between the tensors and the tops; None if data could change whose a row is

    @property
    def is_rowwise(self) -> bool:
        """Whether everything between the layers is known to leave rows in their places."""
        return all(ROWWISE.fullmatch(name) for site in self.sites for name in site.between)

    @property
    def signature(self) -> tuple:
        """Equal for steps that ran the same layers, wired alike, on inputs of the same shapes."""
        place = {site: number for number, site in enumerate(self.sites)}
        calls = tuple(
            (id(site.note.module), site.note.input.shape, *[place[low] for low in site.below], *site.between)
            for site in self.sites
        )
        return (*calls, len(self.tops), tuple(id(leaf) for leaf in self.leaves))


def trace(*roots: Tensor) -> Graph:
    """The graph behind ``roots``."""
    sites: dict[Node, Site] = {}
    leaves: dict[int, Tensor] = {}
    passed: list[Node] = []
    tops = _frontier(roots, sites, leaves, passed)
    surface = _surface(roots, passed)
    order = list(sites.values())
    for site in order:  # grows as it goes
        known = len(sites)
        passed = []
        site.below = _frontier([site.note.input], sites, leaves, passed)
        site.between = [type(node).__name__ for node in passed]
        order.extend(list(sites.values())[known:])
    return Graph(tops, order, list(leaves.values()), surface)


def _frontier(
    roots: Iterable[Tensor], sites: dict[Node, Site], leaves: dict[int, Tensor], passed: list[Node]
) -> list[Site]:
    """The observed calls first met below ``roots``; new ones are entered in ``sites``, leaves in ``leaves``, and the
    nodes on the way in ``passed``."""
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
            if note.input._version != note.version:
                raise RuntimeError(
                    f"the input of a {type(note.module).__name__} layer, of shape {list(note.input.shape)}, was "
                    "changed in place since the forward pass. Change it after backward()."
                )
            if node not in sites:
                sites[node] = Site(GradientEdge(node, 0), note)
            found.append(sites[node])
            continue
        if "BatchNorm" in name:
            _refuse_batch_norm(node)
        passed.append(node)
        for follower, _ in node.next_functions:
            if follower is not None and follower not in seen:
                seen.add(follower)
                stack.append(follower)
    return found


def _surface(roots: Sequence[Tensor], passed: list[Node]) -> tuple | None:
    """The nodes between ``roots`` and the tops, described; None if data could change whose a row is.

    Where paths come together, a coefficient that happens to be zero may hide one of them: there must be one path only.
    """
    followers = [follower for node in passed for follower, _ in node.next_functions if follower is not None]
    followers += [root.grad_fn for root in roots]
    described = [_described(node) for node in passed]
    if None in described or len(set(followers)) < len(followers):
        return None
    return (*[root.output_nr for root in roots], *described)


def _described(node: Node) -> tuple | None:
    """What a node of the surface does to rows; None if that depends on data."""
    name = type(node).__name__
    shapes = [tuple(output.shape) for output in node._input_metadata]
    followers = [number if follower is not None else None for follower, number in node.next_functions]
    if name == "GatherBackward0":
        # Values picked by action, straight from a layer's output: columns are chosen, never rows.
        layer = node.next_functions[0][0].metadata.get(NOTE)
        plain = layer is not None and node._saved_dim == 1 and node._saved_index.ndim == 2
        return (name, *shapes, *followers) if plain else None
    attributes = STRUCTURAL.get(name)
    return None if attributes is None else (name, *shapes, *followers, *[getattr(node, a) for a in attributes])


def _refuse_batch_norm(node: Node) -> None:
    # Instance norm runs as batch norm over a batch of one, which mixes no samples.
    if getattr(node, "_saved_training", False) and node._saved_input.shape[0] > 1:
        raise RuntimeError(
            "batch normalisation in training mode mixes the samples of a batch, so per-sample gradients do not "
            "exist. Call model.eval() on those layers, or use LayerNorm or GroupNorm instead."
        )
