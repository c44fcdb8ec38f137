"""PPO for classic control in one file, with corrected momentum in its critic.

Proximal policy optimization with separate networks for actor and critic. A minibatch is the whole trajectories of some
environments, so that the critic's λ-returns can be computed with the critic as it is. Lines that differ from a program
with ``torch.optim.Adam`` are marked with ``# unstale:``.

    pip install . gymnasium
    python examples/ppo.py     # --correction none is Adam; --help lists all settings
"""

from __future__ import annotations

import argparse
import inspect
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import nn

import unstale  # unstale: new


def make_network(inputs: int, width: int, outputs: int, last_gain: float) -> nn.Sequential:
    """A network with two hidden layers and orthogonal weights."""
    layers = [nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)]
    for layer in layers[::2]:
        nn.init.orthogonal_(layer.weight, last_gain if layer is layers[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


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
    lam: float = 0.95,
    width: int = 64,
    envs: int = 8,
    rollout: int = 64,
    minibatches: int = 4,
    epochs: int = 4,
    clip: float = 0.2,
    value_clip: float = 0.0,
    entropy_weight: float = 0.01,
    max_norm: float = 0.5,
    print_every: int = 2048,
) -> list[tuple[int, float]]:
    """Train, and return the return of every episode, with the step at which it ended.

    Args:
        env_id: an environment with a vector as observation and a finite number of actions.
        correction: option of ``unstale.CorrectedAdam``; ``"none"`` is Adam.
        steps: steps of all environments together.
        seed: of networks, actions and environments.
        lr: learning rate of actor and critic.
        gamma: discount.
        lam: λ of advantages and returns.
        width: of the hidden layers.
        envs: number of environments.
        rollout: steps of each environment between updates.
        minibatches: parts into which the environments are divided in an epoch.
        epochs: passes over a rollout.
        clip: bound on the change of probability ratios.
        value_clip: bound on the change of values, or 0 for none.
        entropy_weight: of the entropy in the loss of the actor.
        max_norm: bound on the norm of each gradient.
        print_every: steps between printed lines.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    env = gym.make_vec(env_id, envs, "sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})
    observations, actions = env.single_observation_space.shape[0], int(env.single_action_space.n)
    actor = make_network(observations, width, actions, last_gain=0.01)
    critic = make_network(observations, width, 1, last_gain=1.0)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=lr, eps=1e-5)
    optimizer = unstale.CorrectedAdam(critic, lr=lr, eps=1e-5, correction=correction)  # unstale: not torch.optim.Adam

    shape = (rollout, envs)
    states, next_states = (torch.zeros(*shape, observations) for _ in range(2))
    taken, rewards = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
    terminated, truncated = (torch.zeros(shape, dtype=torch.bool) for _ in range(2))

    curve: list[tuple[int, float]] = []
    scores, loss, start = np.zeros(envs), float("nan"), time.perf_counter()
    state, _ = env.reset(seed=seed)
    print(f"{'steps':>8} {'seconds':>8} {'score':>8} {'loss':>10}")
    for step in range(0, steps, rollout * envs):
        for t in range(rollout):
            states[t] = torch.as_tensor(state)
            with torch.no_grad():
                taken[t] = torch.distributions.Categorical(logits=actor(states[t])).sample()
            state, reward, ended, cut, info = env.step(taken[t].numpy())
            next_states[t] = torch.as_tensor(final_observations(state, info))
            rewards[t], terminated[t], truncated[t] = map(torch.as_tensor, (reward, ended, cut))
            scores += reward
            for i in np.flatnonzero(ended | cut):
                curve.append((step + (t + 1) * envs, float(scores[i])))
                scores[i] = 0.0
        with torch.no_grad():
            old_log_probs = actor(states).log_softmax(-1).gather(-1, taken[..., None]).squeeze(-1)
            old_values, next_values = critic(states).squeeze(-1), critic(next_states).squeeze(-1)
            returns = unstale.targets.td_lambda(rewards, next_values, terminated, truncated, gamma, lam)
            advantages = returns - old_values

        for _ in range(epochs):
            for part in torch.randperm(envs, generator=generator).chunk(minibatches):
                value, next_value = critic(states[:, part]).squeeze(-1), critic(next_states[:, part]).squeeze(-1)
                # unstale: returns of the current critic, not detached
                target = unstale.targets.td_lambda(
                    rewards[:, part], next_value, terminated[:, part], truncated[:, part], gamma, lam
                )
                value_loss: Any = "half_squared"
                if value_clip:
                    value_loss = unstale.losses.clipped_value(old_values[:, part], value_clip)
                loss = float(optimizer.backward(value, target, loss=value_loss))  # unstale: not loss.backward()
                optimizer.clip_grad_norm_(max_norm)  # unstale: not torch.nn.utils.clip_grad_norm_
                optimizer.step()
                optimizer.zero_grad()

                log_probs = actor(states[:, part]).log_softmax(-1)
                entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
                log_prob = log_probs.gather(-1, taken[:, part, None]).squeeze(-1)
                ratio = (log_prob - old_log_probs[:, part]).exp()
                advantage = advantages[:, part]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                surrogate = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
                actor_optimizer.zero_grad()
                (-surrogate - entropy_weight * entropy).backward()
                torch.nn.utils.clip_grad_norm_(actor.parameters(), max_norm)
                actor_optimizer.step()

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
