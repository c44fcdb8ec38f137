"""Control by n-step Sarsa: a small network learns to play while it plays.

Many games run side by side; there is no replay buffer and no target network. After every ``n`` steps of all games the
network learns from those steps and forgets them::

    Q(s_t, a_t)  →  r_t + γ r_{t+1} + … + γ^k Q(s_{t+k}, a_{t+k})

where ``t + k`` is the end of those ``n`` steps, or of the game, and ``a_{t+k}`` the action that is really taken there.
The target is the network's own and moves with it, which is what the corrected optimizer follows; with
``correction="none"`` this is ordinary Adam.
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
from .games import Policy, action_count, check_game, make_games
from .returns import n_step_parts
from .scoring import LAST_GAMES


@dataclass(frozen=True)
class Settings:
    """What is learned, and how."""

    game: str = "ms_pacman"
    steps: int = 1_000_000  # of all games together
    games: int = 16  # side by side
    width: int = 16  # of the network
    n_step: int = 5
    gamma: float = 0.99
    lr: float = 5e-4
    betas: tuple[float, float] = (0.9, 0.999)
    correction: str = "auto"  # and the next two: see unstale.CorrectedAdam
    horizon: int | None = None
    trust: float | None = 1.0
    # The share of random actions falls from the first number to the second over so many steps, then stays.
    epsilon: tuple[float, float] = (1.0, 0.05)
    epsilon_steps: int = 50_000
    # Whether nothing is expected after a lost life, though the game goes on. The score is that of whole games.
    life_ends_episode: bool = False
    seed: int = 0

    def check(self) -> None:
        """Refuses, in one line, what cannot be run."""
        check_game(self.game)
        for name in ("steps", "games", "width", "n_step", "epsilon_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")

    def epsilon_at(self, steps: int) -> float:
        first, last = self.epsilon
        return first + (last - first) * min(1.0, steps / self.epsilon_steps)


class QNetwork(nn.Module):
    """The small model: 12,745 parameters at a width of 16 with 9 actions. Takes frames as they are, bytes of
    ``[m, 4, 84, 84]``."""

    def __init__(self, actions: int, width: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels in (4, width, width, width):
            layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.LeakyReLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, actions, 6), nn.Flatten())
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                # As torch draws them, five such layers leave a hundredth of what tells one frame from another.
                nn.init.kaiming_normal_(layer.weight, a=0.01)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, frames: Tensor) -> Tensor:
        weight = next(self.parameters())
        # Channels last: on a CPU these convolutions are then several times as fast.
        return self.layers(frames.to(weight, memory_format=torch.channels_last) / 255)


@dataclass(frozen=True)
class EpsilonGreedy:
    """Takes the action of the highest value, and a random one with probability ``epsilon``."""

    game: str
    model: QNetwork
    epsilon: float = 0.01

    @torch.no_grad()
    def act(self, observations: Tensor, numbers: torch.Generator) -> Tensor:
        """The actions of games with these observations, on the CPU."""
        q = self.model(observations)
        random = torch.randint(q.shape[1], (len(q),), generator=numbers)
        return torch.where(torch.rand(len(q), generator=numbers) < self.epsilon, random, q.argmax(1).cpu())


class Rollout(NamedTuple):
    """``n`` steps of every game. States and actions have one more: where the steps led to, and what is done there.
    After the last step of a game that is the first state of the next."""

    states: Tensor  # uint8 [n + 1, games, 4, 84, 84]
    actions: Tensor  # [n + 1, games]
    rewards: Tensor  # [n, games], and so are those below
    terminated: Tensor  # nothing is expected after this step
    truncated: Tensor  # the game was cut off after this step


class Batch(NamedTuple):
    """Samples of n-step Sarsa, whose targets are ``reward + discount · Q(next_state, next_action)``, where "next" is
    several steps ahead. Samples share their next state, but each has a row of its own for it: the per-sample gradients
    of rows that are shared take many times as long."""

    state: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor  # γ^k, and 0 where the episode terminated on the way
    next_state: Tensor
    next_action: Tensor
    weight: Tensor  # 0 where the game was cut off on the way, so that nothing is known of what follows; otherwise 1

    def to(self, device: torch.device) -> Batch:
        return Batch(*(part.to(device) for part in self))


def sarsa_batch(rollout: Rollout, gamma: float) -> Batch:
    """Every step of the rollout as a sample that looks ahead to its end, or to the end of the episode.

    Two steps of one game, from state 0 to 1 to 2, with rewards 1 and 2:

    >>> states, actions = torch.tensor([[0], [1], [2]]), torch.tensor([[5], [6], [7]])
    >>> rewards, never = torch.tensor([[1.0], [2.0]]), torch.tensor([[False], [False]])
    >>> batch = sarsa_batch(Rollout(states, actions, rewards, never, never), gamma=0.5)
    >>> batch.reward, batch.discount, batch.next_state, batch.next_action
    (tensor([2., 2.]), tensor([0.2500, 0.5000]), tensor([2, 2]), tensor([7, 7]))
    """
    steps = len(rollout.rewards)
    over, cut_off = rollout.terminated | rollout.truncated, rollout.truncated & ~rollout.terminated
    reward, discount, following = n_step_parts(rollout.rewards, over, gamma, n=steps)
    unknown, _, _ = n_step_parts(cut_off.to(reward), over, 1.0, n=steps)
    states, actions = rollout.states.flatten(0, 1), rollout.actions.flatten()
    return Batch(
        state=states[: len(reward)],
        action=actions[: len(reward)],
        reward=reward,
        discount=discount,
        next_state=states[following],
        next_action=actions[following],
        weight=1 - unknown,
    )


def sarsa_values(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """The predictions of a batch and their targets, both live."""
    value = model(batch.state).gather(1, batch.action[:, None]).squeeze(1)
    next_value = model(batch.next_state).gather(1, batch.next_action[:, None]).squeeze(1)
    return value, batch.reward + batch.discount * next_value


class Games:
    """Games in progress, played by a network that learns. They go on in threads of their own while it does: which
    action is next has been decided before."""

    def __init__(self, settings: Settings, policy: Policy, numbers: torch.Generator, device: torch.device) -> None:
        self._settings, self._numbers, self._device = settings, numbers, device
        seed = int(torch.randint(2**31, (), generator=numbers))
        self._games = make_games(settings.game, settings.games, seed)
        frames, info = self._games.reset()
        self._lives, self._scores = info["lives"], np.zeros(settings.games)
        self._under_way = False  # whether actions were sent whose outcome was not asked for yet
        self._decide(frames, policy)

    def play(self, policy: Policy) -> tuple[Rollout, list[float]]:
        """The next steps of every game, and the scores of the games that ended meanwhile."""
        states, actions, steps, finished = [self._state], [self._action], [], []
        for _ in range(self._settings.n_step):
            self._under_way = False
            frames, rewards, terminated, truncated, info = self._games.recv()
            over, lost = terminated | truncated, info["lives"] < self._lives
            self._lives = info["lives"]
            self._scores += rewards
            finished += self._scores[over].tolist()
            self._scores[over] = 0
            self._decide(frames, policy)
            states.append(self._state)
            actions.append(self._action)
            ended = terminated | lost if self._settings.life_ends_episode else terminated
            steps.append((np.sign(rewards, dtype=np.float32), ended, truncated))
        outcomes = (torch.from_numpy(np.stack(part)) for part in zip(*steps, strict=True))
        return Rollout(torch.stack(states), torch.stack(actions), *outcomes), finished

    def close(self) -> None:
        if self._under_way:
            self._games.recv()
        self._games.close()

    def _decide(self, frames: np.ndarray, policy: Policy) -> None:
        self._state = torch.from_numpy(frames).to(self._device)
        self._action = policy.act(self._state, self._numbers)
        self._games.send(self._action.numpy())
        self._under_way = True


class Sarsa:
    """A network that learns to play: ``run`` plays and learns in turns."""

    def __init__(self, settings: Settings, device: torch.device | str = "cpu") -> None:
        settings.check()
        self.settings, self.device = settings, torch.device(device)
        self._numbers = torch.Generator().manual_seed(settings.seed)
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
        self.scores = deque[float](maxlen=LAST_GAMES)
        self.steps_a_turn, self.updates_a_turn = settings.n_step * settings.games, 1

    def policy(self, epsilon: float = 0.01) -> EpsilonGreedy:
        return EpsilonGreedy(self.settings.game, self.model, epsilon)

    def run(self) -> Generator[None, None, None]:
        """Play ``n`` steps in every game and learn from them, turn by turn. A run that is begun again goes on with new
        games."""
        games = Games(self.settings, self._acting(), self._numbers, self.device)
        try:
            while self.steps < self.settings.steps:
                began = time.perf_counter()
                rollout, scores = games.play(self._acting())
                self.learn(rollout)
                self.scores.extend(scores)
                self.steps += self.steps_a_turn
                self.seconds += time.perf_counter() - began
                yield
        finally:
            games.close()

    def learn(self, rollout: Rollout) -> None:
        batch = sarsa_batch(rollout, self.settings.gamma).to(self.device)
        # A function, so that those who measure drift can evaluate the batch again.
        self.optimizer.backward(partial(sarsa_values, self.model, batch), weight=batch.weight)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def score(self) -> float:
        """The mean of the last games that ended, of which the first of all are the short ones; not a number before."""
        return float(np.mean(self.scores)) if self.scores else math.nan

    def _acting(self) -> EpsilonGreedy:
        return self.policy(self.settings.epsilon_at(self.steps))

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of the run depends on, but for the games under way."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "numbers": self._numbers.get_state(),
            "progress": (self.steps, self.seconds, list(self.scores)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._numbers.set_state(state["numbers"].cpu())
        self.steps, self.seconds, scores = state["progress"]
        self.scores.extend(scores)
