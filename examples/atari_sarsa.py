"""Learn to play an Atari game by 5-step Sarsa: a network of 12,745 parameters, no replay buffer, no target network.

Several games run in parallel. After every 5 steps of all games the network is trained on those steps, once. Its targets
bootstrap from the network itself, so they move, and Adam's momentum contains gradients of old targets. ``--correction``
corrects them.

    pip install . gymnasium ale-py
    python examples/atari_sarsa.py                        # Adam
    python examples/atari_sarsa.py --correction window    # the same, corrected

Random play scores about 220 points in Ms. Pac-Man. Improving on that takes a few minutes on a CPU.
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

GAMMA, N_STEP = 0.99, 5
EXPLORING, LEAST_RANDOM = 50_000, 0.05  # epsilon decays linearly from 1 to LEAST_RANDOM over EXPLORING steps


class QNetwork(nn.Module):
    """Values of all actions, ``[m, actions]``, from the last four frames, bytes of ``[m, 4, 84, 84]``."""

    def __init__(self, actions: int, width: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels in (4, width, width, width):
            layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.LeakyReLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, actions, 6), nn.Flatten()).float()
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                # With torch's default initialization, differences between frames shrink to 1 % over five layers.
                nn.init.kaiming_normal_(layer.weight, a=0.01)
                nn.init.zeros_(layer.bias)

    def forward(self, frames: Tensor) -> Tensor:
        # Channels last: on a CPU these convolutions are then several times as fast.
        return self.layers(frames.to(torch.float32, memory_format=torch.channels_last) / 255)


def make_games(game: str, count: int) -> ale_py.vector_env.AtariVectorEnv:
    """Games that begin again in the same step in which they end, with rewards as they are."""
    return ale_py.vector_env.AtariVectorEnv(
        game, count, repeat_action_probability=0.25, reward_clipping=False, autoreset_mode=AutoresetMode.SAME_STEP
    )


@torch.no_grad()
def choose(model: QNetwork, state: Tensor, steps: int) -> Tensor:
    """Epsilon-greedy actions."""
    epsilon = max(LEAST_RANDOM, 1 - (1 - LEAST_RANDOM) * steps / EXPLORING)
    values = model(state)
    random = torch.randint_like(values[:, 0], values.shape[1], dtype=torch.int64)
    return torch.where(torch.rand(len(values), device=values.device) < epsilon, random, values.argmax(1))


def rewards_ahead(rewards: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
    """For every step ``[t, games]``, the discounted rewards from there to the last step, or to the end of the game; and
    the discount of what is expected after the last step, which is 0 if the game ended before."""
    gains, discounts = [torch.zeros_like(rewards[0])], [torch.ones_like(rewards[0])]
    for reward, over in zip(reversed(rewards), reversed(ended), strict=True):
        gains.append(reward + GAMMA * ~over * gains[-1])
        discounts.append(GAMMA * ~over * discounts[-1])
    return torch.stack(gains[:0:-1]), torch.stack(discounts[:0:-1])


def main(
    game: str = "ms_pacman",
    correction: str = "none",
    steps: int = 200_000,
    games: int = 16,
    lr: float = 5e-4,
    device: str = "cpu",
    seed: int = 0,
    print_every: int = 100,
) -> list[float]:
    """Learn from so many steps of all games together, and return the scores of the games that ended, in order."""
    torch.manual_seed(seed)
    envs = make_games(game, games)
    frames, _ = envs.reset(seed=seed)
    model = QNetwork(int(envs.single_action_space.n)).to(device)
    options = {"horizon": 20} if correction in ("auto", "window", "oracle") else {}
    optimizer = unstale.CorrectedAdam(model, lr=lr, correction=correction, **options)

    finished: list[float] = []
    score, began, made = np.zeros(games), time.perf_counter(), 0
    state = torch.from_numpy(frames).to(device)
    action = choose(model, state, made)
    print(f"{'steps':>10}{'seconds':>10}{'score':>10}{'loss':>10}")
    while made < steps:
        # Play.
        states, actions, rewards, ended = [state], [action], [], []
        for _ in range(N_STEP):
            frames, reward, terminated, truncated, _ = envs.step(action.cpu().numpy())
            over = terminated | truncated
            score += reward
            finished += score[over].tolist()
            score[over] = 0
            state = torch.from_numpy(frames).to(device)
            action = choose(model, state, made)
            states.append(state)
            actions.append(action)
            rewards.append(torch.as_tensor(np.sign(reward), dtype=torch.float32, device=device))
            ended.append(torch.as_tensor(over, device=device))
        made += N_STEP * games

        # Learn. All samples of a game bootstrap from the same state, but each has its own row for it, so that
        # per-sample gradients need only one backward pass.
        gain, discount = (part.flatten() for part in rewards_ahead(torch.stack(rewards), torch.stack(ended)))
        chosen, next_chosen = torch.cat(actions[:-1]), action.repeat(N_STEP)
        value = model(torch.cat(states[:-1])).gather(1, chosen[:, None]).squeeze(1)
        next_value = model(state.repeat(N_STEP, 1, 1, 1)).gather(1, next_chosen[:, None]).squeeze(1)
        loss = optimizer.backward(value, gain + discount * next_value)  # the target is not detached
        optimizer.step()
        optimizer.zero_grad()

        if made // (N_STEP * games) % print_every == 0:
            mean = np.mean(finished[-50:]) if finished else np.nan
            print(f"{made:>10,}{time.perf_counter() - began:>10.0f}{mean:>10.0f}{loss.item():>10.4f}", flush=True)
    envs.close()
    return finished


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="ms_pacman")
    parser.add_argument("--correction", default="none", help="none, diagonal, window, ...")
    parser.add_argument("--steps", type=int, default=200_000, help="of all games together")
    parser.add_argument("--games", type=int, default=16, help="number of parallel games")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
