"""Mountain Car, and the policy that pushes the way the car already rolls.

Dynamics are those of Gymnasium's ``MountainCar-v0``. They and the policy are deterministic and every episode
terminates, so that the value of a state is the sum of the rewards that follow it, to the last digit.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .base import Stream, Transitions, ValueSet, merged, seeded
from .environment import (
    MAX_ROLLOUT,
    REWARD_SCALE,
    Step,
    Task,
    TransitionStream,
    rollout_transitions,
    sample_states,
    true_values,
    uniform,
)

LOW = torch.tensor([-1.2, -0.07], dtype=torch.float64)  # position, velocity
HIGH = torch.tensor([0.6, 0.07], dtype=torch.float64)
GOAL = 0.5
FORCE, GRAVITY = 0.001, 0.0025
STATES = 2000  # of the training distribution, on which errors are measured
GRID = 40  # cells along each side, on whose middles errors are measured


def start(count: int, generator: torch.Generator) -> Tensor:
    """Uniform over the state space, as in the paper's experiments, not Gymnasium's short line at the bottom of the
    valley. Some lie beyond the goal; from those, too, a step is taken before it can terminate."""
    return uniform(LOW, HIGH, count, generator)


def step(state: Tensor, action: Tensor) -> Step:
    """Actions are 0, to the left; 1, none; 2, to the right."""
    position, velocity = state.unbind(-1)
    velocity = velocity + FORCE * (action - 1).to(state.dtype) - torch.cos(3 * position) * GRAVITY
    velocity = velocity.clamp(LOW[1], HIGH[1])
    position = (position + velocity).clamp(LOW[0], HIGH[0])
    velocity = torch.where(position == LOW[0], velocity.clamp(min=0), velocity)  # the wall stops the car
    terminated = (position >= GOAL) & (velocity >= 0)
    return Step(torch.stack([position, velocity], -1), torch.full_like(position, -REWARD_SCALE), terminated)


def scaled(state: Tensor) -> Tensor:
    """Both numbers on [-1, 1]."""
    return 2 * (state - LOW) / (HIGH - LOW) - 1


def along(observation: Tensor) -> Tensor:
    """Push the way the car rolls, and to the right where it stands."""
    return torch.where(observation[..., 1] < 0, 0, 2)


# The paper's network sees position and velocity as they are, the one 13 times the other's range.
TASK = Task("mountain_car", 2, 3, 0.95, MAX_ROLLOUT, start, step, lambda state: state)
SCALED_TASK = replace(TASK, observe=scaled)


class MountainCar:
    """The paper's "replay": a fresh uniform state and ``n_step`` steps from it for every sample."""

    bootstraps = True

    def __init__(self, task: Task = TASK) -> None:
        self.task = task
        self.inputs = task.inputs

    def stream(self, seed: int, batch: int, n_step: int) -> Stream:
        generator = seeded(self.task.name, "stream", seed)

        def take(count: int) -> Transitions:
            samples = rollout_transitions(self.task, along, self.task.start(count * batch, generator), n_step)
            return self.task.seen(samples).map(lambda field: field.unflatten(0, (count, batch)))

        return take

    def values(self) -> dict[str, ValueSet]:
        cells = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
        grid = LOW + (HIGH - LOW) * torch.cartesian_prod(cells, cells)
        return {
            "training": true_values(self.task, along, self._training_states(seeded(self.task.name, "training"))),
            "evaluation": true_values(self.task, along, grid),
        }

    def _training_states(self, generator: torch.Generator) -> Tensor:
        return self.task.start(STATES, generator)


class OnlineMountainCar(MountainCar):
    """Transitions in the order in which they happen. An episode that ends is followed by one from a fresh uniform
    state; ``batch`` such streams run beside one another."""

    def stream(self, seed: int, batch: int, n_step: int) -> Stream:
        name = self.task.name
        tapes = [TransitionStream(self.task, along, seeded(name, "online", seed, row), n_step) for row in range(batch)]

        def take(count: int) -> Transitions:
            rows = [self.task.seen(tape.take(count)) for tape in tapes]
            return merged(rows, lambda fields: torch.stack(fields, 1))

        return take

    def _training_states(self, generator: torch.Generator) -> Tensor:
        return sample_states(TransitionStream(self.task, along, generator).take(10_000).state, STATES, generator)
