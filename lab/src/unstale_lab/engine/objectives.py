"""What a network learns: the scalar prediction per row, its loss and its error metrics.

An objective gets the outputs ``[..., outputs, rows]`` and, for every row, the index of the output that is meant (an
action or a class), ``[..., rows]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from unstale.losses import Derivatives, negative_log_likelihood, squared


class Prediction(NamedTuple):
    """One scalar per row, and its derivative with respect to the outputs."""

    values: Tensor  # [..., rows]
    derivative: Tensor | None  # [..., outputs, rows]; None if the value is the only output


Loss = Callable[[Tensor], Derivatives]  # of residuals


class Objective(NamedTuple):
    """How outputs become predictions, and how those are trained and evaluated."""

    predict: Callable[[Tensor, Tensor], Prediction]  # outputs, index
    loss: Loss
    # outputs, values, index, true values → metrics by name, each [..., rows]
    errors: Callable[[Tensor, Tensor, Tensor, Tensor], dict[str, Tensor]]


def _single_output(outputs: Tensor, index: Tensor) -> Prediction:
    return Prediction(outputs.squeeze(-2), None)


def _indexed_output(outputs: Tensor, index: Tensor) -> Prediction:
    return Prediction(_gather(outputs, index), _one_hot(outputs, index))


def _log_likelihood(outputs: Tensor, index: Tensor) -> Prediction:
    log_probs = outputs.log_softmax(-2)
    return Prediction(_gather(log_probs, index), _one_hot(outputs, index) - log_probs.exp())


def _squared_error(outputs: Tensor, values: Tensor, index: Tensor, true: Tensor) -> dict[str, Tensor]:
    return {"": (values - true).square()}


def _cross_entropy(outputs: Tensor, values: Tensor, index: Tensor, true: Tensor) -> dict[str, Tensor]:
    correct = outputs.argmax(-2) == index
    return {"": true - values, " accuracy": correct.to(outputs.dtype)}


def _gather(outputs: Tensor, index: Tensor) -> Tensor:
    return outputs.gather(-2, _expand_index(outputs, index)).squeeze(-2)


def _one_hot(outputs: Tensor, index: Tensor) -> Tensor:
    return torch.zeros_like(outputs).scatter_(-2, _expand_index(outputs, index), 1.0)


def _expand_index(outputs: Tensor, index: Tensor) -> Tensor:
    """Return ``index`` as ``[..., 1, rows]``, broadcast over runs that share their rows."""
    return index.unsqueeze(-2).expand(*outputs.shape[:-2], 1, outputs.shape[-1])


STATE_VALUE = Objective(_single_output, squared, _squared_error)
ACTION_VALUE = Objective(_indexed_output, squared, _squared_error)
CLASSIFICATION = Objective(_log_likelihood, negative_log_likelihood, _cross_entropy)
