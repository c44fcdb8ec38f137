"""Acrobot: swing the lower of two links above a line.

Dynamics are those of Gymnasium's ``Acrobot-v1``, the "book" ones: two links of mass, length and moment of inertia 1,
each with its centre of mass in its middle, under a gravity of 9.8.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from .environment import REWARD_SCALE, Step, Task, uniform

SECONDS = 0.2  # a step
FASTEST = (4 * pi, 9 * pi)
START = torch.full((4,), 0.1, dtype=torch.float64)
GRAVITY = 9.8


def start(count: int, generator: torch.Generator) -> Tensor:
    """Two angles, two velocities: hanging down, nearly at rest."""
    return uniform(-START, START, count, generator)


def step(state: Tensor, action: Tensor) -> Step:
    """Actions 0, 1, 2 turn the joint between the links with a torque of -1, 0, 1. One Runge-Kutta step of order 4."""
    torque = (action - 1).to(state.dtype)
    k1 = _derivative(state, torque)
    k2 = _derivative(state + SECONDS / 2 * k1, torque)
    k3 = _derivative(state + SECONDS / 2 * k2, torque)
    k4 = _derivative(state + SECONDS * k3, torque)
    angle_1, angle_2, velocity_1, velocity_2 = (state + SECONDS / 6 * (k1 + 2 * k2 + 2 * k3 + k4)).unbind(-1)
    angle_1, angle_2 = _wrapped(angle_1), _wrapped(angle_2)
    velocity_1 = velocity_1.clamp(-FASTEST[0], FASTEST[0])
    velocity_2 = velocity_2.clamp(-FASTEST[1], FASTEST[1])
    terminated = -torch.cos(angle_1) - torch.cos(angle_1 + angle_2) > 1
    reward = -REWARD_SCALE * (~terminated).to(state.dtype)
    return Step(torch.stack([angle_1, angle_2, velocity_1, velocity_2], -1), reward, terminated)


def observe(state: Tensor) -> Tensor:
    """Cosine and sine of both angles, and both velocities over the fastest there are: all on [-1, 1]."""
    a, b, v, w = state.unbind(-1)
    return torch.stack([a.cos(), a.sin(), b.cos(), b.sin(), v / FASTEST[0], w / FASTEST[1]], -1)


def _derivative(state: Tensor, torque: Tensor) -> Tensor:
    angle_1, angle_2, velocity_1, velocity_2 = state.unbind(-1)
    cosine, sine = torch.cos(angle_2), torch.sin(angle_2)
    d1 = 3.5 + cosine
    d2 = 1.25 + 0.5 * cosine
    phi2 = 0.5 * GRAVITY * torch.sin(angle_1 + angle_2)
    phi1 = -(0.5 * velocity_2 + velocity_1) * velocity_2 * sine + 1.5 * GRAVITY * torch.sin(angle_1) + phi2
    acceleration_2 = (torque + d2 / d1 * phi1 - 0.5 * velocity_1**2 * sine - phi2) / (1.25 - d2**2 / d1)
    acceleration_1 = -(d2 * acceleration_2 + phi1) / d1
    return torch.stack([velocity_1, velocity_2, acceleration_1, acceleration_2], -1)


def _wrapped(angle: Tensor) -> Tensor:
    """On [-π, π]."""
    return angle - 2 * pi * torch.round(angle / (2 * pi))


TASK = Task("acrobot", 6, 3, 0.99, 500, start, step, observe)
