"""Losses, with the two derivatives that the correction needs.

An elementwise loss maps residuals ``δ``, of the shape of the prediction, to three tensors of that shape::

    value      ℓ(δ)     what is reported
    slope      ℓ'(δ)    weighs each sample in the gradient,     g = mean ℓ'(δ_k) v_k
    curvature  ℓ''(δ)   weighs each sample in the Taylor term,  Z = mean ℓ''(δ_k) u_k v_kᵀ

A :class:`RowLoss` is for predictions whose entries belong together, such as the logits or quantiles of a distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ._checks import check_floating, check_positive


class Derivatives(NamedTuple):
    """A loss and its first two derivatives, one number per sample."""

    value: Tensor
    slope: Tensor
    curvature: Tensor


def half_squared(residual: Tensor) -> Derivatives:
    """``½ δ²``, the default: its gradient is ``δ v``."""
    check_floating("residual", residual)
    return Derivatives(residual.square() / 2, residual, torch.ones_like(residual))


def squared(residual: Tensor) -> Derivatives:
    """``δ²``, as in the paper's figures and in ``torch.nn.functional.mse_loss``: twice the gradient of ``½ δ²``."""
    check_floating("residual", residual)
    return Derivatives(residual.square(), 2 * residual, torch.full_like(residual, 2.0))


mse = squared


def huber(residual: Tensor, delta: float = 1.0) -> Derivatives:
    """``½ δ²`` within ``±delta`` and linear beyond, as ``torch.nn.functional.huber_loss``.

    Where it is linear, the slope is constant and does not become stale.
    """
    check_floating("residual", residual)
    delta = check_positive("delta", delta)
    inside = residual.abs() <= delta
    value = torch.where(inside, residual.square() / 2, delta * (residual.abs() - delta / 2))
    return Derivatives(value, residual.clamp(-delta, delta), inside.to(residual.dtype))


def smooth_l1(residual: Tensor, beta: float = 1.0) -> Derivatives:
    """``½ δ² / beta`` within ``±beta`` and linear beyond, as ``torch.nn.functional.smooth_l1_loss``.

    With ``beta=1`` it is :func:`huber`; in general it is ``huber(residual, delta=beta) / beta``.
    """
    beta = check_positive("beta", beta)
    return Derivatives(*(part / beta for part in huber(residual, beta)))


@dataclass(frozen=True, eq=False)
class ClippedValue:
    """See :func:`clipped_value`. Unlike other losses it depends on the target too."""

    old_value: Tensor
    clip: float

    def __call__(self, residual: Tensor, target: Tensor) -> Derivatives:
        """The loss of ``residual = value - target`` and its derivatives by the value."""
        if self.old_value.shape != residual.shape:
            raise ValueError(
                f"old_value must have the shape of the prediction, {list(residual.shape)}, but has shape "
                f"{list(self.old_value.shape)}."
            )
        old = self.old_value.to(residual) - target
        clipped = torch.minimum(torch.maximum(residual, old - self.clip), old + self.clip)
        is_free = clipped.abs() <= residual.abs()
        value = torch.where(is_free, residual, clipped).square() / 2
        return Derivatives(value, torch.where(is_free, residual, 0.0), is_free.to(residual.dtype))


def clipped_value(old_value: Tensor, clip: float) -> ClippedValue:
    """The clipped value loss of PPO, ``½ max((v - y)², (clip(v, old - ε, old + ε) - y)²)``.

    Its gradient is that of ``½ (v - y)²``, or zero for a sample whose clipped error is the larger one: its value has
    left ``old ± ε`` towards the target.

    The correction is exact between the kinks: a sample contributes as in :func:`half_squared`, or not at all. Constant
    are ``old_value`` and, while the parameters move, which samples contribute. The target may move: it is read anew
    whenever the batch is evaluated (``correction="oracle"``, ``refresh``), and the clipped range does not move with it.

    Args:
        old_value: ``old``, the values at the time of the rollout, of the prediction's shape; no gradient flows to it.
        clip: ``ε``, how far a value may move before clipping, above 0.

    >>> value, old_value, target = torch.tensor([0.1, 0.5]), torch.zeros(2), torch.ones(2)
    >>> clipped_value(old_value, 0.2)(value - target, target).slope  # 0.5 is more than 0.2 closer to the target
    tensor([-0.9000,  0.0000])
    """
    check_floating("old_value", old_value)
    return ClippedValue(old_value.detach(), check_positive("clip", clip))


def negative_log_likelihood(log_prob: Tensor) -> Derivatives:
    """``-log p`` of the right class, with the paper's ``Z = mean ∇f ∇fᵀ`` for cross-entropy."""
    check_floating("log_prob", log_prob)
    one = torch.ones_like(log_prob)
    return Derivatives(-log_prob, -one, one)


