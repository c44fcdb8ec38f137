"""PQN for classic control in one file, with corrected momentum.

Q-learning with parallel environments, layer normalization and Q(λ) returns, without a replay buffer and without a
target network. A minibatch is the whole trajectories of some environments, so that returns can be computed with the
network as it is. Lines that differ from a program with ``torch.optim.Adam`` are marked with ``# unstale:``.

    pip install . gymnasium
    python examples/pqn.py     # --correction none is Adam; --help lists all settings
"""

from __future__ import annotations

import argparse
import inspect
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import nn

import unstale  # unstale: new


def make_network(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """A network with two hidden layers, which are normalized."""
    first = [nn.Linear(inputs, width), nn.LayerNorm(width), nn.ReLU()]
    second = [nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.Linear(width, outputs))


def final_observations(next_state: np.ndarray, info: dict) -> np.ndarray:
    """What each step led to: the last observation of an episode, not the first one of the next."""
    if "final_obs" not in info:
        return next_state
    is_last = info["_final_obs"]
    next_state = next_state.copy()
    next_state[is_last] = np.stack(info["final_obs"][is_last])
    return next_state


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
    lam: float = 0.65,
    width: int = 64,
    envs: int = 8,
    rollout: int = 16,
    minibatches: int = 2,
    epochs: int = 2,
    exploration: float = 0.3,
    final_epsilon: float = 0.05,
    max_norm: float = 10.0,
    print_every: int = 2048,
) -> list[tuple[int, float]]:
    """Train, and return the return of every episode, with the step at which it ended.

    Args:
        env_id: an environment with a vector as observation and a finite number of actions.
        correction: option of ``unstale.CorrectedAdam``; ``"none"`` is Adam.
        steps: steps of all environments together.
        seed: of network, exploration and environments.
        lr: learning rate.
        gamma: discount.
        lam: λ of the returns.
        width: of the hidden layers.
        envs: number of environments.
        rollout: steps of each environment between updates.
        minibatches: parts into which the environments are divided in an epoch.
        epochs: passes over a rollout.
        exploration: share of ``steps`` in which ε falls from 1 to ``final_epsilon``.
        final_epsilon: probability of a random action after that.
        max_norm: bound on the norm of the gradient.
        print_every: steps between printed lines.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    env = gym.make_vec(env_id, envs, "sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})
    observations, actions = env.single_observation_space.shape[0], int(env.single_action_space.n)
    network = make_network(observations, width, actions)
    optimizer = unstale.CorrectedAdam(network, lr=lr, correction=correction)  # unstale: not torch.optim.Adam

    shape = (rollout, envs)
    states, next_states = (torch.zeros(*shape, observations) for _ in range(2))
    taken, rewards = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
    terminated, truncated = (torch.zeros(shape, dtype=torch.bool) for _ in range(2))

    curve: list[tuple[int, float]] = []
    scores, loss, start = np.zeros(envs), float("nan"), time.perf_counter()
    state, _ = env.reset(seed=seed)
    print(f"{'steps':>8} {'seconds':>8} {'score':>8} {'loss':>10}")
    for step in range(0, steps, rollout * envs):
        epsilon = max(final_epsilon, 1 - (1 - final_epsilon) * step / (exploration * steps))
        for t in range(rollout):
            states[t] = torch.as_tensor(state)
            with torch.no_grad():
                greedy = network(states[t]).argmax(-1)
            random = torch.randint(actions, (envs,), generator=generator)
            taken[t] = torch.where(torch.rand(envs, generator=generator) < epsilon, random, greedy)
            state, reward, ended, cut, info = env.step(taken[t].numpy())
            next_states[t] = torch.as_tensor(final_observations(state, info))
            rewards[t], terminated[t], truncated[t] = map(torch.as_tensor, (reward, ended, cut))
            scores += reward
            for i in np.flatnonzero(ended | cut):
                curve.append((step + (t + 1) * envs, float(scores[i])))
                scores[i] = 0.0

        for _ in range(epochs):
            for part in torch.randperm(envs, generator=generator).chunk(minibatches):
                value = network(states[:, part]).gather(-1, taken[:, part, None]).squeeze(-1)
                next_value = network(next_states[:, part]).max(-1).values  # unstale: not under torch.no_grad()
                target = unstale.targets.td_lambda(
                    rewards[:, part], next_value, terminated[:, part], truncated[:, part], gamma, lam
                )
                loss = float(optimizer.backward(value, target))  # unstale: not loss.backward()
                optimizer.clip_grad_norm_(max_norm)  # unstale: not torch.nn.utils.clip_grad_norm_
                optimizer.step()
                optimizer.zero_grad()

        done = step + rollout * envs
        if done // print_every > step // print_every or done >= steps:
            print_row(done, start, curve, loss)
    env.close()
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, parameter in inspect.signature(main).parameters.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(parameter.default), default=parameter.default)
    main(**vars(parser.parse_args()))
