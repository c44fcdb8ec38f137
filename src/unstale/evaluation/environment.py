"""Runs a policy in a Gymnasium environment."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import EvaluationError, first_line, require
from .policies import Policy
from .spaces import ActionSpace, Array, Discrete, action_space, numbered_states
from .transitions import Transitions, join

PARALLEL = 16  # episodes that are run at the same time, so that the policy acts on batches
TAIL = 1e-3  # time limits are moved to where the discount is this small
Progress = Callable[[str, int, int, str], None]  # phase, done, total, note


class Environment:
    """Makes environments of one kind, and runs episodes in them.

    Args:
        source: an id of ``gymnasium.make``, or a function that returns an environment.
        gamma: the discount. The time limit of a registered environment is moved to the step at which ``γ^t`` is
            ``TAIL``, because the value asked for has no time limit.
        time_limit: cut episodes after this many steps instead, and bootstrap there.
        max_episode_steps: an episode that has not ended by then is an error.
    """

    def __init__(
        self,
        source: str | Callable[[], Any],
        gamma: float,
        time_limit: int | None = None,
        max_episode_steps: int = 10_000,
    ) -> None:
        self.gymnasium = require("gymnasium")
        self._source, self._options = source, {}
        self.name = source if isinstance(source, str) else getattr(source, "__name__", "environment")
        self._time_limit, self._max_steps = time_limit, max_episode_steps
        one = self._make()
        if isinstance(source, str):
            if time_limit is not None:
                self._options = dict(max_episode_steps=time_limit)
            elif gamma < 1 and one.spec is not None and one.spec.max_episode_steps is not None:
                self._options = dict(max_episode_steps=_steps_until_tail(gamma))
            if self._options:
                one.close()
                one = self._make()
        self._environments = [one]
        self.space = action_space(one.action_space)
        self.observation_space = one.observation_space
        self.states = numbered_states(one.observation_space)

    def _make(self) -> Any:
        if not isinstance(self._source, str):
            made = self._source()
            if self._time_limit is not None:
                made = self.gymnasium.wrappers.TimeLimit(made, self._time_limit)
            return made
        try:
            return self.gymnasium.make(self._source, disable_env_checker=True, **self._options)
        except Exception as error:  # gymnasium.error.Error, and whatever an environment's constructor raises
            raise EvaluationError(f"the environment {self._source!r} cannot be made: {first_line(error)}") from error

    def start_states(self, count: int, seed: int) -> Array:
        """Observations after ``count`` resets."""
        one = self._environments[0]
        states = [one.reset(seed=_seed(seed, 1, 0))[0], *(one.reset()[0] for _ in range(count - 1))]
        return _stacked(states)

    def run(self, policy: Policy, episodes: int, seed: int, progress: Progress) -> Transitions:
        """Run whole episodes. Their number is fixed, so that short ones are not preferred."""
        while len(self._environments) < min(PARALLEL, episodes):
            self._environments.append(self._make())
        policy.check(self.observation_space, self.space)
        waiting = iter(range(episodes))
        running = {i: _Episode(number) for i, number in zip(range(len(self._environments)), waiting, strict=False)}
        current = {i: self._environments[i].reset(seed=_seed(seed, 0, e.number))[0] for i, e in running.items()}
        finished: dict[int, Transitions] = {}
        steps = 0
        while running:
            slots = list(running)
            observations = _stacked([current[i] for i in slots])
            actions = policy.act(observations)
            checked = self.space.check(actions, f"the policy {policy.name}")
            for row, i in enumerate(slots):
                episode = running[i]
                action = _native(actions[row], self.space)
                following, reward, terminated, truncated, _ = self._environments[i].step(action)
                _check_reward(reward, episode)
                episode.add(observations[row], checked[row], float(reward), following, bool(terminated))
                current[i] = following
                steps += 1
                if terminated or truncated:
                    finished[episode.number] = self._transitions(episode)
                    progress("running episodes", len(finished), episodes, f"{steps:,} steps")
                    del running[i]
                    number = next(waiting, None)
                    if number is not None:
                        running[i] = _Episode(number)
                        current[i] = self._environments[i].reset(seed=_seed(seed, 0, number))[0]
                elif len(episode.rewards) >= self._max_steps:
                    raise EvaluationError(
                        f"an episode did not end in {self._max_steps:,} steps; set --time-limit, where episodes are "
                        "cut off and bootstrapped, or raise --max-episode-steps."
                    )
        return join([finished[number] for number in range(episodes)])

    def close(self) -> None:
        for one in self._environments:
            one.close()

    def _transitions(self, episode: _Episode) -> Transitions:
        is_last = np.arange(len(episode.rewards)) == len(episode.rewards) - 1
        return Transitions(
            np.stack(episode.observations),
            np.stack(episode.actions),
            np.array(episode.rewards),
            _stacked(episode.following),
            is_last & episode.terminated,
            is_last & (not episode.terminated),
            self.space,
            self.states,
        )


class _Episode:
    def __init__(self, number: int) -> None:
        self.number = number
        self.observations: list[Array] = []
        self.actions: list[Array] = []
        self.rewards: list[float] = []
        self.following: list[Any] = []
        self.terminated = False

    def add(self, observation: Array, action: Array, reward: float, following: Any, terminated: bool) -> None:
        self.observations.append(observation)
        self.actions.append(action)
        self.rewards.append(reward)
        self.following.append(following)
        self.terminated = terminated


def _check_reward(reward: Any, episode: _Episode) -> None:
    if not np.isfinite(reward):
        raise EvaluationError(
            f"the environment returned the reward {float(reward)} at step {len(episode.rewards)} of episode "
            f"{episode.number}; fix the environment."
        )


def _stacked(observations: list[Any]) -> Array:
    return np.stack([np.asarray(one) for one in observations])


def _native(action: Array, space: ActionSpace) -> Any:
    """An action of the type that the environment takes."""
    return int(action) if isinstance(space, Discrete) else np.asarray(action, space.low.dtype)


def _steps_until_tail(gamma: float) -> int:
    return math.ceil(math.log(TAIL) / math.log(gamma)) if gamma > 0 else 1


def _seed(seed: int, stream: int, number: int) -> int:
    """Different for every episode, and the same however many run at a time."""
    return int(np.random.SeedSequence([seed, stream, number]).generate_state(1)[0] >> 1)