@dataclass(frozen=True, eq=False)
class RowLoss:
    """A loss ``L(f, y)`` of rows: predictions ``f [..., k]`` against targets ``y [..., k']``, one number per row.

    The gradient of a row is ``Σ_a s_a ∇f_a`` with the slopes ``s = ∂L/∂f``. When the parameters move, so do the slopes,
    with the whole row of predictions and targets: ``u_a = ∇s_a = Σ_b ∂²L/∂f_a∂f_b ∇f_b + Σ_c ∂²L/∂f_a∂y_c ∇y_c``.

    Attributes:
        value: ``L``, of shape ``[...]``.
        slope: ``s``, of shape ``[..., k]``, as a differentiable function of ``f`` and ``y``.
        same_length: whether ``k' = k``.
        seed: of the entries that :meth:`sampled` chooses; None if the correction takes all.
    """

    value: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    same_length: bool = False
    seed: int | None = None

    def sampled(self, seed: int = 0) -> RowLoss:
        """The same loss, of which the correction sees one random entry per row, with ``k`` times its weight.

        The Taylor term of a row, ``Σ_a u_a v_aᵀ``, is then estimated without bias by ``k u_a v_aᵀ`` of the entry ``a``,
        so that a row is one sample instead of ``k``: per-sample gradients take one pass instead of ``k``, and a slot
        holds a row. The loss and ``.grad`` are those of all entries. Entries depend on the seed and the number of steps
        only, so that a run can be repeated.
        """
        return replace(self, seed=seed)

    def exact(self) -> RowLoss:
        """The same loss, of which the correction sees all entries."""
        return replace(self, seed=None)


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return -(target * logits.log_softmax(-1)).sum(-1)


def _cross_entropy_slope(logits: Tensor, target: Tensor) -> Tensor:
    return logits.softmax(-1) * target.sum(-1, keepdim=True) - target


#: ``-Σ_a y_a log softmax(f)_a`` of logits ``f [m, k]`` against probabilities ``y [m, k]``, as torch's
#: ``cross_entropy``.
cross_entropy = RowLoss(_cross_entropy, _cross_entropy_slope, same_length=True)


def quantile_huber(levels: Tensor | None = None, kappa: float = 1.0) -> RowLoss:
    """The loss of QR-DQN, ``Σ_a mean_c |τ_a - 1{y_c < f_a}| huber_κ(y_c - f_a) / κ``, of quantiles ``f [m, k]`` against
    samples or quantiles ``y [m, k']``.

    Args:
        levels: ``τ``, of shape ``[k]``, or that of the prediction (IQN); ``(a + ½) / k`` by default.
        kappa: ``κ``, above 0.
    """
    kappa = check_positive("kappa", kappa)
    if levels is not None:
        check_floating("levels", levels)
        if not bool(((levels >= 0) & (levels <= 1)).all()):
            raise ValueError(
                f"levels must be in [0, 1], got levels from {float(levels.min()):g} to {float(levels.max()):g}."
            )

    def weights_and_errors(quantiles: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """``|τ_a - 1{y_c < f_a}|`` and ``y_c - f_a``, ``[..., k, k']`` each."""
        count = quantiles.shape[-1]
        at = (torch.arange(count) + 0.5) / count if levels is None else levels.detach()
        if at.shape != quantiles.shape and at.shape != quantiles.shape[-1:]:
            raise ValueError(
                f"levels must have shape {[count]} or {list(quantiles.shape)}, but have shape {list(at.shape)}."
            )
        errors = target.unsqueeze(-2) - quantiles.unsqueeze(-1)
        return (at.to(quantiles).unsqueeze(-1) - (errors.detach() < 0).to(quantiles)).abs(), errors

    def value(quantiles: Tensor, target: Tensor) -> Tensor:
        weights, errors = weights_and_errors(quantiles, target)
        return (weights * huber(errors, kappa).value).mean(-1).sum(-1) / kappa

    def slope(quantiles: Tensor, target: Tensor) -> Tensor:
        weights, errors = weights_and_errors(quantiles, target)
        return -(weights * errors.clamp(-kappa, kappa)).mean(-1) / kappa

    return RowLoss(value, slope)


Loss = Callable[[Tensor], "Derivatives | Tensor"] | ClippedValue | RowLoss

# Names of functions here, and those of torch.
NAMED: dict[str, Callable[[Tensor], Derivatives]] = {
    "half_squared": half_squared,
    "squared": squared,
    "mse": mse,
    "huber": huber,
    "smooth_l1": smooth_l1,
}


CLOSED_FORMS = frozenset([*NAMED.values(), negative_log_likelihood])


def evaluate(loss: Loss | str, residual: Tensor, target: Tensor | None = None) -> Derivatives:
    """``loss`` at ``residual``: a name, a function of this module, or any function ``δ → ℓ(δ)``.

    Args:
        loss: the loss.
        residual: ``δ``, of any shape.
        target: ``y``, of the same shape, for :func:`clipped_value`.
    """
    check_floating("residual", residual)
    if isinstance(loss, str):
        if loss not in NAMED:
            raise ValueError(f"loss={loss!r} is not known; use one of {sorted(NAMED)} or a function of the residual.")
        loss = NAMED[loss]
    if isinstance(loss, RowLoss):
        raise TypeError("a loss of whole rows has no residuals.")
    if isinstance(loss, ClippedValue):
        if target is None:
            raise TypeError("clipped_value() needs the target beside the residual.")
        return loss(residual.detach(), target.detach())
    if not callable(loss):
        raise TypeError(f"loss must be a name or a function of the residuals, not {type(loss).__name__}.")
    if isinstance(loss, Hashable) and loss in CLOSED_FORMS:
        return loss(residual.detach())  # type: ignore[return-value]
    with torch.enable_grad():
        point = residual.detach().requires_grad_()
        try:
            result = loss(point)
        except TypeError as error:
            raise TypeError(
                "loss must be a function of the residuals alone, such as lambda residual: residual.abs() ** 1.5, or "
                "one of unstale.losses; losses of two arguments do not fit. For nn.MSELoss, nn.HuberLoss and "
                "nn.SmoothL1Loss use loss='mse', 'huber' and 'smooth_l1'."
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
