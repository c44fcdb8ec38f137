"""Learn to play an Atari game by proximal policy optimization, with a critic whose momentum can be corrected.

PPO with two changes. The critic's targets are 5-step returns that bootstrap from the current network. The critic uses
``optimizer.backward`` with a target that is not detached; the actor's gradient is added by the usual
``loss.backward()``, and is part of the same momentum, uncorrected.

    pip install . gymnasium ale-py
    python examples/atari_ppo.py --device cuda                        # Adam
    python examples/atari_ppo.py --device cuda --correction window    # the same with a corrected critic

Random play scores about 220 points in Ms. Pac-Man.
"""

from __future__ import annotations

import argparse
import time

import ale_py.vector_env
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

import unstale

GAMMA, LAMBDA, N_STEP = 0.99, 0.95, 5
EPOCHS, CLIP, ENTROPY, VALUE_WEIGHT, MAX_NORM = 4, 0.1, 0.01, 0.5, 0.5


class ActorCritic(nn.Module):
    """Logits of actions ``[m, actions]`` and values ``[m]``, from the last four frames: bytes, ``[m, 4, 84, 84]``."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(4, 32, 8, stride=4), nn.Conv2d(32, 64, 4, stride=2), nn.Conv2d(64, 64, 3)]
        layers = [layer for convolution in convolutions for layer in (convolution, nn.ReLU())]
        self.trunk = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU())
        self.policy, self.value = nn.Linear(512, actions), nn.Linear(512, 1)
        nn.init.zeros_(self.policy.weight)  # all actions begin about equally likely
        self.float()

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(frames.to(torch.float32) / 255)
        return self.policy(features), self.value(features).squeeze(-1)


def make_games(game: str, count: int) -> ale_py.vector_env.AtariVectorEnv:
    """Games that begin again in the same step in which they end, with rewards as they are."""
    return ale_py.vector_env.AtariVectorEnv(
        game, count, repeat_action_probability=0.25, reward_clipping=False, autoreset_mode=AutoresetMode.SAME_STEP
    )


def rewards_ahead(rewards: Tensor, ended: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For every step ``[t, games]`` of a rollout: the discounted rewards of the next 5 steps, or fewer if the rollout
    or the game ends first; the discount of what is expected after them; and the step at which that is."""
    steps = len(rewards)
    gain, discount = torch.zeros_like(rewards), torch.ones_like(rewards)
    for k in range(min(N_STEP, steps)):
        gain[: steps - k] += discount[: steps - k] * rewards[k:]
        discount[: steps - k] *= GAMMA * ~ended[k:]
    step = torch.arange(steps, device=rewards.device)[:, None].expand_as(rewards)
    return gain, discount, (step + N_STEP).clamp(max=steps)


def policy_loss(logits: Tensor, action: Tensor, old_log_prob: Tensor, advantage: Tensor) -> Tensor:
    """The clipped objective with an entropy bonus."""
    new = torch.distributions.Categorical(logits=logits)
    ratio = (new.log_prob(action) - old_log_prob).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    return -gain.mean() - ENTROPY * new.entropy().mean()


def main(
    game: str = "ms_pacman",
    correction: str = "none",
    steps: int = 1_000_000,
    games: int = 16,
    rollout: int = 64,
    minibatch: int = 256,
    lr: float = 2.5e-4,
    device: str = "cpu",
    seed: int = 0,
) -> list[float]:
    """Learn from so many steps of all games together, and return the scores of the games that ended, in order."""
    torch.manual_seed(seed)
    envs = make_games(game, games)
    frames, info = envs.reset(seed=seed)
    model = ActorCritic(int(envs.single_action_space.n)).to(device)
    options = {"horizon": 20} if correction in ("auto", "window", "oracle") else {}
    optimizer = unstale.CorrectedAdam(model, lr=lr, eps=1e-5, correction=correction, **options)

    states = torch.empty(rollout + 1, games, 4, 84, 84, dtype=torch.uint8, device=device)
    actions = torch.empty(rollout, games, dtype=torch.int64, device=device)
    log_probs, rewards = (torch.empty(rollout, games, dtype=torch.float32, device=device) for _ in range(2))
    values = torch.empty(rollout + 1, games, dtype=torch.float32, device=device)
    ended = torch.empty(rollout, games, dtype=torch.bool, device=device)
    finished: list[float] = []
    score, lives, began = np.zeros(games), info["lives"], time.perf_counter()
    print(f"{'steps':>10}{'seconds':>10}{'score':>10}{'loss':>10}")
    for made in range(rollout * games, steps + 1, rollout * games):
        # Play.
        with torch.no_grad():
            for t in range(rollout):
                states[t] = torch.from_numpy(frames)
                logits, values[t] = model(states[t])
                policy = torch.distributions.Categorical(logits=logits)
                actions[t] = policy.sample()
                log_probs[t] = policy.log_prob(actions[t])
                frames, reward, terminated, truncated, info = envs.step(actions[t].cpu().numpy())
                over = terminated | truncated
                score += reward
                finished += score[over].tolist()
                score[over] = 0
                rewards[t] = torch.from_numpy(np.sign(reward))
                ended[t] = torch.from_numpy(over | (info["lives"] < lives))  # an episode is a life
                lives = info["lives"]
            states[-1] = torch.from_numpy(frames)
            values[-1] = model(states[-1])[1]

        # Learn.
        returns = unstale.targets.td_lambda(rewards, values[1:], ended, torch.zeros_like(ended), GAMMA, LAMBDA)
        advantage, (gain, discount, ahead) = returns - values[:-1], rewards_ahead(rewards, ended)
        for _ in range(EPOCHS):
            for samples in torch.randperm(rollout * games, device=device).split(minibatch):
                t, g = samples // games, samples % games
                logits, value = model(states[t, g])
                next_value = model(states[ahead[t, g], g])[1]
                target = gain[t, g] + discount[t, g] * next_value  # not detached
                loss = optimizer.backward(value, target, weight=VALUE_WEIGHT)
                policy_loss(logits, actions[t, g], log_probs[t, g], advantage[t, g]).backward()  # adds to .grad
                nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                optimizer.zero_grad()
        mean = np.mean(finished[-50:]) if finished else np.nan
        print(f"{made:>10,}{time.perf_counter() - began:>10.0f}{mean:>10.0f}{loss.item():>10.4f}", flush=True)
    envs.close()
    return finished


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="ms_pacman")
    parser.add_argument("--correction", default="none", help="none, diagonal, window, ...")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of all games together")
    parser.add_argument("--games", type=int, default=16, help="number of parallel games")
    parser.add_argument("--lr", type=float, default=2.5e-4)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
