"""Policies simple enough to test with. In a module of their own: other processes must be able to import them."""

import torch


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
