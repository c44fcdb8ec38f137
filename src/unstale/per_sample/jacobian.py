"""Per-sample gradients by batched vector-Jacobian products: exact for any graph, at the cost of one backward pass per
sample."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .autograd_graph import gradient_edge

# Passes are run together while their results have at most this many entries.
MAX_ENTRIES_PER_CALL = 1 << 27


def jacobian(values: Tensor, inputs: Sequence[Any]) -> list[Tensor | None]:
    """``∂ values[k] / ∂ input`` for tensors or edges of the graph: ``[m, *shape]`` each, None for an unused input."""
    identity = torch.eye(len(values), dtype=values.dtype, device=values.device)
    return vector_jacobian_products(values, inputs, identity)


def vector_jacobian_products(values: Tensor, inputs: Sequence[Any], weights: Tensor) -> list[Tensor | None]:
    """One backward pass for every row of ``weights``, batched where the graph allows it."""
    edges = [gradient_edge(x) if isinstance(x, tuple) else x for x in inputs]
    sizes = sum(x.numel() for x in inputs if isinstance(x, Tensor))
    chunks = weights.split(max(1, MAX_ENTRIES_PER_CALL // max(1, sizes)))
    parts = [_batched(values, edges, chunk) for chunk in chunks]
    return [None if found[0] is None else torch.cat(found) for found in zip(*parts, strict=True)]


def _batched(values: Tensor, inputs: Sequence[Any], weights: Tensor) -> list[Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an operation without a batching rule is slower, not wrong
            return list(
                torch.autograd.grad(
                    values, inputs, weights, retain_graph=True, allow_unused=True, is_grads_batched=True
                )
            )
    except RuntimeError:
        rows = [torch.autograd.grad(values, inputs, w, retain_graph=True, allow_unused=True) for w in weights]
        return [
            None if parts[0] is None else torch.stack([part.to_dense() if part.is_sparse else part for part in parts])
            for parts in zip(*rows, strict=True)
        ]
