"""SAC for continuous actions in one file, with corrected momentum in its critics.

Soft actor-critic with twin critics, averaged target critics and a learned temperature. Lines that differ from a program
with ``torch.optim.Adam`` are marked with ``# unstale:``.

    pip install . gymnasium
    python examples/sac.py     # --correction none is Adam; --help lists all settings
"""

from __future__ import annotations

import argparse
import copy
import inspect
import math
import time
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

import unstale  # unstale: new


def make_network(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """A network with two hidden layers."""
    layers = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)]
    return nn.Sequential(*layers)


class Actor(nn.Module):
    """A Gaussian that is squashed to actions between -1 and 1."""

    def __init__(self, observations: int, actions: int, width: int) -> None:
        super().__init__()
        self.network = make_network(observations, width, 2 * actions)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Sampled actions ``[m, actions]`` and their log-probabilities ``[m]``."""
        mean, log_std = self.network(state).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = normal.rsample()
        # log(1 - tanh(x)²) without overflow
        squashing = 2 * (math.log(2) - raw - nn.functional.softplus(-2 * raw))
        return raw.tanh(), (normal.log_prob(raw) - squashing).sum(-1)


class TwinCritics(nn.Module):
    """Two values of every state and action."""

    def __init__(self, observations: int, actions: int, width: int) -> None:
        super().__init__()
        self.critics = nn.ModuleList(make_network(observations + actions, width, 1) for _ in range(2))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Values of shape ``[m, 2]``."""
        inputs = torch.cat([state, action], -1)
        return torch.cat([critic(inputs) for critic in self.critics], -1)


class ReplayBuffer:
    """The last ``capacity`` transitions."""

    def __init__(self, capacity: int, observations: int, action_shape: tuple[int, ...]) -> None:
        self.capacity, self.added = capacity, 0
        shapes = {"state": (observations,), "action": action_shape, "reward": (), "next_state": (observations,)}
        self.data = {name: torch.zeros(capacity, *shape) for name, shape in shapes.items()}
        self.data["terminated"] = torch.zeros(capacity, dtype=torch.bool)

    def add(self, **transition: Any) -> None:
        """Store a transition in the place of the oldest."""
        for name, value in transition.items():
            self.data[name][self.added % self.capacity] = torch.as_tensor(value)
        self.added += 1

    def sample(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Transitions, drawn with replacement."""
        rows = torch.randint(min(self.added, self.capacity), (size,), generator=generator)
        return {name: column[rows] for name, column in self.data.items()}


def print_row(step: int, start: float, curve: list[tuple[int, float]], loss: float) -> None:
    """Print steps, seconds, the mean return of the last ten episodes, and the loss of the values."""
    scores = [score for _, score in curve[-10:]] or [float("nan")]
    seconds, mean = time.perf_counter() - start, sum(scores) / len(scores)
    print(f"{step:>8,} {seconds:>8.1f} {mean:>8.1f} {loss:>10.4f}", flush=True)


def main(
    env_id: str = "Pendulum-v1",
    correction: str = "auto",
    steps: int = 6_000,
    seed: int = 0,
    lr: float = 1e-3,
    gamma: float = 0.99,
    tau: float = 0.01,
    width: int = 64,
    capacity: int = 100_000,
    batch_size: int = 64,
    warmup: int = 500,
    print_every: int = 1000,
) -> list[tuple[int, float]]:
    """Train, and return the return of every episode, with the step at which it ended.

    Args:
        env_id: an environment with vectors as observation and as bounded action.
        correction: option of ``unstale.CorrectedAdam``; ``"none"`` is Adam.
        steps: steps of the environment, and gradient steps.
        seed: of networks, exploration, sampling and environment.
        lr: learning rate of critics, actor and temperature.
        gamma: discount.
        tau: share of the critics in their average at every step.
        width: of the hidden layers.
        capacity: of the replay buffer.
        batch_size: transitions per gradient step.
        warmup: steps with random actions, before learning begins.
        print_every: steps between printed lines.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    env = gym.make(env_id)
    observations, actions = env.observation_space.shape[0], env.action_space.shape[0]
    low, high = torch.as_tensor(env.action_space.low), torch.as_tensor(env.action_space.high)

    actor, critics = Actor(observations, actions, width), TwinCritics(observations, actions, width)
    target_critics = copy.deepcopy(critics)
    log_temperature = torch.zeros((), requires_grad=True)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=lr)
    temperature_optimizer = torch.optim.Adam([log_temperature], lr=lr)
    optimizer = unstale.CorrectedAdam(critics, lr=lr, correction=correction)  # unstale: not torch.optim.Adam
    optimizer.follow(target_critics)  # unstale: the correction sees how averaging moves the targets
    buffer = ReplayBuffer(capacity, observations, action_shape=(actions,))

    curve: list[tuple[int, float]] = []
    score, loss, start = 0.0, float("nan"), time.perf_counter()
    state, _ = env.reset(seed=seed)
    print(f"{'steps':>8} {'seconds':>8} {'score':>8} {'loss':>10}")
    for step in range(1, steps + 1):
        if step <= warmup:
            action = 2 * torch.rand(actions, generator=generator) - 1
        else:
            with torch.no_grad():
                action, _ = actor(torch.as_tensor(state, dtype=torch.float32))
        next_state, reward, terminated, truncated, _ = env.step((low + (action + 1) / 2 * (high - low)).numpy())
        buffer.add(state=state, action=action, reward=reward, next_state=next_state, terminated=terminated)
        state, score = next_state, score + float(reward)
        if terminated or truncated:
            curve.append((step, score))
            score = 0.0
            state, _ = env.reset()

        if step > warmup:
            batch, temperature = buffer.sample(batch_size, generator), log_temperature.exp().detach()
            with torch.no_grad():
                next_action, next_log_prob = actor(batch["next_state"])
            next_value = target_critics(batch["next_state"], next_action).min(-1).values  # unstale: not in no_grad()
            soft_value = next_value - temperature * next_log_prob
            target = unstale.targets.td(batch["reward"], soft_value, batch["terminated"], gamma)
            value = critics(batch["state"], batch["action"])
            # unstale: not loss.backward(); a weight of 2 makes the mean over both critics their sum
            loss = float(optimizer.backward(value, target.unsqueeze(-1).expand_as(value), weight=2.0))
            optimizer.step()

            sampled, log_prob = actor(batch["state"])
            actor_optimizer.zero_grad()
            (temperature * log_prob - critics(batch["state"], sampled).min(-1).values).mean().backward()
            actor_optimizer.step()
            optimizer.zero_grad()  # clears the gradients that the loss of the actor left in the critics, too

            temperature_optimizer.zero_grad()
            (-log_temperature * (log_prob.detach() - actions).mean()).backward()
            temperature_optimizer.step()
            with torch.no_grad():
                for average, parameter in zip(target_critics.parameters(), critics.parameters(), strict=True):
                    average.lerp_(parameter, tau)

        if step % print_every == 0 or step == steps:
            print_row(step, start, curve, loss)
    env.close()
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, parameter in inspect.signature(main).parameters.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(parameter.default), default=parameter.default)
    main(**vars(parser.parse_args()))
