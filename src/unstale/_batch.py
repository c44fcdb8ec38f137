"""Checks and evaluates the arguments of ``backward``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from . import losses
from ._warnings import user_stacklevel
from .losses import Loss

BatchFunction = Callable[[], "tuple[Tensor, Tensor | float]"]


class ConstantTargetWarning(UserWarning):
    """The target has no graph: valid (regression, a frozen network), but often an unintended ``detach()``."""


class EvaluatedBatch(NamedTuple):
    """A batch at some parameters. Slope and curvature contain the ``1/m`` of the mean and the samples' weights."""

    prediction: Tensor
    target: Tensor | None  # None if it depends on no parameter
    loss: Tensor  # the mean, detached
    check: Tensor  # finite if every loss and every weight is; their product need not be (a loss scale may overflow)
    slope: Tensor
    curvature: Tensor


class BackwardCall(NamedTuple):
    """The arguments of one call of ``backward``, from which the same batch can be evaluated again later if it came as a
    function."""

    function: BatchFunction | None
    loss: Loss | str
    weight: Tensor | float

    def evaluate_again(self) -> EvaluatedBatch:
        """The batch at the current parameters."""
        assert self.function is not None
        with torch.enable_grad():
            return self.evaluate(*self.function())

    def evaluate(self, prediction: Tensor, target: Tensor | float | None) -> EvaluatedBatch:
        """Loss, slopes and curvatures of a batch."""
        prediction, target = check_batch(prediction, target)
        value, slope, curvature = losses.evaluate(self.loss, prediction.detach() - target.detach())
        if value.dtype.itemsize < 4:
            value = value.float()  # the sum of a batch may exceed float16
        total = value.sum()
        live = target if target.requires_grad else None
        if isinstance(self.weight, Tensor):
            share = _check_weight(self.weight.detach(), prediction) / len(value)
            check = total + (share * 0).sum()
            return EvaluatedBatch(prediction, live, (value * share).sum(), check, slope * share, curvature * share)
        each = self.weight / prediction.shape[0]
        check = total if math.isfinite(each) else total * each
        return EvaluatedBatch(prediction, live, total * each, check, slope * each, curvature * each)


def read_batch(
    prediction: Tensor | BatchFunction, target: Tensor | float | None
) -> tuple[BatchFunction | None, Tensor, Tensor | float]:
    """A batch given as two tensors, or as a function that returns them."""
    if isinstance(prediction, Tensor):
        if target is None:
            raise TypeError("backward() needs a target: call backward(prediction, target).")
        return None, prediction, target
    if not callable(prediction):
        raise TypeError(f"prediction must be a tensor or a function, not {type(prediction).__name__}.")
    if target is not None:
        raise TypeError("a batch given as a function returns its own target; leave target out.")
    result = prediction()
    if not (isinstance(result, tuple) and len(result) == 2):
        raise TypeError("a batch given as a function must return the pair (prediction, target).")
    return prediction, *result


def check_batch(prediction: Tensor, target: Tensor | float | None) -> tuple[Tensor, Tensor]:
    """Prediction and target as two tensors of shape ``[m]``, or an error."""
    if not isinstance(prediction, Tensor):
        raise TypeError(f"prediction must be a tensor, not {type(prediction).__name__}.")
    if not isinstance(target, Tensor | int | float):
        raise TypeError(f"target must be a tensor or a number, not {type(target).__name__}.")
    # A target of another precision keeps it, as in prediction - target: under autocast it is often the better one.
    if not isinstance(target, Tensor) or not target.is_floating_point():
        target = torch.as_tensor(target, dtype=prediction.dtype)
    if target.device != prediction.device:
        target = target.to(prediction.device)
    if target.ndim == 0:
        target = target.expand(prediction.shape)
    for name, tensor in (("prediction", prediction), ("target", target)):
        if tensor.ndim != 1:
            raise ValueError(
                f"{name} must have shape [m], one number per sample, but has shape {list(tensor.shape)}."
                + _shape_advice(tensor)
            )
    if prediction.shape != target.shape:
        raise ValueError(f"prediction has {len(prediction)} samples but target has {len(target)}.")
    if len(prediction) == 0:
        raise ValueError("prediction is an empty batch; skip backward() and step() when there is no data.")
    if not prediction.is_floating_point():
        raise TypeError(f"prediction must be floating point, not {prediction.dtype}.")
    if not prediction.requires_grad:
        raise ValueError(
            "prediction does not depend on any parameter: it is detached, or was computed under torch.no_grad(). "
            "Pass the network's live output."
        )
    return prediction, target


def _check_weight(weight: Tensor, prediction: Tensor) -> Tensor:
    if weight.ndim and weight.shape != prediction.shape:
        raise ValueError(
            f"weight must be a number or have shape [{prediction.shape[0]}], one per sample, but has shape "
            f"{list(weight.shape)}." + (" Use .squeeze(-1)." if weight.ndim == 2 else "")
        )
    return weight


def _shape_advice(tensor: Tensor) -> str:
    if tensor.ndim == 2 and tensor.shape[1] == 1:
        return " Use .squeeze(-1)."
    if tensor.ndim == 2:
        return " Choose one value per sample, such as q.gather(1, action[:, None]).squeeze(1), or .flatten() it."
    return " Use .flatten(), or .reshape(1) for a single sample."


def warn_constant_target() -> None:
    """Warn about a target without a graph."""
    warnings.warn(
        "target does not depend on any parameter, so only the prediction's half of the staleness is corrected. For "
        "TD targets pass the bootstrap value live: no detach(), no torch.no_grad(). If it is meant to be constant "
        "(regression, a frozen target network), ignore this with warnings.simplefilter('ignore', "
        "unstale.ConstantTargetWarning).",
        ConstantTargetWarning,
        stacklevel=user_stacklevel(),
    )
