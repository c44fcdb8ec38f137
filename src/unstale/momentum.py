"""The corrected momentum itself, for one parameter vector or for many runs side by side.

    μ ← β μ + (1-β) g                            momentum, damped as in the paper
    μ̂ = μ − min(1, κ ‖μ‖ / ‖η‖) η                never corrected by more than κ times itself
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Corrected(NamedTuple):
    """``momentum`` is ``μ̂``; ``staleness`` is ``‖η‖ / ‖μ‖``; ``kept`` the share of ``η`` that was applied."""

    momentum: Tensor
    staleness: Tensor
    kept: Tensor


def correct(mu: Tensor, eta: Tensor, trust: float | None) -> Corrected:
    """Momentum less its staleness, within the trust bound (``None``: none)."""
    mu_norm = torch.linalg.vector_norm(mu, dim=-1, keepdim=True)
    eta_norm = torch.linalg.vector_norm(eta, dim=-1, keepdim=True)
    staleness = eta_norm / mu_norm.clamp_min(torch.finfo(mu.dtype).tiny)
    if trust is None:
        return Corrected(mu - eta, staleness.squeeze(-1), torch.ones_like(staleness).squeeze(-1))
    kept = (trust / staleness).clamp(max=1.0)
    return Corrected(torch.addcmul(mu, eta, kept, value=-1), staleness.squeeze(-1), kept.squeeze(-1))
