"""The corrected momentum itself, for one parameter vector or for many runs side by side.

μ ← β μ + (1-β) g                            momentum, damped as in the paper
μ̂ = μ − min(1, κ ‖μ‖ / ‖η‖) η                never corrected by more than κ times itself
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Corrected(NamedTuple):
    """``momentum`` is ``μ̂``; staleness is ``eta_norm / mu_norm``; ``kept`` is the share of ``η`` that was applied."""

    momentum: Tensor
    mu_norm: Tensor
    eta_norm: Tensor
    kept: Tensor | None


def correct(mu: Tensor, eta: Tensor, trust: float | Tensor | None, out: Tensor | None = None) -> Corrected:
    """Momentum less its staleness, within the trust bound (``None``: none), written to ``out`` if given."""
    mu_norm = torch.linalg.vector_norm(mu, dim=-1)
    eta_norm = torch.linalg.vector_norm(eta, dim=-1)
    if trust is None:
        return Corrected(torch.sub(mu, eta, out=out), mu_norm, eta_norm, None)
    kept = (mu_norm * trust / eta_norm).nan_to_num(1.0, 1.0).clamp(max=1.0)  # nothing to bound where η = 0
    momentum = torch.addcmul(mu, eta, kept.unsqueeze(-1), value=-1, out=out)
    return Corrected(momentum, mu_norm, eta_norm, kept)
