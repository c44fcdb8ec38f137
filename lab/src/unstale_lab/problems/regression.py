"""Regression to the paper's sum of sines: the supervised case, whose targets stand still."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Stream, Transitions, ValueSet, seeded

SAMPLES = 10_000
MEASURED = 2000  # of the sample, on which the training error is measured; and the points of the grid


def function(x: Tensor) -> Tensor:
    """``y(x)`` of the paper, for x on [-1, 1]."""
    return (
        0.5 * torch.sin(2.14 * (x + 2))
        + 0.82 * torch.sin(9 * x + 0.4)
        + 0.38 * torch.sin(12 * x)
        + 0.32 * torch.sin(38 * x - 0.1)
    )


class Regression:
    """One sample of 10,000 uniform points, the same for every seed; a seed draws minibatches from it, with replacement.
    The targets are rewards that nothing follows, and ``n_step`` is without meaning."""

    inputs = 1
    bootstraps = False

    def __init__(self) -> None:
        self.x = 2 * torch.rand(SAMPLES, generator=seeded("regression", "sample"), dtype=torch.float64) - 1

    def stream(self, seed: int, batch: int, n_step: int) -> Stream:
        generator = seeded("regression", "stream", seed)
        points, targets = self.x[:, None].float(), function(self.x).float()

        def take(count: int) -> Transitions:
            index = torch.randint(SAMPLES, (count, batch), generator=generator)
            x, y = points[index], targets[index]
            return Transitions(x, y, torch.zeros_like(y), x)

        return take

    def values(self) -> dict[str, ValueSet]:
        grid = torch.linspace(-1, 1, MEASURED, dtype=torch.float64)
        return {
            name: ValueSet(x[:, None], function(x), torch.zeros_like(x))
            for name, x in (("training", self.x[:MEASURED]), ("evaluation", grid))
        }
