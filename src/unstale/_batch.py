"""Checks and evaluates the arguments of ``backward``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from . import losses
from ._checks import check_floating, check_tensor, is_finite, is_number
from ._late_binding import bound
from ._random import uniform
from ._warnings import user_stacklevel
from .losses import Loss

# Of random numbers; a reservoir uses -1, 0 and as many as there are batches in a step.
ENTRY_STREAM = -2

BatchFunction = Callable[[], "tuple[Tensor, Tensor | float]"]


class ConstantTargetWarning(UserWarning):
    """The target has no graph: valid (regression, a frozen network), but often an unintended ``detach()``."""


class UnfollowedTargetWarning(ConstantTargetWarning):
    """The target depends on no parameter of the optimizer: it comes from another network, which is not followed."""


class EvaluatedBatch(NamedTuple):
    """A batch at some parameters, flattened: every entry of the prediction is a sample. Slope and curvature contain the
    ``1/m`` of the mean and the samples' weights."""

    prediction: Tensor
    target: Tensor | None  # prediction minus target is linearized; None if the target depends on no parameter
    given_target: Tensor | None  # as it was given, flattened; it differs from target for a loss of whole rows
    target_value: Tensor  # the given target, detached
    columns: int  # the size of the last axis before flattening; 1 for a prediction of shape [m]
    loss: Tensor  # the mean, detached; with weights only where they are asked for
    check: Tensor  # finite if every loss and every weight is; their product need not be (a loss scale may overflow)
    slope: Tensor
    curvature: Tensor
    all_entries: tuple[Tensor, Tensor] | None = None  # prediction and slope, if the others have one entry of each row

    @property
    def is_row_loss(self) -> bool:
        """Whether the loss is one of whole rows, so that what is linearized is not the target as it was given."""
        return self.given_target is not self.target

    @property
    def for_grad(self) -> tuple[Tensor, Tensor]:
        """Prediction and slope of which ``.grad`` is made."""
        return (self.prediction, self.slope) if self.all_entries is None else self.all_entries


