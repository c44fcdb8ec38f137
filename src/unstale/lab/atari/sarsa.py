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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

import unstale

from ..mistakes import UserError
from .games import action_count, check_game, make_games

RECENT_GAMES = 100  # whose mean is the score of a learning curve
DRIFT = ("drift", "weighted_drift", "agreement", "stale_agreement")


@dataclass(frozen=True)
class Settings:
    """What is learned, and how."""

    game: str = "ms_pacman"
    games: int = 16  # side by side
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
        for name in ("games", "n_step", "epsilon_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")

    def epsilon_at(self, steps: int) -> float:
        first, last = self.epsilon
        return first + (last - first) * min(1.0, steps / self.epsilon_steps)


class QNetwork(nn.Module):
    """The small model: 12,745 parameters with 9 actions. Takes frames as they are, bytes of ``[m, 4, 84, 84]``."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels in (4, 16, 16, 16):
            layers += [nn.Conv2d(channels, 16, 3, stride=2, padding=1), nn.LeakyReLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(16, actions, 6), nn.Flatten())

    def forward(self, frames: Tensor) -> Tensor:
        weight = next(self.parameters())
        # Channels last: on a CPU these convolutions are then several times as fast.
        return self.layers(frames.to(weight, memory_format=torch.channels_last) / 255)


class Policy(Protocol):
    """Whoever can be evaluated."""

    @property
    def game(self) -> str: ...

    def act(self, observations: Tensor, numbers: torch.Generator) -> Tensor: ...


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
    last = rollout.terminated | rollout.truncated
    reward, discount = rollout.rewards.clone(), gamma * (~rollout.terminated).to(rollout.rewards)
    weight = (rollout.terminated | ~rollout.truncated).to(reward)
    for t in reversed(range(steps - 1)):
        reward[t] += torch.where(last[t], 0.0, gamma * reward[t + 1])
        discount[t] *= torch.where(last[t], 1.0, discount[t + 1])
        weight[t] *= torch.where(last[t], 1.0, weight[t + 1])
    return Batch(
        state=rollout.states[:-1].flatten(0, 1),
        action=rollout.actions[:-1].flatten(),
        reward=reward.flatten(),
        discount=discount.flatten(),
        next_state=rollout.states[-1].repeat(steps, *[1] * (rollout.states.ndim - 2)),
        next_action=rollout.actions[-1].repeat(steps),
        weight=weight.flatten(),
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
        self._decide(frames, policy)

    def play(self, policy: Policy) -> tuple[Rollout, list[float]]:
        """The next steps of every game, and the scores of the games that ended meanwhile."""
        states, actions, steps, finished = [self._state], [self._action], [], []
        for _ in range(self._settings.n_step):
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
        self._games.recv()  # the step that is under way
        self._games.close()

    def _decide(self, frames: np.ndarray, policy: Policy) -> None:
        self._state = torch.from_numpy(frames).to(self._device)
        self._action = policy.act(self._state, self._numbers)
        self._games.send(self._action.numpy())


class Point(NamedTuple):
    """One point of a learning curve. What was not measured is not a number."""

    steps: int  # of all games together; each is 4 frames
    seconds: float  # spent in updates
    score: float  # the mean of the last 100 games that ended; the first of all to end are the short ones
    games: int  # how many have ended
    epsilon: float
    loss: float  # of the last update
    staleness: float  # and the next: see unstale.diagnostics.GroupReading
    bounded_share: float
    # See unstale.diagnostics.Drift.
    drift: float = math.nan
    weighted_drift: float = math.nan
    agreement: float = math.nan
    stale_agreement: float = math.nan


class Sarsa:
    """Training in progress: ``update`` plays and learns, and ``train`` does so until there were enough steps.

    A checkpoint (``save``, ``load``) has everything but the games under way: those begin anew.
    """

    def __init__(self, settings: Settings, device: torch.device | str = "cpu") -> None:
        settings.check()
        self.settings, self.device = settings, torch.device(device)
        self._numbers = torch.Generator().manual_seed(settings.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self.model = QNetwork(action_count(settings.game)).float().to(self.device)
        self.optimizer = unstale.CorrectedAdam(
            self.model,
            lr=settings.lr,
            betas=settings.betas,
            correction=settings.correction,
            horizon=settings.horizon,
            trust=settings.trust,
        )
        self.steps, self.seconds, self.curve = 0, 0.0, list[Point]()
        self._ended, self._recent = 0, deque[float](maxlen=RECENT_GAMES)
        self._loss = torch.tensor(math.nan)
        self._games: Games | None = None

    def policy(self, epsilon: float = 0.01) -> EpsilonGreedy:
        return EpsilonGreedy(self.settings.game, self.model, epsilon)

    def update(self) -> None:
        """Play ``n`` steps in every game, and learn from them."""
        began = time.perf_counter()
        policy = self.policy(self.settings.epsilon_at(self.steps))
        if self._games is None:
            self._games = Games(self.settings, policy, self._numbers, self.device)
        rollout, scores = self._games.play(policy)
        batch = sarsa_batch(rollout, self.settings.gamma).to(self.device)
        # A function, so that those who measure drift can evaluate the batch again.
        self._loss = self.optimizer.backward(partial(sarsa_values, self.model, batch), weight=batch.weight)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._recent.extend(scores)
        self._ended += len(scores)
        self.steps += self.settings.n_step * self.settings.games
        self.seconds += time.perf_counter() - began

    def train(
        self,
        steps: int,
        *,
        updates_a_point: int = 100,
        measures_drift: bool = False,
        checkpoint: Path | None = None,
        minutes: float = 5.0,
    ) -> Iterator[Point]:
        """Points of the learning curve until there have been ``steps`` in all, with a checkpoint every so many
        ``minutes`` and at the end. To measure drift, the last updates before each point are watched: those that
        momentum still remembers, 20 at β = 0.9. They take longer, and their time counts."""
        watched = unstale.paper_horizon(self.settings.betas[0]) if measures_drift else 0
        if updates_a_point < max(1, watched):
            raise UserError(f"a point needs at least {max(1, watched)} updates, not {updates_a_point}")
        saved = time.monotonic()
        while self.steps < steps:
            for _ in range(updates_a_point - watched):
                self.update()
            self.curve.append(self._point(self._watched_updates(watched) if watched else None))
            if checkpoint is not None and (self.steps >= steps or time.monotonic() - saved > 60 * minutes):
                self.save(checkpoint)
                saved = time.monotonic()
            yield self.curve[-1]

    def _watched_updates(self, count: int) -> unstale.diagnostics.Drift:
        monitor = unstale.diagnostics.Monitor(self.optimizer)
        for _ in range(count):
            self.update()
        monitor.close()
        return monitor.read()

    def _point(self, measured: unstale.diagnostics.Drift | None) -> Point:
        (group,) = unstale.diagnostics.read(self.optimizer)
        return Point(
            steps=self.steps,
            seconds=self.seconds,
            score=float(np.mean(self._recent)) if self._recent else math.nan,
            games=self._ended,
            epsilon=self.settings.epsilon_at(self.steps),
            loss=float(self._loss),
            staleness=group.staleness,
            bounded_share=group.bounded_share,
            **({} if measured is None else {name: getattr(measured, name) for name in DRIFT}),
        )

    def close(self) -> None:
        """End the games. Another update would begin new ones."""
        if self._games is not None:
            self._games.close()
            self._games = None

    def save(self, path: Path) -> None:
        """All at once or not at all."""
        unfinished = path.with_suffix(".unfinished")
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(
            {
                "settings": asdict(self.settings),
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "numbers": self._numbers.get_state(),
                "progress": (self.steps, self.seconds, self._ended, list(self._recent)),
                "curve": [tuple(point) for point in self.curve],
            },
            unfinished,
        )
        unfinished.replace(path)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint of the same settings, be it of another device."""
        try:
            saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            settings = Settings(**saved["settings"])
        except (OSError, EOFError, RuntimeError, UnpicklingError, KeyError, TypeError) as error:
            raise UserError(f"cannot go on from {path}: it is no checkpoint of Sarsa") from error
        theirs, ours = asdict(settings), asdict(self.settings)
        for name in ours:
            if theirs[name] != ours[name]:
                raise UserError(f"cannot go on from {path}: there {name} is {theirs[name]}, not {ours[name]}")
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self._numbers.set_state(saved["numbers"])
        self.steps, self.seconds, self._ended, recent = saved["progress"]
        self._recent = deque(recent, maxlen=RECENT_GAMES)
        self.curve = [Point(*point) for point in saved["curve"]]


def evaluate(policy: Policy, games: int = 30, seed: int = 0) -> list[float]:
    """The scores of whole games, one in each of ``games`` side by side, so that short ones do not count more."""
    numbers = torch.Generator().manual_seed(seed)
    played = make_games(policy.game, games, seed)
    frames, _ = played.reset()
    scores, playing = np.zeros(games), np.ones(games, dtype=bool)
    while playing.any():
        frames, rewards, terminated, truncated, _ = played.step(policy.act(torch.from_numpy(frames), numbers).numpy())
        scores += rewards * playing
        playing &= ~(terminated | truncated)
    played.close()
    return scores.tolist()
