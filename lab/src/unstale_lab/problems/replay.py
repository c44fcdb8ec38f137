"""Policy evaluation of an expert from a replay buffer of its transitions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from .environment import Policy, Task, TransitionStream, sample_states, true_values, with_random_actions
from .policies import expert_path, load_expert
from .problem import Stream, Transitions, ValueSet, seeded
from .value_file import load_values, save_values, values_path

TRANSITIONS = 50_000  # in the buffer


class Replay:
    """Samples transitions uniformly from a buffer, with replacement. All seeds share the buffer."""

    bootstraps = True

    def __init__(
        self,
        task: Task,
        states: int,
        rollouts: int = 1,
        expert: Path | None = None,
        input_scale: Tensor | None = None,
    ) -> None:
        """Load the expert.

        Args:
            task: the environment.
            states: number of states in each set of true values.
            rollouts: per state; 1 for a deterministic policy.
            expert: file of the expert; by default that of the package.
            input_scale: factors of the observations that are learned from, ``[inputs]``; the expert sees them unscaled.
        """
        self.task = task
        self.inputs = task.inputs
        self._states, self._rollouts = states, rollouts
        self._input_scale = torch.ones(task.inputs, dtype=torch.float64) if input_scale is None else input_scale
        self._expert_path = expert or expert_path(task.name)
        self._expert = load_expert(self._expert_path, task)
        self._buffer = cache(self._make_buffer)
        self._values = cache(self._exact_or_stored_values)

    def stream(self, seed: int, batch: int, n_step: int) -> Stream:
        buffer = self._buffer(n_step)
        generator = seeded(self.task.name, "stream", seed)

        def take(count: int) -> Transitions:
            index = torch.randint(TRANSITIONS, (count, batch), generator=generator)
            return buffer.map(lambda field: field[index])

        return take

    def values(self) -> dict[str, ValueSet]:
        """Return true values of states in the buffer ("training") and of states of other episodes ("evaluation")."""
        return {name: replace(held, state=held.state * self._input_scale) for name, held in self._values().items()}

    @property
    def values_are_exact(self) -> bool:
        """Whether one rollout gives the exact value; otherwise means of many rollouts are stored in a file."""
        return self._rollouts == 1

    def compute_values(self) -> dict[str, ValueSet]:
        """Compute the values by new rollouts."""
        return {"training": self._true_values("buffer"), "evaluation": self._true_values("evaluation")}

    def save_values_file(self) -> dict[str, str]:
        """Compute the values, store them next to the expert, and return the metadata of the file."""
        path = values_path(self._expert_path)
        return save_values(self.compute_values(), path, self.task, self._expert, self._rollouts)

    def _exact_or_stored_values(self) -> dict[str, ValueSet]:
        if self.values_are_exact:
            return self.compute_values()
        path = values_path(self._expert_path)
        return load_values(path, self.task, self._expert, self._states, self._rollouts)

    def _policy(self, generator: torch.Generator) -> Policy:
        return with_random_actions(self._expert, self.task, generator)

    def _transitions(self, purpose: str, n_step: int) -> Transitions:
        generator = seeded(self.task.name, purpose)
        return TransitionStream(self.task, self._policy(generator), generator, n_step).take(TRANSITIONS)

    def _make_buffer(self, n_step: int) -> Transitions:
        learner_task = replace(self.task, observe=lambda state: self.task.observe(state) * self._input_scale)
        return learner_task.to_observations(self._transitions("buffer", n_step))

    def _true_values(self, purpose: str) -> ValueSet:
        generator = seeded(self.task.name, purpose, "values")
        states: Tensor = sample_states(self._transitions(purpose, 1).state, self._states, generator)
        return true_values(self.task, self._policy(generator), states, self._rollouts)