class BackwardCall(NamedTuple):
    """The arguments of one call of ``backward``, from which the same batch can be evaluated again later if it came as a
    function."""

    function: BatchFunction | None
    loss: Loss | str
    weight: Tensor | float
    number: int = 0  # of the step, on which the entries of a sampled loss depend
    rank: int = 0  # which draws its own entries
    reports_weights: bool = False  # whether the loss that is returned has the weights

    def exact(self) -> BackwardCall:
        """The same with all entries of a sampled loss."""
        return self._replace(loss=self.loss.exact()) if isinstance(self.loss, losses.RowLoss) else self

    def evaluate_again(self) -> EvaluatedBatch:
        """The batch at the current parameters."""
        assert self.function is not None
        with torch.enable_grad():
            return self.evaluate(*self.function())

    def evaluate(self, prediction: Tensor, target: Tensor | float | None) -> EvaluatedBatch:
        """Loss, slopes and curvatures of a batch."""
        is_complex = isinstance(self.weight, Tensor) and self.weight.is_complex()
        if is_complex or not (isinstance(self.weight, Tensor | bool) or is_number(self.weight)):
            raise TypeError(f"weight must be a number or a tensor of real numbers, not {_type_of(self.weight)}.")
        if isinstance(self.weight, Tensor):
            check_tensor("weight", self.weight)
        if isinstance(self.weight, int) and not is_finite(int(self.weight)):
            raise ValueError("weight is a number that is too large for floating point.")
        if not isinstance(self.weight, Tensor):
            self = self._replace(weight=float(self.weight))
        if isinstance(self.loss, losses.RowLoss):
            return self._evaluate_rows(self.loss, *check_rows(prediction, target, self.loss.same_length))
        prediction, target = check_batch(prediction, target)
        constant = target.detach()
        value, slope, curvature = losses.evaluate(self.loss, prediction.detach() - constant, constant)
        if value.dtype.itemsize < 4:
            value = value.float()  # the sum of a batch may exceed float16
        total, count = value.sum(), prediction.numel()
        share: Tensor | float
        if isinstance(self.weight, Tensor):
            # The share of a half-precision weight would be rounded to half precision.
            dtype = torch.promote_types(self.weight.dtype, value.dtype)
            share = _expanded_weight(self.weight.detach().to(dtype), prediction) / count
            check = total + (share * 0).sum()
        else:
            share = self.weight / count
            check = total if math.isfinite(share) else total * share
        live = _flat(target) if target.requires_grad else None
        return EvaluatedBatch(
            prediction=_flat(prediction),
            target=live,
            given_target=live,
            target_value=_flat(constant),
            columns=prediction.shape[-1] if prediction.ndim > 1 else 1,
            loss=(value * share).sum() if self.reports_weights else total / count,
            check=check,
            slope=_flat(slope * share),
            curvature=_flat(curvature * share),
        )

    def _evaluate_rows(self, loss: losses.RowLoss, prediction: Tensor, target: Tensor) -> EvaluatedBatch:
        """A batch whose slopes depend on whole rows.

        It is that of the loss ``½ (f_a - y_a)²`` with ``y_a = f_a - s_a``: slopes are ``s_a``, curvatures 1, and the
        gradient of a residual is that of its slope.
        """
        with torch.enable_grad():
            slope = loss.slope(prediction, target)
            level = prediction - slope
        value = loss.value(prediction.detach(), target.detach())
        if value.dtype.itemsize < 4:
            value = value.float()
        total, count = value.sum(), value.numel()
        weight = torch.as_tensor(self.weight, dtype=value.dtype, device=value.device).detach()
        if weight.ndim and weight.shape != value.shape:
            raise ValueError(
                f"weight must be a number or have shape {list(value.shape)}, one per row, but has shape "
                f"{list(weight.shape)}."
            )
        share = (weight / count).expand(value.shape).unsqueeze(-1).expand(prediction.shape)
        found = EvaluatedBatch(
            prediction=_flat(prediction),
            target=_flat(level),
            given_target=_flat(target) if target.requires_grad else None,
            target_value=_flat(target.detach()),
            columns=prediction.shape[-1],
            loss=(value * weight).sum() / count if self.reports_weights else total / count,
            check=total + (weight * 0).sum(),
            slope=_flat(slope.detach() * share),
            curvature=_flat(share),
        )
        return found if loss.seed is None else _one_entry_per_row(found, loss.seed + self.rank, self.number)


def _one_entry_per_row(batch: EvaluatedBatch, seed: int, number: int) -> EvaluatedBatch:
    """The batch with one random entry of every row, which stands for all of them."""
    device, columns = batch.slope.device, batch.columns
    start = torch.arange(0, len(batch.slope), columns, device=device)
    drawn = uniform(seed, torch.tensor(number, device=device), len(start), stream=ENTRY_STREAM)
    entries = start + (drawn * columns).long()
    assert batch.target is not None
    with torch.enable_grad():
        prediction, target = batch.prediction[entries], batch.target[entries]
    return batch._replace(
        prediction=prediction,
        target=target,
        columns=1,
        slope=batch.slope[entries] * columns,
        curvature=batch.curvature[entries] * columns,
        all_entries=(batch.prediction, batch.slope),
    )


@contextmanager
def explained_freed_graph(method: str) -> Iterator[None]:
    """Replace torch's error about a graph that was freed by one that says which calls to swap."""
    try:
        yield
    except RuntimeError as error:
        if "through the graph a second time" not in str(error):
            raise
        raise RuntimeError(
            f"another backward() has freed the graph of this prediction or target. Call {method} first, which keeps "
            "the graph, and the other loss's backward() after it; or call that with retain_graph=True."
        ) from error


def _flat(x: Tensor) -> Tensor:
    return x if x.ndim == 1 else x.reshape(-1)


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
        raise TypeError(
            "a batch given as a function returns its own target; leave target out (a loss is given as loss=)."
        )
    result = prediction()
    if not (isinstance(result, tuple) and len(result) == 2):
        raise TypeError("a batch given as a function must return the pair (prediction, target).")
    return bound(prediction), *result


