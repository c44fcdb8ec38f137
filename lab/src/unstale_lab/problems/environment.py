"""Environments as functions of many states at once, and what policy evaluation needs of them: transitions and values.

Everything here is in float64; what a network is given is cast at the very end, by ``Task.seen``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .base import Transitions, ValueSet, merged
from .n_step import n_step_returns

REWARD_SCALE = 0.1  # of all control problems, as in the paper's experiments
FOREVER = 2000  # steps: even γ = .99 leaves 2e-9 of what comes after them
EPISODES = 256  # played side by side
ROWS = 16_384  # states stepped side by side: more leave the cache, and are slower

Policy = Callable[[Tensor], Tensor]  # from what the network sees, [states, inputs], to actions, [states]


class Step(NamedTuple):
    """What an action led to."""

    state: Tensor  # [states, size]
    reward: Tensor  # [states], scaled
    terminated: Tensor  # [states]


@dataclass(frozen=True)
class Task:
    """An environment without randomness of its own but for where episodes start."""

    name: str
    inputs: int  # the length of a state as the network sees it
    actions: int
    gamma: float
    limit: int  # steps after which an episode is truncated: it bootstraps there, for it did not terminate
    start: Callable[[int, torch.Generator], Tensor]  # so many first states, [count, size]
    step: Callable[[Tensor, Tensor], Step]  # from states and actions
    observe: Callable[[Tensor], Tensor]  # states as the network sees them
    random_actions: float = 0.0  # the share of them that the policy to be evaluated takes

    def follow(self, policy: Policy, state: Tensor) -> Step:
        """One step of the policy from each state."""
        return self.step(state, policy(self.observe(state)))

    def seen(self, transitions: Transitions) -> Transitions:
        """As the network sees them."""
        return Transitions(
            self.observe(transitions.state),
            transitions.reward,
            transitions.discount,
            self.observe(transitions.next_state),
        ).map(Tensor.float)


def at_times_random(policy: Policy, task: Task, numbers: torch.Generator) -> Policy:
    """The policy, but for the task's share of random actions."""

    def act(observation: Tensor) -> Tensor:
        action = policy(observation)
        anything = torch.randint(task.actions, action.shape, generator=numbers)
        at_random = torch.rand(action.shape, generator=numbers, dtype=torch.float32) < task.random_actions
        return torch.where(at_random, anything, action)

    return act if task.random_actions else policy


def look_ahead(task: Task, policy: Policy, state: Tensor, steps: int) -> Transitions:
    """From each state so many steps, or fewer where the episode terminates on the way."""
    reward, discount = torch.zeros(2, len(state), dtype=state.dtype)
    last = state.clone()
    live = torch.arange(len(state))  # episodes that are over are not stepped on
    for k in range(steps):
        step = task.follow(policy, last[live])
        last[live] = step.state
        reward[live] += task.gamma**k * step.reward
        discount[live] = task.gamma ** (k + 1) * (~step.terminated).to(discount.dtype)
        live = live[~step.terminated]
        if not len(live):
            break
    return Transitions(state, reward, discount, last)


def true_values(task: Task, policy: Policy, state: Tensor, rollouts: int = 1) -> ValueSet:
    """Exact where the policy is deterministic, for which one rollout is enough; a mean of rollouts otherwise."""
    at_once = max(1, ROWS // len(state))
    counts = [min(at_once, rollouts - done) for done in range(0, rollouts, at_once)]
    rewards = [look_ahead(task, policy, state.repeat(count, 1), FOREVER).reward for count in counts]
    returns = torch.cat(rewards).unflatten(0, (rollouts, -1))
    error = returns.std(0) / rollouts**0.5 if rollouts > 1 else torch.zeros_like(returns[0])
    return ValueSet(task.observe(state), returns.mean(0), error)


@dataclass(frozen=True)
class Episodes:
    """Episodes side by side; what lies beyond the length of one is not part of it."""

    state: Tensor  # [episodes, time + 1, size]
    reward: Tensor  # [episodes, time]
    length: Tensor  # [episodes]
    terminated: Tensor  # [episodes], whether it did; it was truncated otherwise

    def scores(self) -> Tensor:
        """The sum of each episode's rewards, unscaled, [episodes]."""
        inside = torch.arange(self.reward.shape[1]) < self.length[:, None]
        return (self.reward * inside).sum(1) / REWARD_SCALE

    def transitions(self, gamma: float, n_step: int) -> Transitions:
        """One for every step, in order, one episode after the other. Steps less than ``n_step`` from the end of their
        episode look ahead as far as it goes."""
        time = torch.arange(self.reward.shape[1])[:, None]
        is_last = time == self.length - 1  # [time, episodes]
        parts = n_step_returns(self.reward.T, is_last & self.terminated, is_last & ~self.terminated, gamma, n_step)
        reward, discount, steps = (part.T for part in parts)
        episode, first = (time < self.length).T.nonzero(as_tuple=True)
        following = self.state[episode, first + steps[episode, first]]
        return Transitions(self.state[episode, first], reward[episode, first], discount[episode, first], following)


def play(task: Task, policy: Policy, start: Tensor) -> Episodes:
    """An episode from each start, until it terminates or the task's limit truncates it."""
    states, rewards = [start], []
    length = torch.full((len(start),), task.limit)
    terminated = torch.zeros(len(start), dtype=torch.bool)
    for time in range(1, task.limit + 1):
        step = task.follow(policy, states[-1])
        states.append(step.state)
        rewards.append(step.reward)
        length[step.terminated & ~terminated] = time
        terminated |= step.terminated
        if terminated.all():
            break
    return Episodes(torch.stack(states, 1), torch.stack(rewards, 1), length, terminated)


class Tape:
    """Transitions in the order of time, one episode after another, without end; states are the task's own."""

    def __init__(self, task: Task, policy: Policy, numbers: torch.Generator, n_step: int = 1) -> None:
        self._blocks = self._play(task, policy, numbers, n_step)
        self._rest = next(self._blocks)

    @staticmethod
    def _play(task: Task, policy: Policy, numbers: torch.Generator, n_step: int) -> Iterator[Transitions]:
        while True:
            yield play(task, policy, task.start(EPISODES, numbers)).transitions(task.gamma, n_step)

    def take(self, count: int) -> Transitions:
        """The next ones."""
        while len(self._rest.reward) < count:
            self._rest = merged([self._rest, next(self._blocks)], torch.cat)
        taken = self._rest.map(lambda field: field[:count])
        self._rest = self._rest.map(lambda field: field[count:])
        return taken


def drawn(state: Tensor, count: int, numbers: torch.Generator) -> Tensor:
    """So many of the states, with replacement."""
    return state[torch.randint(len(state), (count,), generator=numbers)]


def uniform(low: Tensor, high: Tensor, count: int, numbers: torch.Generator) -> Tensor:
    """States from the box between ``low`` and ``high``, [count, size]."""
    return low + (high - low) * torch.rand(count, len(low), generator=numbers, dtype=torch.float64)
