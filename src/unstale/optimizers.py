"""Optimizers whose momentum is corrected for staleness: one implementation, four denominators."""

from __future__ import annotations

import math
from typing import Any, Unpack

from torch import Tensor

from ._checks import as_scalar
from ._optimizer import CorrectedOptimizer
from ._options import DOC, Options
from ._state import GroupState
from .momentum import limited, running_mean_
from .per_sample.gradients import Linearization


class CorrectedSGD(CorrectedOptimizer):
    """Momentum SGD with corrected momentum: ``θ ← θ − lr μ̂``.

    Args:
        params: a module, a list of modules and parameters, parameters, or parameter groups of these.
        lr: learning rate ``α``.
        beta: decay of the momentum, ``β``. Default: with ``"auto"``, ``"dense"`` and ``"reservoir"`` momentum averages
            over a tenth of the steps so far, at least 10 and at most 2,000 or what the slots allow; 0.9 otherwise.
            Momentum is damped, ``μ ← β μ + (1-β) g``, so the step size does not depend on ``β``;
            ``torch.optim.SGD(lr=a, momentum=β)`` is ``lr = a / (1-β)`` here.
        {options}

    >>> import torch, unstale
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = unstale.CorrectedSGD(model, lr=0.1)
    >>> state, following, reward = torch.randn(8, 2), torch.randn(8, 2), torch.randn(8)
    >>> loss = optimizer.backward(model(state).squeeze(-1), reward + 0.9 * model(following).squeeze(-1))
    >>> optimizer.step()
    >>> optimizer.zero_grad()
    """

    _has_square = False

    def __init__(self, params: Any, lr: float, beta: float | None = None, **options: Unpack[Options]) -> None:
        super().__init__(params, dict(lr=lr, beta=beta), dict(options))

    def _direction(
        self,
        state: GroupState,
        settings: dict[str, Any],
        momentum: Tensor,
        gradient: Tensor,
        batch: Linearization | None,
    ) -> Tensor:
        return momentum


class CorrectedAdam(CorrectedOptimizer):
    """Adam with corrected momentum: ``θ ← θ − lr (μ̂ / (1-β₁ᵗ)) / (√(ν / (1-β₂ᵗ)) + ε)``, ``ν`` a mean of ``g²``.

    With ``correction="none"`` it is ``torch.optim.Adam``, or ``AdamW`` with weight decay.

    Args:
        params: a module, a list of modules and parameters, parameters, or parameter groups of these.
        lr: learning rate ``α``.
        betas: decay of the running means of the gradient and of its square, ``β₁`` and ``β₂``. Default of ``β₁``
            (``None``): with ``"auto"``, ``"dense"`` and ``"reservoir"`` momentum averages over a tenth of the steps so
            far, at least 10 and at most 2,000 or what the slots allow; 0.9 otherwise.
        eps: added to the denominator, ``ε``.
        {options}
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float | None, float] = (None, 0.999),
        eps: float = 1e-8,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps), dict(options))

    def _direction(
        self,
        state: GroupState,
        settings: dict[str, Any],
        momentum: Tensor,
        gradient: Tensor,
        batch: Linearization | None,
    ) -> Tensor:
        direction = _debiased(state, settings, momentum, gradient.square())
        return limited(direction) if settings["correction"] != "none" else direction


class CorrectedTDprop(CorrectedAdam):
    """Adam with corrected momentum and TDprop's denominator: ``ν`` is a mean of ``mean_k (u_k ∘ v_k)²``, the squared
    diagonal of each sample's Taylor term (Romoff et al. 2020), which includes the bootstrap, unlike ``g²``.

    The arguments are those of :class:`CorrectedAdam`.
    """

    _needs_samples = True

    def _direction(
        self,
        state: GroupState,
        settings: dict[str, Any],
        momentum: Tensor,
        gradient: Tensor,
        batch: Linearization | None,
    ) -> Tensor:
        assert batch is not None
        return _debiased(state, settings, momentum, self._ranks.mean_(batch.squared_diagonal()))


class CorrectedRMSprop(CorrectedOptimizer):
    """RMSprop with corrected momentum: ``θ ← θ − lr μ̂ / (√ν + ε)``, ``ν`` a mean of ``g²``.

    As in Adam, the running mean of the gradient is divided by the root. With ``beta=0`` it equals
    ``torch.optim.RMSprop``.

    Args:
        params: a module, a list of modules and parameters, parameters, or parameter groups of these.
        lr: learning rate.
        beta: decay of the momentum, ``β``. Default: with ``"auto"``, ``"dense"`` and ``"reservoir"`` momentum averages
            over a tenth of the steps so far, at least 10 and at most 2,000 or what the slots allow; 0.9 otherwise.
        alpha: decay of the running mean of the squared gradient.
        eps: added to the denominator, ``ε``.
        {options}
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        beta: float | None = None,
        alpha: float = 0.99,
        eps: float = 1e-8,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, dict(lr=lr, beta=beta, alpha=alpha, eps=eps), dict(options))

    def _direction(
        self,
        state: GroupState,
        settings: dict[str, Any],
        momentum: Tensor,
        gradient: Tensor,
        batch: Linearization | None,
    ) -> Tensor:
        mean = _running(state, gradient.square(), settings["alpha"])
        direction = momentum / mean.sqrt().add_(as_scalar(settings["eps"]))
        return limited(direction) if settings["correction"] != "none" else direction


for _class in (CorrectedSGD, CorrectedAdam, CorrectedRMSprop):
    if _class.__doc__ is not None:  # python -OO strips docstrings
        _class.__doc__ = _class.__doc__.replace("{options}", DOC.strip())


def _debiased(state: GroupState, settings: dict[str, Any], momentum: Tensor, square: Tensor) -> Tensor:
    """Adam's quotient of two means that both start at zero."""
    beta2 = settings["betas"][1]
    mean = _running(state, square, beta2)
    weight = state["mean_weight"]
    scale = weight / math.sqrt(1 - beta2 ** float(state["step"]))
    return momentum / mean.sqrt().mul_(scale).add_(weight * as_scalar(settings["eps"]))


def _running(state: GroupState, square: Tensor, beta: float) -> Tensor:
    if "square" not in state:
        state["square"] = square.new_zeros(square.shape)
    return running_mean_(state["square"], square, beta)
