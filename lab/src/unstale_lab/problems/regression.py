"""Regression to the paper's sum of sines: supervised learning, with fixed targets."""

from __future__ import annotations

import torch
from torch import Tensor

from .problem import Stream, Transitions, ValueSet, seeded

NUM_SAMPLES = 10_000
NUM_EVALUATED = 2000  # samples on which the training error is measured, and points of the evaluation grid


def sum_of_sines(x: Tensor) -> Tensor:
    """Return ``y(x)`` of the paper, for x in [-1, 1]."""
    return (
        0.5 * torch.sin(2.14 * (x + 2))
        + 0.82 * torch.sin(9 * x + 0.4)
        + 0.38 * torch.sin(12 * x)
        + 0.32 * torch.sin(38 * x - 0.1)
    )


class Regression:
    """A data set of 10,000 uniform points, the same for every seed; seeds sample minibatches with replacement.

    Targets are rewards with discount 0; ``n_step`` has no effect.
    """

    inputs = 1
    bootstraps = False

    def __init__(self) -> None:
        self.x = 2 * torch.rand(NUM_SAMPLES, generator=seeded("regression", "sample"), dtype=torch.float64) - 1

    def stream(self, seed: int, batch: int, n_step: int) -> Stream:
        generator = seeded("regression", "stream", seed)
        points, targets = self.x[:, None].float(), sum_of_sines(self.x).float()

        def take(count: int) -> Transitions:
            index = torch.randint(NUM_SAMPLES, (count, batch), generator=generator)
            x, y = points[index], targets[index]
            return Transitions(x, y, torch.zeros_like(y), x)

        return take

    def values(self) -> dict[str, ValueSet]:
        grid = torch.linspace(-1, 1, NUM_EVALUATED, dtype=torch.float64)
        return {
            name: ValueSet(x[:, None], sum_of_sines(x), torch.zeros_like(x))
            for name, x in (("training", self.x[:NUM_EVALUATED]), ("evaluation", grid))
        }
