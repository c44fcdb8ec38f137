"""Momentum and its correction, for one parameter vector or batched over runs.

μ ← β μ + (1-β) g                            momentum, a damped running mean
μ̂ = μ − min(1, κ ‖μ‖ / ‖η‖) η                the correction η, bounded by κ times the momentum
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


def decay_(x: Tensor, factor: float | Tensor) -> Tensor:
    """``x ← factor · x``, in place. A factor of shape ``[...]`` has one number per run of ``x [..., n]``."""
    return x.mul_(per_run(factor, x))


def running_mean_(running: Tensor, new: Tensor, beta: float | Tensor) -> Tensor:
    """``running ← β running + (1-β) new``, in place."""
    if isinstance(beta, Tensor):
        return running.lerp_(new, (1 - per_run(beta, running)).expand_as(running))
    return running.lerp_(new, 1 - beta)


def per_run(factor: float | Tensor, x: Tensor) -> Any:
    """A factor of shape ``[...]``, one number per run, reshaped to broadcast with ``x [..., n]``."""
    if isinstance(factor, Tensor):
        return factor.reshape(factor.shape + (1,) * (x.ndim - factor.ndim))
    return factor


# A momentum without a given β averages over this share of the steps so far, but over at least so many.
MEMORY_SHARE, MIN_MEMORY = 0.1, 10.0


def growing_beta(step: Any, max_memory: float) -> Any:
    """``β`` of a memory ``1 / (1-β)`` that grows with training: a tenth of the steps so far.

    A long memory from the beginning would average over gradients from before anything was learned, for which a Taylor
    expansion is poor.

    Args:
        step: number of the step, from 1; a number or a tensor.
        max_memory: the longest memory, in steps.

    >>> [round(growing_beta(step, 1000), 4) for step in (1, 100, 1000, 10**6)]
    [0.9, 0.9, 0.99, 0.999]
    """
    longest = max(MIN_MEMORY, max_memory)
    memory = step * MEMORY_SHARE
    memory = memory.clamp(MIN_MEMORY, longest) if isinstance(memory, Tensor) else min(max(memory, MIN_MEMORY), longest)
    return 1 - 1 / memory


# The most that a corrected momentum may be of the root mean square of gradients, entry by entry. A parameter whose
# gradients were all zero has no scale: its correction would be divided by next to nothing.
MAX_ENTRY = 10.0


def limited(direction: Tensor) -> Tensor:
    """A corrected momentum, divided by the root mean square of gradients: its entries are limited, in place."""
    return direction.clamp_(-MAX_ENTRY, MAX_ENTRY)


class Corrected(NamedTuple):
    """The corrected momentum ``μ̂``. Staleness is ``eta_norm / mu_norm``; ``kept`` is the share of ``η`` that was
    applied (None: no bound)."""

    momentum: Tensor
    mu_norm: Tensor
    eta_norm: Tensor
    kept: Tensor | None


def correct(mu: Tensor, eta: Tensor, trust: float | Tensor | None, out: Tensor | None = None) -> Corrected:
    """Subtract the correction from the momentum, within the trust bound.

    Args:
        mu: momentum ``μ [..., n]``.
        eta: correction ``η [..., n]``.
        trust: the bound ``κ`` on ``‖η‖ / ‖μ‖``; None for no bound.
        out: where ``μ̂`` is written.
    """
    mu_norm = torch.linalg.vector_norm(mu, dim=-1)
    eta_norm = torch.linalg.vector_norm(eta, dim=-1)
    if trust is None:
        return Corrected(torch.sub(mu, eta, out=out), mu_norm, eta_norm, None)
    kept = (mu_norm * trust / eta_norm).nan_to_num(1.0, 1.0).clamp(max=1.0)  # η = 0 needs no bound
    momentum = torch.addcmul(mu, eta, kept.unsqueeze(-1), value=-1, out=out)
    return Corrected(momentum, mu_norm, eta_norm, kept)
