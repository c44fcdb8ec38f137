"""Where the authors' public code differs from the paper's text: the two values of ``Run.convention``.

- Squared loss. ``"text"``: gradient and Taylor term are those of ``δ²``. ``"code"``: the gradient is that of ``δ²``,
  the Taylor term that of ``½ δ²``.
- Weights of an oracle that looks back on ``h`` batches. ``"text"``: scaled to ``1 - β^t``, the sum of momentum's
  weights. ``"code"``: cut off, with a sum of ``1 - β^h``.
- Taylor term of a batch. ``"text"``: the mean of the samples' outer products. ``"code"``: the same in classic control,
  but the outer product of mean gradients in supervised learning and on Atari.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unstale.losses import Derivatives, squared

from ..errors import UserError, unknown
from ..experiment import Run
from ..methods import METHODS
from ..problems.problem import ImageProblem, Problem
from .objectives import Loss, Objective

CONVENTIONS = ("text", "code")
CODE_CORRECTIONS = ("none", "oracle", "full", "diagonal", "layers")  # of methods that ``"code"`` is defined for


def check_convention(run: Run) -> None:
    """Check the run's convention.

    Raises:
        UserError: if there is none of that name, or the authors' code has nothing like the run's method.
    """
    if run.convention not in CONVENTIONS:
        raise unknown("convention", run.convention, CONVENTIONS)
    method = METHODS[run.method]
    if run.convention == "code" and (method.correction not in CODE_CORRECTIONS or method.second_order):
        raise UserError(
            f"convention 'code' cannot be combined with the method {run.method}: the authors' code has only full and "
            "diagonal corrections without second derivatives. Use convention 'text'."
        )


def squared_half_strength(residual: Tensor) -> Derivatives:
    """``δ²`` with the curvature of ``½ δ²``: the correction has half its strength."""
    value, slope, _ = squared(residual)
    return Derivatives(value, slope, torch.ones_like(residual))


def loss_function(run: Run, objective: Objective) -> Loss:
    """Return the objective's loss, as the run's convention differentiates it."""
    return squared_half_strength if run.convention == "code" and objective.loss is squared else objective.loss


def uses_mean_gradients(run: Run, problem: Problem) -> bool:
    """Return whether the Taylor term of a batch is the outer product of its mean gradients."""
    return run.convention == "code" and (not problem.bootstraps or isinstance(problem, ImageProblem))


def oracle_weight_scale(beta: Tensor, step: Tensor, horizon: int) -> Tensor:
    """Return the factor that gives the oracle's weights of ``horizon`` batches the sum ``1 - β^t`` of momentum's.

    Args:
        beta: ``[runs]``.
        step: number of steps made before the current one, so that ``t = step + 1``.
        horizon: number of batches that the oracle evaluates.

    >>> oracle_weight_scale(torch.tensor([0.5, 0.9]), torch.tensor(1), 2).tolist()
    [1.0, 1.0]
    >>> oracle_weight_scale(torch.tensor([0.5]), torch.tensor(3), 2).tolist()  # (1 - 1/16) / (1 - 1/4)
    [1.25]
    """
    batches = step + 1
    momentum, oracle = (1 - beta.double() ** count for count in (batches, batches.clamp(max=horizon)))
    return (momentum / oracle).to(beta.dtype)
