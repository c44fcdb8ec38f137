"""Action spaces, and observations as numbers that a network takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import EvaluationError

Array = NDArray[Any]
MAX_FEATURES = 4096  # of an observation: value networks are fully connected
BOUND_TOLERANCE = 1e-4  # actions are float32


@dataclass(frozen=True)
class Discrete:
    """Actions ``start``, …, ``start + n - 1``."""

    n: int
    start: int = 0

    def __str__(self) -> str:
        return f"Discrete({self.n})"

    def check(self, actions: Array, whose: str) -> Array:
        """Return the actions as whole numbers ``[m]``, counted from 0."""
        is_numeric = np.issubdtype(actions.dtype, np.number)
        if (
            not is_numeric
            or actions.ndim != 1
            or np.any(actions != np.round(actions))
            or not np.isfinite(actions).all()
        ):
            raise EvaluationError(
                f"{whose} gave {_describe(actions)}, but the action space is {self}: one whole number per observation."
            )
        numbers = actions.astype(np.int64) - self.start
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self.n):
            wrong = int(actions[(numbers < 0) | (numbers >= self.n)][0])
            raise EvaluationError(f"{whose} gave the action {wrong}, but the action space is {self}.")
        return numbers


@dataclass(frozen=True, eq=False)
class Box:
    """Vectors of real numbers. Bounds that are not known are infinite."""

    low: Array
    high: Array

    @property
    def size(self) -> int:
        return int(self.low.size)

    def __str__(self) -> str:
        return f"Box of shape {self.low.shape}"

    def check(self, actions: Array, whose: str) -> Array:
        """Return the actions as ``[m, size]``."""
        if actions.shape[1:] != self.low.shape or not np.issubdtype(actions.dtype, np.floating):
            raise EvaluationError(f"{whose} gave {_describe(actions)}, but the action space is a {self}.")
        if not np.all(np.isfinite(actions)):
            raise EvaluationError(f"{whose} gave an action that is not finite.")
        if np.any(actions < self.low - BOUND_TOLERANCE) or np.any(actions > self.high + BOUND_TOLERANCE):
            raise EvaluationError(
                f"{whose} gave actions from {actions.min():g} to {actions.max():g}, outside the bounds of the action "
                "space; clip them in the policy."
            )
        return actions.reshape(len(actions), -1)


ActionSpace = Discrete | Box


def action_space(space: Any) -> ActionSpace:
    """Our description of a Gymnasium action space."""
    kind = type(space).__name__
    if kind == "Discrete":
        return Discrete(int(space.n), int(space.start))
    if kind == "Box" and np.issubdtype(space.dtype, np.floating):
        return Box(np.asarray(space.low), np.asarray(space.high))
    raise EvaluationError(f"the action space {space} is not supported; it has to be Discrete, or a Box of floats.")


def numbered_states(space: Any) -> int | None:
    """How many states a Gymnasium observation space numbers, from 0; None for arrays. Refuses other spaces."""
    kind = type(space).__name__
    if kind == "Box":
        check_size(int(np.prod(space.shape)))
        return None
    if kind != "Discrete":
        raise EvaluationError(
            f"the observation space {kind} is not supported; wrap the environment in "
            "gymnasium.wrappers.FlattenObservation."
        )
    if space.start < 0:
        raise EvaluationError(f"the observation space {space} is not supported; number its states from 0.")
    return check_size(int(space.start + space.n))


def check_size(size: int) -> int:
    """Refuse observations that are too large for a fully connected network, such as images."""
    if size > MAX_FEATURES:
        raise EvaluationError(
            f"an observation has {size:,} numbers, and value networks take at most {MAX_FEATURES:,}; wrap the "
            "environment to return features instead of images."
        )
    return size


def features(observations: Array, states: int | None) -> Tensor:
    """Observations as float32 ``[m, d]``; one-hot for ``states`` numbered states."""
    if states is not None:
        return torch.nn.functional.one_hot(torch.as_tensor(observations, dtype=torch.long), states).float()
    return torch.as_tensor(observations.reshape(len(observations), -1), dtype=torch.float32)


def _describe(actions: Array) -> str:
    return f"actions of shape {actions.shape[1:]} and type {actions.dtype}"
