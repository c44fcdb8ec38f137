"""Elementwise losses of the residual, with the two derivatives that the correction needs.

A loss maps residuals ``δ`` of shape ``[m]`` to three tensors of that shape::

    value      ℓ(δ)     what is reported
    slope      ℓ'(δ)    weighs each sample in the gradient,     g = mean ℓ'(δ_k) v_k
    curvature  ℓ''(δ)   weighs each sample in the Taylor term,  Z = mean ℓ''(δ_k) u_k v_kᵀ
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Derivatives(NamedTuple):
    """A loss and its first two derivatives, one number per sample."""

    value: Tensor
    slope: Tensor
    curvature: Tensor


def half_squared(residual: Tensor) -> Derivatives:
    """``½ δ²``, the default: its gradient is ``δ v``."""
    return Derivatives(residual.square() / 2, residual, torch.ones_like(residual))


def squared(residual: Tensor) -> Derivatives:
    """``δ²``, as in the paper's figures: twice the gradient and twice the Taylor term."""
    return Derivatives(residual.square(), 2 * residual, torch.full_like(residual, 2.0))


def huber(residual: Tensor, delta: float = 1.0) -> Derivatives:
    """Quadratic within ``±delta`` and linear beyond, where the slope is constant and does not become stale."""
    inside = residual.abs() <= delta
    value = torch.where(inside, residual.square() / 2, delta * (residual.abs() - delta / 2))
    return Derivatives(value, residual.clamp(-delta, delta), inside.to(residual.dtype))


def negative_log_likelihood(log_prob: Tensor) -> Derivatives:
    """``-log p`` of the right class, with the paper's ``Z = mean ∇f ∇fᵀ`` for cross-entropy."""
    one = torch.ones_like(log_prob)
    return Derivatives(-log_prob, -one, one)


Loss = Callable[[Tensor], "Derivatives | Tensor"]

NAMED: dict[str, Loss] = {
    "half_squared": half_squared,
    "squared": squared,
    "huber": huber,
}


CLOSED_FORMS = frozenset([*NAMED.values(), negative_log_likelihood])


def evaluate(loss: Loss | str, residual: Tensor) -> Derivatives:
    """``loss`` at ``residual``: a name, a function of this module, or any function ``δ → ℓ(δ)``."""
    if isinstance(loss, str):
        if loss not in NAMED:
            raise ValueError(f"loss={loss!r} is not known; use one of {sorted(NAMED)} or a function of the residual.")
        loss = NAMED[loss]
    if loss in CLOSED_FORMS:
        return loss(residual.detach())  # type: ignore[return-value]
    with torch.enable_grad():
        point = residual.detach().requires_grad_()
        try:
            result = loss(point)
        except TypeError as error:
            raise TypeError(
                "loss must be a function of the residuals alone, such as lambda residual: residual.abs() ** 1.5, or "
                "one of unstale.losses; losses of two arguments (nn.MSELoss and the like) do not fit."
            ) from error
    if isinstance(result, Derivatives):
        return Derivatives(*(part.detach() for part in result))
    return _differentiate(point, result)


def _differentiate(residual: Tensor, value: Tensor) -> Derivatives:
    """The derivatives of a user's own loss, by autograd on the residuals alone (never on the network)."""
    if not isinstance(value, Tensor):
        raise ValueError(f"loss must return a tensor, one number per residual, but returned {type(value).__name__}.")
    if value.shape != residual.shape:
        raise ValueError(
            f"loss must be elementwise: it maps residuals of shape {tuple(residual.shape)} to "
            f"{tuple(value.shape)}. Leave out its reduction; the mean over the batch is taken for you."
        )
    if not value.requires_grad:
        raise ValueError("loss must be differentiable in the residual: something in it is detached.")
    (slope,) = torch.autograd.grad(value.sum(), residual, create_graph=True)
    curvature = None
    if slope.requires_grad:
        (curvature,) = torch.autograd.grad(slope.sum(), residual, allow_unused=True)
    if curvature is None:  # a loss that is linear in the residual
        curvature = torch.zeros_like(slope)
    return Derivatives(value.detach(), slope.detach(), curvature.detach())
