"""Streaming TD(λ) actor-critic in one file, with corrected momentum.

There is no replay buffer and no batch: every transition is used once, when the λ-return of its state is complete over
``length`` steps. Momentum is then the only average over samples, and a long one needs the correction. Lines that differ
from a program with ``torch.optim.Adam`` are marked with ``# unstale:``.

    pip install . gymnasium
    python examples/stream_td_lambda.py     # --correction none is Adam; --help lists all settings
"""

from __future__ import annotations

import argparse
import inspect
import time
from collections import deque
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

import unstale  # unstale: new


class Transition(NamedTuple):
    """One step of the environment."""

    state: Tensor
    action: Tensor
    reward: float
    next_state: Tensor
    terminated: bool
    truncated: bool


class Normalizer:
    """Scales observations by their running mean and standard deviation."""

    def __init__(self, size: int) -> None:
        self.count, self.mean, self.square = 0, np.zeros(size), np.zeros(size)

    def __call__(self, x: np.ndarray) -> Tensor:
        """The scaled observation, after it was counted."""
        self.count += 1
        change = x - self.mean
        self.mean += change / self.count
        self.square += change * (x - self.mean)
        deviation = np.sqrt(self.square / self.count) if self.count > 1 else np.ones_like(self.mean)
        return torch.as_tensor((x - self.mean) / (deviation + 1e-8), dtype=torch.float32)


def make_network(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """A network with two hidden layers."""
    layers = [nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)]
    return nn.Sequential(*layers)


def lambda_return(critic: nn.Module, window: list[Transition], gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """The value of the oldest state of the window and its λ-return, both ``[1]``, from one call of the critic."""
    states = torch.stack([window[0].state, *(step.next_state for step in window)])
    values = critic(states).squeeze(-1)
    rewards = torch.tensor([step.reward for step in window])
    terminated = torch.tensor([step.terminated for step in window])
    truncated = torch.tensor([step.truncated for step in window])
    # unstale: the values after the first are not detached
    returns = unstale.targets.td_lambda(rewards, values[1:], terminated, truncated, gamma, lam)
    return values[:1], returns[:1]


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
    actor_lr: float = 3e-4,
    gamma: float = 0.99,
    lam: float = 0.9,
    length: int = 16,
    width: int = 16,
    entropy_weight: float = 0.01,
    max_norm: float = 1.0,
    print_every: int = 2000,
) -> list[tuple[int, float]]:
    """Train, and return the return of every episode, with the step at which it ended.

    Args:
        env_id: an environment with a vector as observation and a finite number of actions.
        correction: option of ``unstale.CorrectedAdam``; ``"none"`` is Adam.
        steps: steps of the environment, and about as many gradient steps.
        seed: of networks, actions and environment.
        lr: learning rate of the critic.
        actor_lr: learning rate of the actor.
        gamma: discount.
        lam: λ.
        length: steps after which a λ-return is cut off.
        width: of the hidden layers.
        entropy_weight: of the entropy in the loss of the actor.
        max_norm: bound on the norm of both gradients.
        print_every: steps between printed lines.
    """
    torch.manual_seed(seed)
    env = gym.make(env_id)
    observations, actions = env.observation_space.shape[0], int(env.action_space.n)
    normalize = Normalizer(observations)
    actor, critic = make_network(observations, width, actions), make_network(observations, width, 1)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=actor_lr)
    optimizer = unstale.CorrectedAdam(critic, lr=lr, correction=correction)  # unstale: not torch.optim.Adam

    def learn(window: list[Transition]) -> float:
        """One step of critic and actor with the oldest transition of the window."""
        value, target = lambda_return(critic, window, gamma, lam)
        loss = optimizer.backward(value, target)  # unstale: not loss.backward()
        optimizer.clip_grad_norm_(max_norm)  # unstale: not torch.nn.utils.clip_grad_norm_
        optimizer.step()
        optimizer.zero_grad()

        log_probs = actor(window[0].state).log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum()
        advantage = (target - value).detach().squeeze()
        actor_optimizer.zero_grad()
        (-log_probs[window[0].action] * advantage - entropy_weight * entropy).backward()
        torch.nn.utils.clip_grad_norm_(actor.parameters(), max_norm)
        actor_optimizer.step()
        return float(loss)

    window: deque[Transition] = deque()
    curve: list[tuple[int, float]] = []
    score, loss, start = 0.0, float("nan"), time.perf_counter()
    state = normalize(env.reset(seed=seed)[0])
    print(f"{'steps':>8} {'seconds':>8} {'score':>8} {'loss':>10}")
    for step in range(1, steps + 1):
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=actor(state)).sample()
        observation, reward, terminated, truncated, _ = env.step(int(action))
        next_state = normalize(observation)
        window.append(Transition(state, action, float(reward), next_state, terminated, truncated))
        state, score = next_state, score + float(reward)
        if len(window) == length:
            loss = learn(list(window))
            window.popleft()
        if terminated or truncated:
            while window:  # the last states of an episode have shorter returns
                loss = learn(list(window))
                window.popleft()
            curve.append((step, score))
            score = 0.0
            state = normalize(env.reset()[0])
        if step % print_every == 0 or step == steps:
            print_row(step, start, curve, loss)
    env.close()
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, parameter in inspect.signature(main).parameters.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(parameter.default), default=parameter.default)
    main(**vars(parser.parse_args()))
