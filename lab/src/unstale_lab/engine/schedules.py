"""Settings that change over a run, as functions of the step number.

The step number is a tensor on the device that counts from 0, so that steps can be captured as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

# From the share of the run's steps that have been made to the factor of the learning rate.
LR_SCHEDULES: dict[str, Callable[[Tensor], Tensor | float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1 - progress,
}


def lr_factor(schedule: str, step: Tensor, steps: int) -> Tensor | float:
    """Return what the learning rate is multiplied with at ``step`` of ``steps``.

    >>> import torch
    >>> lr_factor("linear", torch.tensor(25), 100).item()
    0.75
    """
    return LR_SCHEDULES[schedule](step.double() / steps)


def averaging_decay(decay: float, step: Tensor) -> Tensor:
    """Return the decay of averaged weights, ``min(decay, (1 + t) / (10 + t))``: early averages forget faster.

    >>> import torch
    >>> averaging_decay(0.99, torch.tensor([0, 8, 100_000])).tolist()
    [0.1, 0.5, 0.99]
    """
    count = step.double()
    return ((1 + count) / (10 + count)).clamp(max=decay)
