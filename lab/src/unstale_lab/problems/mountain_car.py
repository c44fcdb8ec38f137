"""Mountain Car, with the policy that pushes in the direction of motion.

The dynamics are those of Gymnasium's ``MountainCar-v0``. Dynamics and policy are deterministic and every episode
terminates, so that the true value of a state is exactly its discounted return.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .environment import (
    MAX_ROLLOUT_STEPS,
    REWARD_SCALE,
    StepResult,
    Task,
    TransitionStream,
    n_step_transitions,
    sample_states,
    sample_uniform,
    true_values,
)
from .problem import Stream, Transitions, ValueSet, merge_transitions, seeded

LOW = torch.tensor([-1.2, -0.07], dtype=torch.float64)  # position, velocity
HIGH = torch.tensor([0.6, 0.07], dtype=torch.float64)
GOAL = 0.5
FORCE, GRAVITY = 0.001, 0.0025
NUM_TRAINING_STATES = 2000  # on which the training error is measured
EVALUATION_GRID = 40  # cells along each side; the evaluation error is measured at their centres


def start(count: int, generator: torch.Generator) -> Tensor:
    """Return start states, uniform over the state space as in the paper (Gymnasium starts at the valley's bottom).

    Some are beyond the goal; an episode terminates only after its first step.
    """
    return sample_uniform(LOW, HIGH, count, generator)


def step(state: Tensor, action: Tensor) -> StepResult:
    """Make one step; actions are 0 (left), 1 (none) and 2 (right)."""
    position, velocity = state.unbind(-1)
    velocity = velocity + FORCE * (action - 1).to(state.dtype) - torch.cos(3 * position) * GRAVITY
    velocity = velocity.clamp(LOW[1], HIGH[1])
    position = (position + velocity).clamp(LOW[0], HIGH[0])
    velocity = torch.where(position == LOW[0], velocity.clamp(min=0), velocity)  # the wall stops the car
    terminated = (position >= GOAL) & (velocity >= 0)
    return StepResult(torch.stack([position, velocity], -1), torch.full_like(position, -REWARD_SCALE), terminated)


def normalize(state: Tensor) -> Tensor:
    """Return position and velocity scaled to [-1, 1]."""
    return 2 * (state - LOW) / (HIGH - LOW) - 1


def push_along_velocity(observation: Tensor) -> Tensor:
    """Push in the direction of motion, and to the right at rest."""
    return torch.where(observation[..., 1] < 0, 0, 2)


# The paper's network gets the raw state, although the range of positions is 13 times that of velocities.
TASK = Task("mountain_car", 2, 3, 0.95, MAX_ROLLOUT_STEPS, start, step, lambda state: state)
SCALED_TASK = replace(TASK, observe=normalize)


class MountainCar:
    """The paper's "replay": every sample starts at a new uniform state."""

    bootstraps = True

    def __init__(self, task: Task = TASK) -> None:
        self.task = task
        self.inputs = task.inputs

    def stream(self, seed: int, batch: int, n_step: int) -> Stream:
        generator = seeded(self.task.name, "stream", seed)

        def take(count: int) -> Transitions:
            samples = n_step_transitions(
                self.task, push_along_velocity, self.task.start(count * batch, generator), n_step
            )
            return self.task.to_observations(samples).map(lambda field: field.unflatten(0, (count, batch)))

        return take

    def values(self) -> dict[str, ValueSet]:
        cells = (torch.arange(EVALUATION_GRID, dtype=torch.float64) + 0.5) / EVALUATION_GRID
        grid = LOW + (HIGH - LOW) * torch.cartesian_prod(cells, cells)
        return {
            "training": true_values(
                self.task, push_along_velocity, self._training_states(seeded(self.task.name, "training"))
            ),
            "evaluation": true_values(self.task, push_along_velocity, grid),
        }

    def _training_states(self, generator: torch.Generator) -> Tensor:
        return self.task.start(NUM_TRAINING_STATES, generator)


class OnlineMountainCar(MountainCar):
    """Transitions in temporal order. A new episode starts at a uniform state; a batch is ``batch`` parallel streams."""

    def stream(self, seed: int, batch: int, n_step: int) -> Stream:
        name = self.task.name
        streams = [
            TransitionStream(self.task, push_along_velocity, seeded(name, "online", seed, row), n_step)
            for row in range(batch)
        ]

        def take(count: int) -> Transitions:
            rows = [self.task.to_observations(stream.take(count)) for stream in streams]
            return merge_transitions(rows, lambda fields: torch.stack(fields, 1))

        return take

    def _training_states(self, generator: torch.Generator) -> Tensor:
        return sample_states(
            TransitionStream(self.task, push_along_velocity, generator).take(10_000).state,
            NUM_TRAINING_STATES,
            generator,
        )