def evaluate_log_likelihood(
    log_prob: Tensor | Callable[[], Tensor], weight: Tensor | float
) -> tuple[BackwardCall, EvaluatedBatch]:
    """A batch of ``backward_log_likelihood``, given as a tensor or as a function that returns one."""
    if not isinstance(log_prob, Tensor) and not callable(log_prob):
        raise TypeError(f"log_prob must be a tensor or a function, not {type(log_prob).__name__}.")
    if isinstance(log_prob, Tensor):
        call = BackwardCall(None, losses.negative_log_likelihood, weight)
        return call, call.evaluate(log_prob, 0.0)
    again = bound(log_prob)
    call = BackwardCall(lambda: (again(), 0.0), losses.negative_log_likelihood, weight)
    return call, call.evaluate(log_prob(), 0.0)


def check_batch(prediction: Tensor, target: Tensor | float | None) -> tuple[Tensor, Tensor]:
    """Prediction and target as two tensors of the same shape, with one axis or more; or an error."""
    check_floating("prediction", prediction)
    if isinstance(target, Tensor):
        check_tensor("target", target)
    if not isinstance(target, Tensor | int | float) or (isinstance(target, Tensor) and target.is_complex()):
        raise TypeError(f"target must be a tensor or a number, and real, not {_type_of(target)}.")
    if isinstance(target, int) and not is_finite(int(target)):
        raise ValueError("target is a number that is too large for floating point.")
    # A target of another precision keeps it, as in prediction - target: under autocast it is often the better one.
    if not isinstance(target, Tensor) or not target.is_floating_point():
        target = torch.as_tensor(target, dtype=prediction.dtype)
    if target.device != prediction.device:
        target = target.to(prediction.device)
    if prediction.ndim == 0:
        raise ValueError("prediction must have one entry per sample, but has shape []. Use .reshape(1).")
    if target.ndim == 0:
        target = target.expand(prediction.shape)
    if prediction.shape != target.shape:
        raise ValueError(
            f"prediction and target must have the same shape, but have shapes {list(prediction.shape)} and "
            f"{list(target.shape)}; they are not broadcast." + _shape_advice(prediction.shape, target.shape)
        )
    if prediction.numel() == 0:
        raise ValueError("prediction is an empty batch; skip backward() and step() when there is no data.")
    if not prediction.requires_grad:
        swapped = "" if not target.requires_grad else " But target does: the arguments look swapped."
        raise ValueError(
            f"prediction does not depend on any parameter.{swapped} The order is (prediction, target), with the "
            "network's live output as the prediction: not detached, and not computed under torch.no_grad()."
        )
    return prediction, target


def _type_of(value: object) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def check_rows(prediction: Tensor, target: Tensor | float | None, same_length: bool) -> tuple[Tensor, Tensor]:
    """Prediction ``[..., k]`` and target ``[..., k']`` of a loss of whole rows; or an error."""
    if not isinstance(prediction, Tensor) or not isinstance(target, Tensor):
        raise TypeError("a loss of whole rows takes a prediction and a target that are tensors.")
    if prediction.ndim < 2 or prediction.shape[:-1] != target.shape[:-1] or prediction.ndim != target.ndim:
        raise ValueError(
            f"this loss takes a prediction [m, k] and a target with as many rows, but they have shapes "
            f"{list(prediction.shape)} and {list(target.shape)}."
        )
    if same_length and prediction.shape != target.shape:
        raise ValueError(
            f"cross_entropy takes logits and probabilities of the same shape, but they have shapes "
            f"{list(prediction.shape)} and {list(target.shape)}."
        )
    if target.numel() == 0:
        raise ValueError("target is empty; skip backward() and step() when there is no data.")
    if not target.is_floating_point():
        raise TypeError(f"target must be floating point, not {target.dtype}.")
    check_batch(prediction, prediction)
    return prediction, target.to(prediction.device)


