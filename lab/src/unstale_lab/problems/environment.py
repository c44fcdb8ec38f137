"""Vectorized environments, with the transitions and true values that policy evaluation needs.

Everything here is in float64; ``Task.to_observations`` casts to float32 at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .n_step_returns import n_step_returns
from .problem import Transitions, ValueSet, merge_transitions

REWARD_SCALE = 0.1  # of all control problems, as in the paper's experiments
MAX_ROLLOUT_STEPS = 2000  # γ = 0.99 leaves 2e-9 of the rewards after them
PARALLEL_EPISODES = 256
MAX_PARALLEL_ROLLOUTS = 16_384  # more do not fit into the cache and are slower

Policy = Callable[[Tensor], Tensor]  # observations [states, inputs] → actions [states]


class StepResult(NamedTuple):
    """The result of one step of every environment."""

    state: Tensor  # [states, size]
    reward: Tensor  # [states], scaled
    terminated: Tensor  # [states]


@dataclass(frozen=True)
class Task:
    """An environment with deterministic dynamics; only the start states are random."""

    name: str
    inputs: int  # length of an observation
    actions: int
    gamma: float
    max_episode_steps: int  # after which an episode is truncated (not terminated), and bootstraps
    start: Callable[[int, torch.Generator], Tensor]  # count, generator → start states [count, size]
    step: Callable[[Tensor, Tensor], StepResult]  # states, actions → result
    observe: Callable[[Tensor], Tensor]  # states → observations
    random_actions: float = 0.0  # ε of the policy to be evaluated

    def step_policy(self, policy: Policy, state: Tensor) -> StepResult:
        """Make one step of the policy from each state."""
        return self.step(state, policy(self.observe(state)))

    def to_observations(self, transitions: Transitions) -> Transitions:
        """Return the transitions with observations instead of states, in float32."""
        return Transitions(
            self.observe(transitions.state),
            transitions.reward,
            transitions.discount,
            self.observe(transitions.next_state),
        ).map(Tensor.float)


def with_random_actions(policy: Policy, task: Task, generator: torch.Generator) -> Policy:
    """Return the policy with the task's share of uniformly random actions."""

    def act(observation: Tensor) -> Tensor:
        action = policy(observation)
        random_action = torch.randint(task.actions, action.shape, generator=generator)
        is_random = torch.rand(action.shape, generator=generator, dtype=torch.float32) < task.random_actions
        return torch.where(is_random, random_action, action)

    return act if task.random_actions else policy


def n_step_transitions(task: Task, policy: Policy, state: Tensor, steps: int) -> Transitions:
    """Return n-step transitions from each state, shorter where the episode terminates."""
    reward, discount = torch.zeros(2, len(state), dtype=state.dtype)
    last = state.clone()
    live = torch.arange(len(state))  # terminated episodes are not stepped
    for k in range(steps):
        step = task.step_policy(policy, last[live])
        last[live] = step.state
        reward[live] += task.gamma**k * step.reward
        discount[live] = task.gamma ** (k + 1) * (~step.terminated).to(discount.dtype)
        live = live[~step.terminated]
        if not len(live):
            break
    return Transitions(state, reward, discount, last)


def true_values(task: Task, policy: Policy, state: Tensor, rollouts: int = 1) -> ValueSet:
    """Return the values of states: exact for a deterministic policy (one rollout), otherwise a mean of rollouts."""
    chunk = max(1, MAX_PARALLEL_ROLLOUTS // len(state))
    counts = [min(chunk, rollouts - done) for done in range(0, rollouts, chunk)]
    rewards = [n_step_transitions(task, policy, state.repeat(count, 1), MAX_ROLLOUT_STEPS).reward for count in counts]
    returns = torch.cat(rewards).unflatten(0, (rollouts, -1))
    error = returns.std(0) / rollouts**0.5 if rollouts > 1 else torch.zeros_like(returns[0])
    return ValueSet(task.observe(state), returns.mean(0), error)


@dataclass(frozen=True)
class Episodes:
    """A batch of episodes, padded: entries beyond the length of an episode are meaningless."""

    state: Tensor  # [episodes, time + 1, size]
    reward: Tensor  # [episodes, time]
    length: Tensor  # [episodes]
    terminated: Tensor  # [episodes]; False if truncated

    def scores(self) -> Tensor:
        """Return the undiscounted return of each episode, without the reward scale, ``[episodes]``."""
        inside = torch.arange(self.reward.shape[1]) < self.length[:, None]
        return (self.reward * inside).sum(1) / REWARD_SCALE

    def transitions(self, gamma: float, n_step: int) -> Transitions:
        """Return one n-step transition per step, in temporal order, one episode after the other.

        Steps less than ``n_step`` before the end of their episode use the remaining steps.
        """
        time = torch.arange(self.reward.shape[1])[:, None]
        is_last = time == self.length - 1  # [time, episodes]
        parts = n_step_returns(self.reward.T, is_last & self.terminated, is_last & ~self.terminated, gamma, n_step)
        reward, discount, steps = (part.T for part in parts)
        episode, first = (time < self.length).T.nonzero(as_tuple=True)
        following = self.state[episode, first + steps[episode, first]]
        return Transitions(self.state[episode, first], reward[episode, first], discount[episode, first], following)


def rollout(task: Task, policy: Policy, start: Tensor) -> Episodes:
    """Play one episode from each start state, until it terminates or is truncated."""
    states, rewards = [start], []
    length = torch.full((len(start),), task.max_episode_steps)
    terminated = torch.zeros(len(start), dtype=torch.bool)
    for time in range(1, task.max_episode_steps + 1):
        step = task.step_policy(policy, states[-1])
        states.append(step.state)
        rewards.append(step.reward)
        length[step.terminated & ~terminated] = time
        terminated |= step.terminated
        if terminated.all():
            break
    return Episodes(torch.stack(states, 1), torch.stack(rewards, 1), length, terminated)


class TransitionStream:
    """An endless stream of transitions in temporal order, one episode after another, with states of the task."""

    def __init__(self, task: Task, policy: Policy, generator: torch.Generator, n_step: int = 1) -> None:
        self._blocks = self._generate(task, policy, generator, n_step)
        self._pending = next(self._blocks)

    @staticmethod
    def _generate(task: Task, policy: Policy, generator: torch.Generator, n_step: int) -> Iterator[Transitions]:
        while True:
            yield rollout(task, policy, task.start(PARALLEL_EPISODES, generator)).transitions(task.gamma, n_step)

    def take(self, count: int) -> Transitions:
        """Return the next ``count`` transitions."""
        while len(self._pending.reward) < count:
            self._pending = merge_transitions([self._pending, next(self._blocks)], torch.cat)
        taken = self._pending.map(lambda field: field[:count])
        self._pending = self._pending.map(lambda field: field[count:])
        return taken


def sample_states(state: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Sample ``count`` states with replacement."""
    return state[torch.randint(len(state), (count,), generator=generator)]


def sample_uniform(low: Tensor, high: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Sample states uniformly from the box between ``low`` and ``high``, ``[count, size]``."""
    return low + (high - low) * torch.rand(count, len(low), generator=generator, dtype=torch.float64)
