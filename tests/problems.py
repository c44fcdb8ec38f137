"""What the tests share: models by name, streams of random TD batches, and the comparison of states."""

from __future__ import annotations

import copy

import torch
from torch import nn

import unstale


def mlp(width: int = 5, inputs: int = 3, outputs: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.LeakyReLU(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)
    )


def linear(inputs: int = 3) -> nn.Module:
    return nn.Linear(inputs, 1, bias=False)


class ConvNet(nn.Module):
    """A small image network: padding, stride, dilation and groups in one."""

    def __init__(self, width: int = 4, outputs: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, width, 3, stride=2, padding=1), nn.LeakyReLU(),
            nn.Conv2d(width, width, 3, padding=2, dilation=2, groups=2), nn.Tanh(),
        )  # fmt: skip
        self.head = nn.Linear(width * 9, outputs)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def image(m: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(m, 2, 5, 5, generator=generator)


def vector(m: int, generator: torch.Generator, inputs: int = 3) -> torch.Tensor:
    return torch.randn(m, inputs, generator=generator)


class Stream:
    """TD batches, the same for every model that asks: ``batch(model)`` is a function that evaluates the next one."""

    def __init__(self, m: int = 4, gamma: float = 0.9, seed: int = 0, draw=vector, done: float = 0.25) -> None:
        self.m, self.gamma, self.draw, self.done = m, gamma, draw, done
        self.generator = torch.Generator().manual_seed(seed)

    def batch(self, model):
        s, s_next = self.draw(self.m, self.generator), self.draw(self.m, self.generator)
        reward = torch.randn(self.m, generator=self.generator)
        terminated = (torch.rand(self.m, generator=self.generator) < self.done).to(reward)

        def evaluate():
            value, next_value = model(s).squeeze(-1), model(s_next).squeeze(-1)
            return value, unstale.targets.td(reward, next_value, terminated, self.gamma)

        return evaluate


def twins(make, seed: int = 0):
    """Two copies of one freshly made model."""
    torch.manual_seed(seed)
    model = make()
    return model, copy.deepcopy(model)


def parameters_of(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def assert_same(one, other):
    """Raise unless two nested containers of tensors are equal, in types and in every bit."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other
