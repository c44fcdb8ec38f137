"""Evaluation of an expert from a buffer of its transitions."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from .base import Stream, Transitions, ValueSet, seeded
from .control import Policy, Tape, Task, at_times_random, drawn, true_values
from .policies import expert_path, load_expert

TRANSITIONS = 50_000


class Replay:
    """Samples are drawn from the buffer with replacement, each transition as often as any other, those that terminate
    included. The buffer is one for all seeds."""

    bootstraps = True

    def __init__(self, task: Task, states: int, rollouts: int = 1) -> None:
        """``states`` are measured in each set of true values, by so many rollouts from each."""
        self.task = task
        self.inputs = task.inputs
        self._states, self._rollouts = states, rollouts
        self._expert = load_expert(expert_path(task.name), task)
        self._buffer = cache(self._seen_buffer)
        self._values = cache(self._true_values)

    def stream(self, seed: int, batch: int, n_step: int) -> Stream:
        buffer = self._buffer(n_step)
        numbers = seeded(self.task.name, "stream", seed)

        def take(count: int) -> Transitions:
            index = torch.randint(TRANSITIONS, (count, batch), generator=numbers)
            return buffer.map(lambda field: field[index])

        return take

    def values(self) -> dict[str, ValueSet]:
        """Of states of the buffer, and of states of other episodes."""
        return {"training": self._values("buffer"), "evaluation": self._values("evaluation")}

    def _policy(self, numbers: torch.Generator) -> Policy:
        return at_times_random(self._expert, self.task, numbers)

    def _transitions(self, purpose: str, n_step: int) -> Transitions:
        numbers = seeded(self.task.name, purpose)
        return Tape(self.task, self._policy(numbers), numbers, n_step).take(TRANSITIONS)

    def _seen_buffer(self, n_step: int) -> Transitions:
        return self.task.seen(self._transitions("buffer", n_step))

    def _true_values(self, purpose: str) -> ValueSet:
        numbers = seeded(self.task.name, purpose, "values")
        states: Tensor = drawn(self._transitions(purpose, 1).state, self._states, numbers)
        return true_values(self.task, self._policy(numbers), states, self._rollouts)
