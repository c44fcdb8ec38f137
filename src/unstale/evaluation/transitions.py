"""Transitions of whole episodes, one after another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from .errors import EvaluationError
from .spaces import ActionSpace, Array, check_size, features


@dataclass(frozen=True, eq=False)
class Transitions:
    """``N`` transitions in the order in which they were made.

    An episode ends where ``terminated`` or ``truncated`` is set, and at the last row. Its last value is bootstrapped
    unless it terminated. Actions are those of ``space.check``: whole numbers from 0 ``[N]``, or ``[N, size]``.
    """

    observations: Array
    actions: Array
    rewards: Array
    next_observations: Array
    terminated: Array
    truncated: Array
    space: ActionSpace
    states: int | None = None  # how many, if observations are numbers of states

    def __post_init__(self) -> None:
        if len(self.rewards) == 0:
            raise EvaluationError("there are no transitions to evaluate.")
        check_size(self.states or int(np.prod(self.observations.shape[1:])))
        for name in ("rewards", "observations", "next_observations"):
            finite = np.isfinite(getattr(self, name)).reshape(len(self), -1).all(1)
            if not finite.all():
                row = int(np.argmin(finite))
                episode = int(self.episode[row])
                raise EvaluationError(
                    f"{name} are not finite (step {row - int(self.starts[episode])} of episode {episode}); fix the "
                    "environment, or remove the episode."
                )

    def __len__(self) -> int:
        return len(self.rewards)

    @cached_property
    def last(self) -> Array:
        """Whether a row is the last of its episode."""
        last = self.terminated | self.truncated
        last[-1] = True
        return last

    @cached_property
    def episode(self) -> Array:
        """The number of every row's episode."""
        return np.concatenate([[0], np.cumsum(self.last)[:-1]])

    @cached_property
    def starts(self) -> Array:
        """The first row of every episode."""
        return np.flatnonzero(np.concatenate([[True], self.last[:-1]]))

    @cached_property
    def ends(self) -> Array:
        """The last row of every episode."""
        return np.flatnonzero(self.last)

    @property
    def episodes(self) -> int:
        return len(self.starts)

    @cached_property
    def features(self) -> Tensor:
        return features(self.observations, self.states)

    @cached_property
    def next_features(self) -> Tensor:
        return features(self.next_observations, self.states)

    def returns(self, gamma: float, last_values: Array) -> Array:
        """The discounted return of every row to the end of its episode, where ``last_values [episodes]`` is added
        unless the episode terminated."""
        found = np.empty(len(self))
        following, number = 0.0, self.episodes
        for row in reversed(range(len(self))):
            if self.last[row]:
                number -= 1
                following = 0.0 if self.terminated[row] else float(last_values[number])
            following = float(self.rewards[row]) + gamma * following
            found[row] = following
        return found

    def tail_weights(self, gamma: float) -> Array:
        """``γ^T`` of the states where episodes were cut off, and 0 for terminated ones, ``[episodes]``."""
        return np.where(self.terminated[self.ends], 0.0, gamma ** (self.ends - self.starts + 1.0))

    def n_step(self, gamma: float, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sums of ``k`` discounted rewards, the row whose next state follows, and that state's discount.

        ``k`` is ``n``, or fewer where the episode ends first. The discount is ``γ^k``, or 0 at a termination.
        """
        rows = np.arange(len(self))
        end = self.ends[self.episode]
        until = np.minimum(rows + n - 1, end)
        rewards = np.zeros(len(self))
        for j in range(n):
            inside = rows + j <= until
            rewards[inside] += gamma**j * self.rewards[rows[inside] + j]
        discount = gamma ** (until - rows + 1.0) * ~self.terminated[until]
        return torch.as_tensor(rewards), torch.as_tensor(until), torch.as_tensor(discount)


def join(episodes: list[Transitions]) -> Transitions:
    """Episodes one after another."""
    first = episodes[0]
    columns = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
    return Transitions(
        **{name: np.concatenate([getattr(one, name) for one in episodes]) for name in columns},
        space=first.space,
        states=first.states,
    )
