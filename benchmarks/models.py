"""The benchmarked networks: fully connected ones, and DQN's."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

INPUTS = 2  # as in Mountain Car: position and velocity
FRAMES = (4, 84, 84)
ACTIONS = 9


def fully_connected(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return a network with these numbers of inputs, hidden units and outputs."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def mlp(width: int) -> nn.Sequential:
    """Return a value function with three hidden layers: 2 → width → width → width → 1."""
    model = fully_connected(INPUTS, width, width, width, 1, activation=nn.LeakyReLU)
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
