"""Cartpole: keep a pole upright on a cart, with a policy that takes 20 % random actions.

The dynamics are those of Gymnasium's ``CartPole-v1``, but the state also contains the time. Episodes end after 500
steps. Gymnasium treats that as a truncation, because its states do not contain the time; here it is a termination, with
no value after it.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from .environment import REWARD_SCALE, StepResult, Task, sample_uniform

MAX_EPISODE_STEPS = 500
TIME_STEP = 0.02  # seconds
MAX_POSITION = 2.4
MAX_ANGLE = 12 * pi / 180
GRAVITY, FORCE = 9.8, 10.0
POLE_MASS, TOTAL_MASS, HALF_LENGTH = 0.1, 1.1, 0.5
START = torch.tensor([0.05, 0.05, 0.05, 0.05, 0.0], dtype=torch.float64)
# Termination bounds for position, angle and time; the velocities in the expert's episodes stay within ±2.
SCALE = torch.tensor([MAX_POSITION, 2.0, MAX_ANGLE, 2.0, MAX_EPISODE_STEPS], dtype=torch.float64)


def start(count: int, generator: torch.Generator) -> Tensor:
    """Return start states (position, velocity, angle, angular velocity, time), all near 0."""
    return sample_uniform(-START, START, count, generator)


def step(state: Tensor, action: Tensor) -> StepResult:
    """Make one Euler step; action 0 pushes to the left, 1 to the right."""
    position, velocity, angle, angular_velocity, time = state.unbind(-1)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    push = (
        FORCE * (2 * action - 1).to(state.dtype) + POLE_MASS * HALF_LENGTH * angular_velocity**2 * sine
    ) / TOTAL_MASS
    angular_acceleration = (GRAVITY * sine - cosine * push) / (
        HALF_LENGTH * (4 / 3 - POLE_MASS * cosine**2 / TOTAL_MASS)
    )
    acceleration = push - POLE_MASS * HALF_LENGTH * angular_acceleration * cosine / TOTAL_MASS
    position, velocity = position + TIME_STEP * velocity, velocity + TIME_STEP * acceleration
    angle, angular_velocity = angle + TIME_STEP * angular_velocity, angular_velocity + TIME_STEP * angular_acceleration
    time = time + 1
    terminated = (position.abs() > MAX_POSITION) | (angle.abs() > MAX_ANGLE) | (time >= MAX_EPISODE_STEPS)
    after = torch.stack([position, velocity, angle, angular_velocity, time], -1)
    return StepResult(after, torch.full_like(position, REWARD_SCALE), terminated)


def observe(state: Tensor) -> Tensor:
    """Return the state divided by ``SCALE``."""
    return state / SCALE


# What observations are multiplied with to get those of Gymnasium, with the time as a share of the longest episode.
RAW_SCALE = torch.cat([SCALE[:4], torch.ones(1, dtype=torch.float64)])
TASK = Task("cartpole", 5, 2, 0.99, MAX_EPISODE_STEPS, start, step, observe, random_actions=0.2)
