"""Reading the autograd graph. The only module that touches torch's internals.

What a node is called, which tensors and numbers it saved and what its inputs and outputs look like is not public API.
Everything is read through the functions below; whatever this version of torch does not offer raises
:class:`Unavailable`, and the caller falls back to something that needs no internals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

Node = Any  # torch.autograd.graph.Node, whose saved values are not in its type stubs
Edge = tuple[Node, int]  # a node and the number of one of its outputs: one tensor of the forward pass


class Unavailable(Exception):
    """This version of torch does not provide the attribute."""


def root_edge(tensor: Tensor) -> Edge | None:
    """The edge that stands for ``tensor``; None for a leaf."""
    return None if tensor.grad_fn is None else (tensor.grad_fn, tensor.output_nr)


def gradient_edge(edge: Edge) -> GradientEdge:
    """An edge in the form that :func:`torch.autograd.grad` takes."""
    return GradientEdge(*edge)


def operation(node: Node) -> str:
    """The operation that made a node, such as ``"AddmmBackward0"``. Functions written in Python have names without a
    number at the end, so that none of them can pass for one of torch's own."""
    return type(node).__name__


def is_ddp_output(node: Node) -> bool:
    """Whether this is the function that ``DistributedDataParallel`` puts behind its module's outputs, an identity."""
    # With find_unused_parameters or static_graph. It is known by its class, which no function of a user can be.
    sink = getattr(torch.nn.parallel.distributed, "_DDPSink", None)
    return sink is not None and getattr(type(node), "_forward_cls", None) is sink


def inputs(node: Node) -> Sequence[Edge | tuple[None, int]]:
    """The edges of the node's inputs; ``(None, 0)`` for one that needs no gradient."""
    return node.next_functions


def leaf_variable(node: Node) -> Tensor | None:
    """The leaf tensor that a node accumulates into; None for any other node."""
    return node.variable if type(node).__name__ == "AccumulateGrad" else None


def shape(edge: Edge) -> tuple[int, ...]:
    """The shape of the tensor that an edge stands for."""
    node, number = edge
    try:
        return tuple(node._input_metadata[number].shape)
    except (AttributeError, IndexError, TypeError) as error:
        raise Unavailable(f"the shape of {operation(node)}") from error


def is_complex(edge: Edge) -> bool:
    """Whether the tensor that an edge stands for has complex entries."""
    node, number = edge
    try:
        return node._input_metadata[number].dtype.is_complex
    except (AttributeError, IndexError) as error:
        raise Unavailable(f"the dtype of {operation(node)}") from error


def output_count(node: Node) -> int:
    """How many outputs a node has."""
    try:
        return len(node._input_metadata)
    except AttributeError as error:
        raise Unavailable(f"the outputs of {operation(node)}") from error


def saved(node: Node, name: str) -> Any:
    """A value that the forward pass saved, such as ``"dim"`` or the input ``"mat1"``.

    A saved tensor that was changed in place since then raises torch's own RuntimeError, as a backward pass would.
    """
    try:
        return getattr(node, f"_saved_{name}")
    except AttributeError as error:
        raise Unavailable(f"{name} of {operation(node)}") from error


def saved_int(node: Node, name: str) -> int:
    """A saved whole number. torch shows negative ones as unsigned 64-bit numbers."""
    return _signed(saved(node, name))


def saved_dim(node: Node, ndim: int, name: str = "dim") -> int:
    """A saved dimension, counted from the front."""
    dim = saved_int(node, name)
    return dim + ndim if dim < 0 else dim


def saved_dims(node: Node, ndim: int, name: str = "dim") -> list[int]:
    """Saved dimensions, counted from the front and sorted. None or an empty list stands for all."""
    dims = saved(node, name)
    if dims is None:
        return list(range(ndim))
    signed = [_signed(dim) for dim in ([dims] if isinstance(dims, int) else dims)]
    return sorted(dim + ndim if dim < 0 else dim for dim in signed) or list(range(ndim))


def _signed(number: Any) -> int:
    if not isinstance(number, int):
        raise Unavailable(f"a whole number: {number!r}")
    return number - (1 << 64) if number >= 1 << 63 else number


class Graph(NamedTuple):
    """The graph behind a tensor."""

    order: list[Node]  # every node before its inputs; without those that accumulate into leaves
    edges: dict[Node, Sequence[Any]]  # of the inputs of each node
    leaves: dict[Node, Tensor]  # the nodes that accumulate, and into what


def read_graph(root: Edge) -> Graph:
    """The graph from ``root`` down."""
    edges: dict[Node, Sequence[Any]] = {}
    leaves: dict[Node, Tensor] = {}
    finished: list[Node] = []  # a node is finished after all its inputs
    stack = [root[0]]
    while stack:
        node = stack[-1]
        if node is None:
            stack.pop()
            finished.append(stack.pop())
        elif node in edges:
            stack.pop()
        elif type(node).__name__ == "AccumulateGrad":
            leaves[node] = node.variable
            stack.pop()
        else:
            edges[node] = following = node.next_functions
            stack.append(None)
            stack += [child for child, _ in following if child is not None and child not in edges]
    finished.reverse()
    return Graph(finished, edges, leaves)


def backward_listening(tensor: Tensor, weights: Tensor, edges: Sequence[Edge]) -> dict[Edge, Tensor]:
    """``tensor.backward(weights)``, and the gradients that passed the given edges on the way."""
    seen: dict[Edge, Tensor] = {}

    def listener(edge: Edge) -> Any:
        def listen(gradients: tuple[Tensor | None, ...]) -> None:
            gradient = gradients[edge[1]]
            if gradient is not None:
                seen[edge] = gradient

        return edge[0].register_prehook(listen)

    handles = [listener(edge) for edge in edges]
    try:
        torch.autograd.backward([tensor], [weights], retain_graph=True)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def run_backward(outputs: Sequence[Any], weights: Sequence[Tensor], edges: Sequence[Edge]) -> tuple[Tensor | None, ...]:
    """The gradients of ``Σ weights · outputs`` with respect to the tensors that ``edges`` stand for."""
    return torch.autograd.grad(
        outputs, [GradientEdge(*edge) for edge in edges], weights, retain_graph=True, allow_unused=True
    )
