"""Cartpole: keep a pole upright on a cart, with a policy that takes one action in five at random.

Dynamics are those of Gymnasium's ``CartPole-v1``, with one number more: a state knows how many steps have passed.
An episode of 500 steps is over, for good, in each of them; since the state tells when, that is a termination here,
with no value beyond it, where Gymnasium, whose states cannot tell, speaks of a truncation.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from .environment import REWARD_SCALE, Step, Task, uniform

LIMIT = 500
SECONDS = 0.02  # a step
FARTHEST = 2.4
STEEPEST = 12 * pi / 180
GRAVITY, FORCE = 9.8, 10.0
POLE_MASS, TOTAL_MASS, HALF_LENGTH = 0.1, 1.1, 0.5
START = torch.tensor([0.05, 0.05, 0.05, 0.05, 0.0], dtype=torch.float64)
# Where an episode ends, for position, angle and time; the velocities of the expert's episodes stay within ±2.
SCALE = torch.tensor([FARTHEST, 2.0, STEEPEST, 2.0, LIMIT], dtype=torch.float64)


def start(count: int, generator: torch.Generator) -> Tensor:
    """Position, velocity, angle of the pole and its velocity, all near 0; and 0 steps."""
    return uniform(-START, START, count, generator)


def step(state: Tensor, action: Tensor) -> Step:
    """Action 0 pushes to the left, 1 to the right."""
    position, velocity, angle, turning, time = state.unbind(-1)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    push = (FORCE * (2 * action - 1).to(state.dtype) + POLE_MASS * HALF_LENGTH * turning**2 * sine) / TOTAL_MASS
    angular = (GRAVITY * sine - cosine * push) / (HALF_LENGTH * (4 / 3 - POLE_MASS * cosine**2 / TOTAL_MASS))
    linear = push - POLE_MASS * HALF_LENGTH * angular * cosine / TOTAL_MASS
    position, velocity = position + SECONDS * velocity, velocity + SECONDS * linear
    angle, turning = angle + SECONDS * turning, turning + SECONDS * angular
    time = time + 1
    terminated = (position.abs() > FARTHEST) | (angle.abs() > STEEPEST) | (time >= LIMIT)
    after = torch.stack([position, velocity, angle, turning, time], -1)
    return Step(after, torch.full_like(position, REWARD_SCALE), terminated)


def observe(state: Tensor) -> Tensor:
    """Every number over ``SCALE``."""
    return state / SCALE


TASK = Task("cartpole", 5, 2, 0.99, LIMIT, start, step, observe, random_actions=0.2)
