"""Acrobot: swing the lower of two links above a line.

The dynamics are those of Gymnasium's ``Acrobot-v1`` ("book" variant): two links of mass, length and moment of inertia
1, with the centre of mass in the middle, and gravity 9.8.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from .environment import REWARD_SCALE, StepResult, Task, sample_uniform

TIME_STEP = 0.2  # seconds
MAX_VELOCITY = (4 * pi, 9 * pi)  # of the two joints
START = torch.full((4,), 0.1, dtype=torch.float64)
GRAVITY = 9.8


def start(count: int, generator: torch.Generator) -> Tensor:
    """Return start states (two angles, two velocities): hanging down, nearly at rest."""
    return sample_uniform(-START, START, count, generator)


def step(state: Tensor, action: Tensor) -> StepResult:
    """Make one Runge-Kutta step of order 4; actions 0, 1 and 2 are torques of -1, 0 and 1 on the joint."""
    torque = (action - 1).to(state.dtype)
    k1 = _derivative(state, torque)
    k2 = _derivative(state + TIME_STEP / 2 * k1, torque)
    k3 = _derivative(state + TIME_STEP / 2 * k2, torque)
    k4 = _derivative(state + TIME_STEP * k3, torque)
    angle_1, angle_2, velocity_1, velocity_2 = (state + TIME_STEP / 6 * (k1 + 2 * k2 + 2 * k3 + k4)).unbind(-1)
    angle_1, angle_2 = _wrap_angle(angle_1), _wrap_angle(angle_2)
    velocity_1 = velocity_1.clamp(-MAX_VELOCITY[0], MAX_VELOCITY[0])
    velocity_2 = velocity_2.clamp(-MAX_VELOCITY[1], MAX_VELOCITY[1])
    terminated = -torch.cos(angle_1) - torch.cos(angle_1 + angle_2) > 1
    reward = -REWARD_SCALE * (~terminated).to(state.dtype)
    return StepResult(torch.stack([angle_1, angle_2, velocity_1, velocity_2], -1), reward, terminated)


def observe(state: Tensor) -> Tensor:
    """Return cosine and sine of both angles and the normalized velocities, all in [-1, 1]."""
    a, b, v, w = state.unbind(-1)
    return torch.stack([a.cos(), a.sin(), b.cos(), b.sin(), v / MAX_VELOCITY[0], w / MAX_VELOCITY[1]], -1)


# What observations are multiplied with to get those of Gymnasium, with velocities in radians per second.
RAW_SCALE = torch.tensor([1, 1, 1, 1, *MAX_VELOCITY], dtype=torch.float64)


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


def _wrap_angle(angle: Tensor) -> Tensor:
    """Wrap an angle to [-π, π]."""
    return angle - 2 * pi * torch.round(angle / (2 * pi))


TASK = Task("acrobot", 6, 3, 0.99, 500, start, step, observe)
