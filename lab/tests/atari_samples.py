"""A recording and policies to test with. In a module of their own, so that other processes can import them."""

import torch

from unstale_lab.atari.tape import Tape


class AtRandom:
    """Any action, whatever it sees."""

    def act(self, observations, numbers):
        return torch.randint(9, (len(observations),), generator=numbers)

    def fingerprint(self):
        return "at random"


class ByBrightness:
    """Decides by what it sees, and nothing else."""

    def act(self, observations, numbers):
        return observations.sum((1, 2, 3), dtype=torch.int64) % 9

    def fingerprint(self):
        return "by brightness"


def recording() -> Tape:
    """A recording of two episodes of two and three actions."""
    return Tape(
        frames=torch.randint(256, (8, 84, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),
        newest=torch.tensor([1, 2, 4, 5, 6]),
        first=torch.tensor([1, 1, 4, 4, 4]),
        action=torch.tensor([0, 1, 2, 3, 4]),
        reward=torch.ones(5, dtype=torch.float32),
        terminated=torch.tensor([False, True, False, False, True]),
        truncated=torch.zeros(5, dtype=torch.bool),
        saved=torch.tensor([0, 2]),
        machines=torch.ones(2, 10, dtype=torch.uint8),
        held=torch.tensor([0, 0]),
        about={"game": "ms_pacman"},
    )
