"""The benchmarked networks: the small value function of the classic problems, and DQN's network."""

from __future__ import annotations

from torch import nn

INPUTS = 2  # as in Mountain Car: position and velocity
FRAMES = (4, 84, 84)
ACTIONS = 9


def mlp(width: int) -> nn.Sequential:
    """Return a value function with three hidden layers: 2 → width → width → width → 1."""
    model = nn.Sequential(
        nn.Linear(INPUTS, width),
        nn.LeakyReLU(),
        nn.Linear(width, width),
        nn.LeakyReLU(),
        nn.Linear(width, width),
        nn.LeakyReLU(),
        nn.Linear(width, 1),
    )
    expected = {32: 2_241, 64: 8_577}
    assert size(model) == expected.get(width, size(model))
    return model


def dqn() -> nn.Sequential:
    """Return DQN's network for Atari frames, with 32 channels in the first layer."""
    model = nn.Sequential(
        nn.Conv2d(4, 32, 8, stride=4, padding=4),
        nn.LeakyReLU(),
        nn.Conv2d(32, 64, 4, stride=2, padding=2),
        nn.LeakyReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.LeakyReLU(),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 512),
        nn.LeakyReLU(),
        nn.Linear(512, ACTIONS),
    )
    assert size(model) == 4_801_705
    return model


def size(model: nn.Module) -> int:
    """Return the number of parameters, ``n``."""
    return sum(parameter.numel() for parameter in model.parameters())
