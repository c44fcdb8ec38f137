"""n-step Sarsa with a small network on parallel Atari games, without replay buffer and target network.

After every ``n`` steps of all games the network is updated once from these steps::

    Q(s_t, a_t)  →  r_t + γ r_{t+1} + … + γ^k Q(s_{t+k}, a_{t+k})

where ``t + k`` is the end of these ``n`` steps, or of the game, and ``a_{t+k}`` the action that is taken there. The
target moves with the network, and the corrected optimizer accounts for that; with ``correction="none"`` it is ordinary
Adam.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import unstale

from ..errors import UserError
from ..problems.n_step_returns import n_step_returns
from .games import Policy, action_count, check_game, make_games
from .scoring import SCORE_WINDOW


@dataclass(frozen=True)
class Settings:
    """All settings of a run."""

    game: str = "ms_pacman"
    steps: int = 1_000_000  # of all games together
    games: int = 16  # in parallel
    width: int = 16  # of the network
    n_step: int = 5
    gamma: float = 0.99
    lr: float = 5e-4
    betas: tuple[float, float] = (0.9, 0.999)
    correction: str = "auto"  # this and the next two: see unstale.CorrectedAdam
    horizon: int | None = None
    trust: float | None = 1.0
    # ε decreases linearly from the first number to the second in ``epsilon_steps`` steps.
    epsilon: tuple[float, float] = (1.0, 0.05)
    epsilon_steps: int = 50_000
    # Whether a lost life terminates the episode for the learner. Scores are those of whole games.
    life_ends_episode: bool = False
    seed: int = 0

    def check(self) -> None:
        """Raises ``UserError`` for invalid settings."""
        check_game(self.game)
        for name in ("steps", "games", "width", "n_step", "epsilon_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")

    def epsilon_at(self, steps: int) -> float:
        first, last = self.epsilon
        return first + (last - first) * min(1.0, steps / self.epsilon_steps)


class QNetwork(nn.Module):
    """Action values of frames, uint8 ``[m, 4, 84, 84]``. It has 12,745 parameters for width 16 and 9 actions."""

    def __init__(self, actions: int, width: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels in (4, width, width, width):
            layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.LeakyReLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, actions, 6), nn.Flatten())
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                # With torch's default initialization, differences between frames shrink to 1 % over five layers.
                nn.init.kaiming_normal_(layer.weight, a=0.01)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, frames: Tensor) -> Tensor:
        weight = next(self.parameters())
        # On a CPU these convolutions are several times as fast in this memory format.
        return self.layers(frames.to(weight, memory_format=torch.channels_last) / 255)


@dataclass(frozen=True)
class EpsilonGreedy:
    """The ε-greedy policy of a network of action values."""

    game: str
    model: QNetwork
    epsilon: float = 0.01

    @torch.no_grad()
    def act(self, observations: Tensor, generator: torch.Generator) -> Tensor:
        """Actions [n], on the CPU."""
        q = self.model(observations)
        random = torch.randint(q.shape[1], (len(q),), generator=generator)
        return torch.where(torch.rand(len(q), generator=generator) < self.epsilon, random, q.argmax(1).cpu())


class Rollout(NamedTuple):
    """``n`` steps of every game. States and actions have one more entry: the final state and the action taken there.
    After the last step of a game, the next state is the first one of the next game."""

    states: Tensor  # uint8 [n + 1, games, 4, 84, 84]
    actions: Tensor  # [n + 1, games]
    rewards: Tensor  # [n, games], and so are those below
    terminated: Tensor  # whether the episode terminated with this step
    truncated: Tensor  # whether the game was cut off after this step


class Batch(NamedTuple):
    """Samples of n-step Sarsa, with targets ``reward + discount · Q(next_state, next_action)``, where "next" is several
    steps ahead. The next state is repeated for each sample that shares it: per-sample gradients of shared rows are much
    slower."""

    state: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor  # γ^k, and 0 where the episode terminated on the way
    next_state: Tensor
    next_action: Tensor
    weight: Tensor  # 0 if the game was cut off on the way, and the next state is unknown; otherwise 1

    def to(self, device: torch.device) -> Batch:
        return Batch(*(part.to(device) for part in self))


def sarsa_batch(rollout: Rollout, gamma: float) -> Batch:
    """Every step of a rollout as a sample that looks ahead to the end of the rollout or of the episode.

    Two steps of one game, from state 0 to 1 to 2, with rewards 1 and 2:

    >>> states, actions = torch.tensor([[0], [1], [2]]), torch.tensor([[5], [6], [7]])
    >>> rewards, never = torch.tensor([[1.0], [2.0]]), torch.tensor([[False], [False]])
    >>> batch = sarsa_batch(Rollout(states, actions, rewards, never, never), gamma=0.5)
    >>> batch.reward, batch.discount, batch.next_state, batch.next_action
    (tensor([2., 2.]), tensor([0.2500, 0.5000]), tensor([2, 2]), tensor([7, 7]))
    """
    length, games = rollout.rewards.shape
    reward, discount, steps = n_step_returns(rollout.rewards, rollout.terminated, rollout.truncated, gamma, n=length)
    end = torch.arange(length, device=steps.device)[:, None] + steps
    cut_off = (rollout.truncated & ~rollout.terminated).gather(0, end - 1)
    following = (end * games + torch.arange(games, device=steps.device)).flatten()
    states, actions = rollout.states.flatten(0, 1), rollout.actions.flatten()
    return Batch(
        state=states[: length * games],
        action=actions[: length * games],
        reward=reward.flatten(),
        discount=(discount * ~cut_off).flatten(),
        next_state=states[following],
        next_action=actions[following],
        weight=1 - cut_off.flatten().to(reward),
    )


def sarsa_values(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """The predictions of a batch and their targets, both with gradients."""
    value = model(batch.state).gather(1, batch.action[:, None]).squeeze(1)
    next_value = model(batch.next_state).gather(1, batch.next_action[:, None]).squeeze(1)
    return value, batch.reward + batch.discount * next_value


class Games:
    """Games in progress. They are stepped in background threads while the network is updated: the next action was
    chosen before."""

    def __init__(self, settings: Settings, policy: Policy, generator: torch.Generator, device: torch.device) -> None:
        self._settings, self._generator, self._device = settings, generator, device
        seed = int(torch.randint(2**31, (), generator=generator))
        self._games = make_games(settings.game, settings.games, seed)
        frames, info = self._games.reset()
        self._lives, self._scores = info["lives"], np.zeros(settings.games)
        self._is_stepping = False  # whether actions were sent whose outcome was not received yet
        self._send_actions(frames, policy)

    def play(self, policy: Policy) -> tuple[Rollout, list[float]]:
        """The next ``n`` steps of every game, and the scores of the games that ended."""
        states, actions, steps, finished = [self._state], [self._action], [], []
        for _ in range(self._settings.n_step):
            self._is_stepping = False
            frames, rewards, terminated, truncated, info = self._games.recv()
            over, lost = terminated | truncated, info["lives"] < self._lives
            self._lives = info["lives"]
            self._scores += rewards
            finished += self._scores[over].tolist()
            self._scores[over] = 0
            self._send_actions(frames, policy)
            states.append(self._state)
            actions.append(self._action)
            ended = terminated | lost if self._settings.life_ends_episode else terminated
            steps.append((np.sign(rewards, dtype=np.float32), ended, truncated))
        outcomes = (torch.from_numpy(np.stack(part)) for part in zip(*steps, strict=True))
        return Rollout(torch.stack(states), torch.stack(actions), *outcomes), finished

    def close(self) -> None:
        if self._is_stepping:
            self._games.recv()
        self._games.close()

    def _send_actions(self, frames: np.ndarray, policy: Policy) -> None:
        self._state = torch.from_numpy(frames).to(self._device)
        self._action = policy.act(self._state, self._generator)
        self._games.send(self._action.numpy())
        self._is_stepping = True


class Sarsa:
    """The training of a network by n-step Sarsa."""

    def __init__(self, settings: Settings, device: torch.device | str = "cpu") -> None:
        settings.check()
        self.settings, self.device = settings, torch.device(device)
        self._generator = torch.Generator().manual_seed(settings.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self.model = QNetwork(action_count(settings.game), settings.width).float().to(self.device)
        self.optimizer = unstale.CorrectedAdam(
            self.model,
            lr=settings.lr,
            betas=settings.betas,
            correction=settings.correction,
            horizon=settings.horizon,
            trust=settings.trust,
        )
        self.steps, self.seconds = 0, 0.0
        self.scores = deque[float](maxlen=SCORE_WINDOW)
        self.steps_per_iteration, self.updates_per_iteration = settings.n_step * settings.games, 1

    def policy(self, epsilon: float = 0.01) -> EpsilonGreedy:
        return EpsilonGreedy(self.settings.game, self.model, epsilon)

    def run(self) -> Generator[None, None, None]:
        """Alternates between ``n`` steps of every game and an update. A resumed run continues with new games."""
        games = Games(self.settings, self._behavior_policy(), self._generator, self.device)
        try:
            while self.steps < self.settings.steps:
                began = time.perf_counter()
                rollout, scores = games.play(self._behavior_policy())
                self.learn(rollout)
                self.scores.extend(scores)
                self.steps += self.steps_per_iteration
                self.seconds += time.perf_counter() - began
                yield
        finally:
            games.close()

    def learn(self, rollout: Rollout) -> None:
        batch = sarsa_batch(rollout, self.settings.gamma).to(self.device)
        # A function, so that drift can be measured by evaluating the batch again.
        self.optimizer.backward(partial(sarsa_values, self.model, batch), weight=batch.weight)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def score(self) -> float:
        """The mean score of the last games; NaN before the first has finished. The first to finish are short."""
        return float(np.mean(self.scores)) if self.scores else math.nan

    def _behavior_policy(self) -> EpsilonGreedy:
        return self.policy(self.settings.epsilon_at(self.steps))

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, except the games in progress."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "progress": (self.steps, self.seconds, list(self.scores)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"].cpu())
        self.steps, self.seconds, scores = state["progress"]
        self.scores.extend(scores)
