"""From the outputs of a network to the one number of a row that is learned, and the loss that it is learned by.

A head is given the outputs ``[..., outputs, rows]`` and which of them is meant in every row, ``[..., rows]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from unstale.losses import Derivatives, negative_log_likelihood, squared


class Answer(NamedTuple):
    """The values ``[..., rows]``, and their derivatives by the outputs, ``[..., outputs, rows]``; ``None`` stands for a
    value that is the only output."""

    values: Tensor
    derivative: Tensor | None


class Head(NamedTuple):
    answer: Callable[[Tensor, Tensor], Answer]
    loss: Callable[[Tensor], Derivatives]
    # outputs, values, which outputs are meant, true values → errors by name, one a row
    errors: Callable[[Tensor, Tensor, Tensor, Tensor], dict[str, Tensor]]


def _only(outputs: Tensor, meant: Tensor) -> Answer:
    return Answer(outputs.squeeze(-2), None)


def _chosen(outputs: Tensor, meant: Tensor) -> Answer:
    return Answer(_pick(outputs, meant), _one_hot(outputs, meant))


def _log_likelihood(outputs: Tensor, meant: Tensor) -> Answer:
    logs = outputs.log_softmax(-2)
    return Answer(_pick(logs, meant), _one_hot(outputs, meant) - logs.exp())


def _squared_error(outputs: Tensor, values: Tensor, meant: Tensor, true: Tensor) -> dict[str, Tensor]:
    return {"": (values - true).square()}


def _cross_entropy(outputs: Tensor, values: Tensor, meant: Tensor, true: Tensor) -> dict[str, Tensor]:
    right = outputs.argmax(-2) == meant
    return {"": true - values, " accuracy": right.to(outputs.dtype)}


def _pick(outputs: Tensor, meant: Tensor) -> Tensor:
    return outputs.gather(-2, _like(outputs, meant)).squeeze(-2)


def _one_hot(outputs: Tensor, meant: Tensor) -> Tensor:
    return torch.zeros_like(outputs).scatter_(-2, _like(outputs, meant), 1.0)


def _like(outputs: Tensor, meant: Tensor) -> Tensor:
    """Rows that several runs share are meant alike in all of them."""
    return meant.unsqueeze(-2).expand(*outputs.shape[:-2], 1, outputs.shape[-1])


VALUE = Head(_only, squared, _squared_error)  # a network of one output
ACTION_VALUE = Head(_chosen, squared, _squared_error)
CLASS = Head(_log_likelihood, negative_log_likelihood, _cross_entropy)  # the log-likelihood of the right class
