"""Value networks, and what they learn from: transitions as inputs, rewards and discounts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from .policies import Policy, expected_actions
from .spaces import Array, Discrete
from .transitions import Transitions


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, dtype=torch.float32)


class ValueNetwork(nn.Module):
    """``V(s)``, or ``Q(s, a)`` for all discrete actions (one output each) or one continuous action (a further input).

    The network computes ``f``, and the value is ``offset + scale · f((x - mean) / std)``. The last layer starts at
    zero, so that training starts from ``offset``.
    """

    mean: Tensor
    std: Tensor
    offset: Tensor
    scale: Tensor

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(_linear(inputs, width), nn.Tanh(), _linear(width, width), nn.Tanh())
        self.head = _linear(width, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        for name, value in dict(mean=torch.zeros(inputs), std=torch.ones(inputs)).items():
            self.register_buffer(name, value.float())
        for name in ("offset", "scale"):
            self.register_buffer(name, torch.tensor(float(name == "scale"), dtype=torch.float64))

    def normalized(self, inputs: Tensor) -> Tensor:
        """``f``, shape ``[m, outputs]``."""
        return self.head(self.hidden((inputs - self.mean) / self.std))  # type: ignore[no-any-return]

    def forward(self, inputs: Tensor) -> Tensor:
        return self.offset + self.scale * self.normalized(inputs)


@dataclass(frozen=True, eq=False)
class Samples:
    """What temporal-difference learning needs of every transition.

    The target is ``reward + discount · E[value of next_inputs]``. ``weights [N, outputs]`` are probabilities of the
    next actions; ``next_inputs [N, repeats, d]`` holds sampled ones.
    """

    inputs: Tensor
    chosen: Tensor | None  # the output that is trained, for action values of discrete actions
    rewards: Tensor
    discounts: Tensor
    next_inputs: Tensor
    weights: Tensor | None

    def prediction(self, network: ValueNetwork, rows: Tensor) -> Tensor:
        found = network.normalized(self.inputs[rows])
        if self.chosen is None:
            return found.squeeze(-1)
        return found.gather(-1, self.chosen[rows].unsqueeze(-1)).squeeze(-1)

    def next_value(self, network: ValueNetwork, rows: Tensor) -> Tensor:
        following = self.next_inputs[rows]
        found = network.normalized(following.flatten(0, 1)).unflatten(0, following.shape[:2])
        if self.weights is None:
            return found.squeeze(-1).mean(1)
        return (self.weights[rows] * found.squeeze(1)).sum(-1)

    def values(self, network: ValueNetwork) -> Tensor:
        """Values of the inputs, of the chosen action, in float64."""
        rows = torch.arange(len(self.inputs))
        with torch.no_grad():
            return network.offset + network.scale * self.prediction(network, rows).double()

    def next_values(self, network: ValueNetwork) -> Tensor:
        rows = torch.arange(len(self.inputs))
        with torch.no_grad():
            return network.offset + network.scale * self.next_value(network, rows).double()


def state_samples(data: Transitions, gamma: float, n: int) -> Samples:
    """Samples of ``V`` of the policy that made the data, with n-step targets."""
    rewards, until, discounts = data.n_step(gamma, n)
    return Samples(data.features, None, rewards, discounts, data.next_features[until].unsqueeze(1), None)


def action_samples(data: Transitions, policy: Policy, gamma: float) -> Samples:
    """Samples of ``Q`` of any policy: fitted-Q evaluation, one step."""
    rewards, _, discounts = data.n_step(gamma, 1)
    following, weights = _with_actions(data.next_features, data.next_observations, policy)
    if isinstance(data.space, Discrete):
        return Samples(data.features, torch.as_tensor(data.actions), rewards, discounts, following, weights)
    actions = torch.as_tensor(data.actions, dtype=torch.float32)
    return Samples(torch.cat([data.features, actions], -1), None, rewards, discounts, following, None)


@dataclass(frozen=True, eq=False)
class Start:
    """Start states, and what the policy does there."""

    inputs: Tensor
    weights: Tensor | None = None

    def values(self, network: ValueNetwork) -> Array:
        """The value of every start state."""
        with torch.no_grad():
            found = network(self.inputs.flatten(0, 1)).unflatten(0, self.inputs.shape[:2])
        mean = found.squeeze(-1).mean(1) if self.weights is None else (self.weights * found.squeeze(1)).sum(-1)
        return mean.double().numpy()


def start_states(features: Tensor) -> Start:
    return Start(features.unsqueeze(1))


def start_actions(features: Tensor, observations: Array, policy: Policy) -> Start:
    return Start(*_with_actions(features, observations, policy))


def _with_actions(features: Tensor, observations: Array, policy: Policy) -> tuple[Tensor, Tensor | None]:
    """Inputs ``[m, repeats, d]``, and for discrete actions their probabilities ``[m, n]``."""
    if isinstance(policy.space, Discrete):
        return features.unsqueeze(1), torch.as_tensor(policy.probabilities(observations), dtype=torch.float32)
    actions = torch.as_tensor(expected_actions(policy, observations))
    return torch.cat([features.unsqueeze(1).expand(-1, actions.shape[1], -1), actions], -1), None


def fit_scales(network: ValueNetwork, samples: Samples, data: Transitions, rows: Array, gamma: float) -> None:
    """Set the network's scales from its training rows.

    The offset is the constant that satisfies the mean Bellman equation, and the scale is the standard deviation of the
    discounted sums of what this constant leaves over.
    """
    inputs = samples.inputs[rows]
    network.mean.copy_(inputs.mean(0))
    std = inputs.std(0, correction=0)
    network.std.copy_(torch.where(std > 1e-6, std, torch.ones_like(std)))
    continues = gamma * ~data.terminated
    left = float((1 - continues[rows]).mean())
    offset = float(data.rewards[rows].mean()) / left if left > 0 else 0.0
    residual = data.rewards - offset * (1 - continues)
    sums, following = np.empty(len(data)), 0.0
    for row in reversed(range(len(data))):
        following = residual[row] + gamma * (0.0 if data.last[row] else following)
        sums[row] = following
    scale = float(sums[rows].std())
    network.offset.fill_(offset)
    network.scale.fill_(scale if scale > 1e-6 * max(1.0, abs(offset)) else 1.0)