def _expanded_weight(weight: Tensor, prediction: Tensor) -> Tensor:
    """A weight that multiplies losses of the prediction's shape: of that shape, without its last axis, or a number."""
    if weight.ndim == 0 or weight.shape == prediction.shape:
        return weight
    if prediction.ndim > 1 and weight.shape == prediction.shape[:-1]:
        if weight.shape == prediction.shape[1:] and weight.numel() > 1:
            raise ValueError(
                f"weight of shape {list(weight.shape)} is ambiguous for a prediction of shape "
                f"{list(prediction.shape)}. Use weight.unsqueeze(-1).expand(shape) for one weight per row, or "
                "weight.expand(shape) for one per column."
            )
        return weight.unsqueeze(-1).expand(prediction.shape)
    shapes = f"{list(prediction.shape)}" + (f" or {list(prediction.shape[:-1])}" if prediction.ndim > 1 else "")
    raise ValueError(
        f"weight must be a number or have shape {shapes}, but has shape {list(weight.shape)}."
        + (" Use .squeeze(-1)." if weight.ndim > 1 and weight.shape[-1] == 1 else "")
    )


def _shape_advice(prediction: torch.Size, target: torch.Size) -> str:
    for name, this, other in (("prediction", prediction, target), ("target", target, prediction)):
        if this == (*other, 1):
            return f" Use {name}.squeeze(-1)."
    if len(target) == 2 and target[0] == target[1] and prediction in ((target[0],), (target[0], 1)):
        return " A target [m, m] is the sum of [m] and [m, 1]: use .squeeze(-1) on the values before adding rewards."
    if prediction[:-1] == target:
        return (
            " If these are action values, choose one per sample, such as q.gather(1, action[:, None]).squeeze(1). If "
            "all columns have the same target, use target.unsqueeze(-1).expand_as(prediction)."
        )
    if target[:-1] == prediction:
        return " Choose one target per sample, such as r + gamma * next_q.max(-1).values."
    return ""


# What an optimizer and a monitor do about staleness.
VERBS = {"optimizer": "corrected", "monitor": "predicted"}


def warn_constant_target(owner: str = "optimizer") -> None:
    """Warn about a target without a graph that was given to an ``owner``, ``"optimizer"`` or ``"monitor"``."""
    warnings.warn(
        f"target does not depend on any parameter, so only the prediction's half of the staleness is {VERBS[owner]}. "
        "For TD targets pass the bootstrap value live: no detach(), no torch.no_grad(). For a target network call "
        f"{owner}.follow(target_network) as well. If the target is meant to be constant (regression), ignore this "
        "with warnings.simplefilter('ignore', unstale.ConstantTargetWarning).",
        ConstantTargetWarning,
        stacklevel=user_stacklevel(),
    )


def warn_unfollowed_target(owner: str = "optimizer") -> None:
    """Warn about a target of another network."""
    warnings.warn(
        f"target depends on parameters, but on none whose changes this {owner} sees: it comes from another network, "
        f"which is not followed, so only the prediction's half of the staleness is {VERBS[owner]}. For a target "
        f"network call {owner}.follow(target_network). If the network never changes, ignore this with "
        "warnings.simplefilter('ignore', unstale.UnfollowedTargetWarning).",
        UnfollowedTargetWarning,
        stacklevel=user_stacklevel(),
    )


def warn_replaced_target(owner: str = "optimizer") -> None:
    """Warn about a target of a network that has taken the place of a followed one."""
    warnings.warn(
        f"target depends on parameters that are neither this {owner}'s nor followed, and on none that are followed: it "
        "looks as if the followed network was replaced, such as by target_network = copy.deepcopy(network). "
        f"Changes of the new network are not {VERBS[owner]}. Keep the followed network and load the values into it, "
        "target_network.load_state_dict(network.state_dict()); or call "
        f"{owner}.follow(target_network) again after every replacement.",
        UnfollowedTargetWarning,
        stacklevel=user_stacklevel(),
    )
