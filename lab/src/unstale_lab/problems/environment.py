"""Batched environments, and what policy evaluation needs of them: transitions and true values.

Everything here is in float64; ``Task.seen`` casts to float32 what a network is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .base import Transitions, ValueSet, merged
from .n_step import n_step_returns

REWARD_SCALE = 0.1  # as in the experiments of the paper
MAX_ROLLOUT = 2000  # steps; γ^2000 is 2e-9 for γ = 0.99
EPISODES = 256  # in parallel
ROWS = 16_384  # maximal number of states in a batched step; more do not fit into the cache

Policy = Callable[[Tensor], Tensor]  # from observations, [states, inputs], to actions, [states]


class Step(NamedTuple):
    """The outcome of an action."""

    state: Tensor  # [states, size]
    reward: Tensor  # [states], scaled
    terminated: Tensor  # [states]


@dataclass(frozen=True)
class Task:
    """An environment with deterministic dynamics and random initial states."""

    name: str
    inputs: int  # the length of a state as the network sees it
    actions: int
    gamma: float
    limit: int  # steps after which an episode is truncated; the last step then bootstraps
    start: Callable[[int, torch.Generator], Tensor]  # initial states, [count, size]
    step: Callable[[Tensor, Tensor], Step]  # the transition function, of states and actions
    observe: Callable[[Tensor], Tensor]  # from states to observations
    random_actions: float = 0.0  # the probability of a random action of the evaluated policy

    def follow(self, policy: Policy, state: Tensor) -> Step:
        """One step of the policy from each state."""
        return self.step(state, policy(self.observe(state)))

    def seen(self, transitions: Transitions) -> Transitions:
        """The transitions with observations in place of states, in float32."""
        return Transitions(
            self.observe(transitions.state),
            transitions.reward,
            transitions.discount,
            self.observe(transitions.next_state),
        ).map(Tensor.float)


def with_random_actions(policy: Policy, task: Task, generator: torch.Generator) -> Policy:
    """The policy with the task's probability of random actions."""

    def act(observation: Tensor) -> Tensor:
        action = policy(observation)
        random_action = torch.randint(task.actions, action.shape, generator=generator)
        is_random = torch.rand(action.shape, generator=generator, dtype=torch.float32) < task.random_actions
        return torch.where(is_random, random_action, action)

    return act if task.random_actions else policy


def rollout_transitions(task: Task, policy: Policy, state: Tensor, steps: int) -> Transitions:
    """Transitions of ``steps`` steps from each state, or fewer if the episode terminates on the way."""
    reward, discount = torch.zeros(2, len(state), dtype=state.dtype)
    last = state.clone()
    live = torch.arange(len(state))  # indices of episodes that have not terminated
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
    """The mean return of rollouts from each state. One rollout is exact for a deterministic policy."""
    at_once = max(1, ROWS // len(state))
    counts = [min(at_once, rollouts - done) for done in range(0, rollouts, at_once)]
    rewards = [rollout_transitions(task, policy, state.repeat(count, 1), MAX_ROLLOUT).reward for count in counts]
    returns = torch.cat(rewards).unflatten(0, (rollouts, -1))
    error = returns.std(0) / rollouts**0.5 if rollouts > 1 else torch.zeros_like(returns[0])
    return ValueSet(task.observe(state), returns.mean(0), error)


@dataclass(frozen=True)
class Episodes:
    """A batch of episodes, padded to the length of the longest."""

    state: Tensor  # [episodes, time + 1, size]
    reward: Tensor  # [episodes, time]
    length: Tensor  # [episodes]
    terminated: Tensor  # [episodes]; the others were truncated

    def scores(self) -> Tensor:
        """The sum of each episode's rewards, unscaled, [episodes]."""
        inside = torch.arange(self.reward.shape[1]) < self.length[:, None]
        return (self.reward * inside).sum(1) / REWARD_SCALE

    def transitions(self, gamma: float, n_step: int) -> Transitions:
        """The n-step transitions of all steps, one episode after another. Near the end of an episode they have fewer
        steps."""
        time = torch.arange(self.reward.shape[1])[:, None]
        is_last = time == self.length - 1  # [time, episodes]
        parts = n_step_returns(self.reward.T, is_last & self.terminated, is_last & ~self.terminated, gamma, n_step)
        reward, discount, steps = (part.T for part in parts)
        episode, first = (time < self.length).T.nonzero(as_tuple=True)
        following = self.state[episode, first + steps[episode, first]]
        return Transitions(self.state[episode, first], reward[episode, first], discount[episode, first], following)


def play(task: Task, policy: Policy, start: Tensor) -> Episodes:
    """Episodes from the given states, until they terminate or are truncated."""
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


class TransitionStream:
    """An endless sequence of transitions in temporal order, one episode after another."""

    def __init__(self, task: Task, policy: Policy, generator: torch.Generator, n_step: int = 1) -> None:
        self._blocks = self._play(task, policy, generator, n_step)
        self._rest = next(self._blocks)

    @staticmethod
    def _play(task: Task, policy: Policy, generator: torch.Generator, n_step: int) -> Iterator[Transitions]:
        while True:
            yield play(task, policy, task.start(EPISODES, generator)).transitions(task.gamma, n_step)

    def take(self, count: int) -> Transitions:
        """The next ``count`` transitions."""
        while len(self._rest.reward) < count:
            self._rest = merged([self._rest, next(self._blocks)], torch.cat)
        taken = self._rest.map(lambda field: field[:count])
        self._rest = self._rest.map(lambda field: field[count:])
        return taken


def sample_states(state: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``count`` of the states, sampled with replacement."""
    return state[torch.randint(len(state), (count,), generator=generator)]


def uniform(low: Tensor, high: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """States from the box between ``low`` and ``high``, [count, size]."""
    return low + (high - low) * torch.rand(count, len(low), generator=generator, dtype=torch.float64)
