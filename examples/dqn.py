"""DQN for classic control in one file, with corrected momentum.

A Q-network learns from replayed transitions, with targets of a target network that is copied now and then. Lines that
differ from a program with ``torch.optim.Adam`` are marked with ``# unstale:``.

    pip install . gymnasium
    python examples/dqn.py     # --correction none is Adam; --help lists all settings
"""

from __future__ import annotations

import argparse
import copy
import inspect
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
    env_id: str = "CartPole-v1",
    correction: str = "auto",
    steps: int = 20_000,
    seed: int = 0,
    lr: float = 1e-3,
    gamma: float = 0.99,
    width: int = 64,
    capacity: int = 10_000,
    batch_size: int = 64,
    warmup: int = 500,
    train_every: int = 2,
    copy_every: int = 250,
    exploration: float = 0.3,
    final_epsilon: float = 0.05,
    max_norm: float = 10.0,
    print_every: int = 2000,
) -> list[tuple[int, float]]:
    """Train, and return the return of every episode, with the step at which it ended.

    Args:
        env_id: an environment with a vector as observation and a finite number of actions.
        correction: option of ``unstale.CorrectedAdam``; ``"none"`` is Adam.
        steps: steps of the environment.
        seed: of networks, exploration, sampling and environment.
        lr: learning rate.
        gamma: discount.
        width: of the hidden layers.
        capacity: of the replay buffer.
        batch_size: transitions per gradient step.
        warmup: steps before learning begins.
        train_every: steps of the environment per gradient step.
        copy_every: steps between copies to the target network.
        exploration: share of ``steps`` in which ε falls from 1 to ``final_epsilon``.
        final_epsilon: probability of a random action after that.
        max_norm: bound on the norm of the gradient.
        print_every: steps between printed lines.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    env = gym.make(env_id)
    observations, actions = env.observation_space.shape[0], int(env.action_space.n)

    network = make_network(observations, width, actions)
    target_network = copy.deepcopy(network)
    optimizer = unstale.CorrectedAdam(network, lr=lr, correction=correction)  # unstale: not torch.optim.Adam
    optimizer.follow(target_network)  # unstale: the correction sees how copies move the targets
    buffer = ReplayBuffer(capacity, observations, action_shape=())

    curve: list[tuple[int, float]] = []
    score, loss, start = 0.0, float("nan"), time.perf_counter()
    state, _ = env.reset(seed=seed)
    print(f"{'steps':>8} {'seconds':>8} {'score':>8} {'loss':>10}")
    for step in range(1, steps + 1):
        epsilon = max(final_epsilon, 1 - (1 - final_epsilon) * step / (exploration * steps))
        if torch.rand((), generator=generator) < epsilon:
            action = int(torch.randint(actions, (), generator=generator))
        else:
            with torch.no_grad():
                action = int(network(torch.as_tensor(state, dtype=torch.float32)).argmax())
        next_state, reward, terminated, truncated, _ = env.step(action)
        buffer.add(state=state, action=action, reward=reward, next_state=next_state, terminated=terminated)
        state, score = next_state, score + float(reward)
        if terminated or truncated:
            curve.append((step, score))
            score = 0.0
            state, _ = env.reset()

        if step >= warmup and step % train_every == 0:
            batch = buffer.sample(batch_size, generator)
            next_q = target_network(batch["next_state"])  # unstale: not under torch.no_grad()
            target = unstale.targets.q_learning(batch["reward"], next_q, batch["terminated"], gamma)
            value = network(batch["state"]).gather(1, batch["action"].long()[:, None]).squeeze(1)
            loss = float(optimizer.backward(value, target, loss="smooth_l1"))  # unstale: not loss.backward()
            optimizer.clip_grad_norm_(max_norm)  # unstale: not torch.nn.utils.clip_grad_norm_
            optimizer.step()
            optimizer.zero_grad()
        if step % copy_every == 0:
            target_network.load_state_dict(network.state_dict())

        if step % print_every == 0 or step == steps:
            print_row(step, start, curve, loss)
    env.close()
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, parameter in inspect.signature(main).parameters.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(parameter.default), default=parameter.default)
    main(**vars(parser.parse_args()))
