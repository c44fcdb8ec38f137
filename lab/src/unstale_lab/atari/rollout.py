"""Playing many games at once to learn from them: the processor plays one half while the device thinks for the other."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from .actor import Actor
from .games import SIDE, STACK, make_games
from .scoring import LAST_GAMES

# Of the score that a step brought. The logarithm makes a pellet 1 and ghosts 4.4 to 7.3: worth a detour, and yet no
# single reward drowns the others.
REWARDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "log": lambda score: np.sign(score) * np.log2(1 + np.abs(score) / 10),
    "sign": np.sign,
}


@dataclass(frozen=True)
class Rollout:
    """T steps of n games, and what the actor thought of them. All on its device."""

    observation: Tensor  # [T + 1, n, 4, 84, 84], bytes
    value: Tensor  # [T + 1, n]
    action: Tensor  # [T, n]
    log_prob: Tensor  # [T, n]
    reward: Tensor  # [T, n]
    ended: Tensor  # [T, n], whether a life was lost: for the actor an episode is a life

    @classmethod
    def empty(cls, steps: int, games: int, device: torch.device) -> Rollout:
        def of(dtype: torch.dtype, length: int = steps, shape: tuple[int, ...] = ()) -> Tensor:
            return torch.empty(length, games, *shape, dtype=dtype, device=device)

        single = torch.float32
        observation = of(torch.uint8, steps + 1, (STACK, SIDE, SIDE))
        return cls(observation, of(single, steps + 1), of(torch.int64), of(single), of(single), of(torch.bool))


class Players:
    """Some of the games, and which columns of a rollout are theirs."""

    def __init__(self, game: str, columns: slice, seed: int, reward: str, device: torch.device) -> None:
        count = columns.stop - columns.start
        # A core is left to whoever asks for the steps: it would have to wait for the emulators otherwise.
        self.games = make_games(game, count, seed, threads=max(1, (os.cpu_count() or 1) - 1))
        self.columns = columns
        self.reward_of = REWARDS[reward]
        first, info = self.games.reset()
        # The emulator writes to ordinary memory, the device reads from pinned memory without waiting.
        self.seen = torch.empty(first.shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.seen.copy_(torch.from_numpy(first))
        self.lives = info["lives"]
        self.score = np.zeros(count)

    def send(self, action: Tensor) -> None:
        """Begins a step, which goes on while others think."""
        self.games.send(action.cpu().numpy())

    def receive(self) -> tuple[np.ndarray, np.ndarray, list[float]]:
        """Ends it: rewards, whether lives ended, and the scores of games that are over."""
        observation, score, terminated, truncated, info = self.games.recv()
        self.seen.copy_(torch.from_numpy(observation))
        over = terminated | truncated
        ended = over | (info["lives"] < self.lives)
        self.lives = info["lives"]
        self.score += score
        finished = self.score[over].tolist()
        self.score[over] = 0
        return self.reward_of(score), ended, finished


class Collector:
    """Fills rollouts, one after another, and keeps the scores of the last games."""

    def __init__(self, game: str, games: int, steps: int, seed: int, reward: str, device: torch.device) -> None:
        bounds = [0, games // 2, games]
        self.players = [
            Players(game, slice(start, stop), seed=2 * seed + half, reward=reward, device=device)
            for half, (start, stop) in enumerate(pairwise(bounds))
            if start < stop
        ]
        self.rollout = Rollout.empty(steps, games, device)
        self.rewards = np.zeros((steps, games), dtype=np.float32)
        self.ends = np.zeros((steps, games), dtype=bool)
        self.scores: deque[float] = deque(maxlen=LAST_GAMES)

    @torch.no_grad()
    def collect(self, actor: Actor, numbers: torch.Generator) -> Rollout:
        """The next T steps of every game, with actions drawn from the actor's policy. Good until the next call."""
        steps = len(self.rewards)
        for step in range(steps + 1):
            for players in self.players:
                if step:
                    self._end(players, step - 1)
                logits = self._look(players, step, actor)
                if step < steps:
                    self._begin(players, step, logits, numbers)
        self.rollout.reward.copy_(torch.from_numpy(self.rewards))
        self.rollout.ended.copy_(torch.from_numpy(self.ends))
        return self.rollout

    def _look(self, players: Players, step: int, actor: Actor) -> Tensor:
        observation = self.rollout.observation[step, players.columns]
        observation.copy_(players.seen, non_blocking=True)
        logits, value = actor(observation)
        self.rollout.value[step, players.columns] = value
        return logits

    def _begin(self, players: Players, step: int, logits: Tensor, numbers: torch.Generator) -> None:
        log_probs = logits.log_softmax(-1)
        action = torch.multinomial(log_probs.exp(), 1, generator=numbers)
        players.send(action.squeeze(-1))
        self.rollout.action[step, players.columns] = action.squeeze(-1)
        self.rollout.log_prob[step, players.columns] = log_probs.gather(-1, action).squeeze(-1)

    def _end(self, players: Players, step: int) -> None:
        self.rewards[step, players.columns], self.ends[step, players.columns], finished = players.receive()
        self.scores.extend(finished)

    def score(self) -> float:
        """The mean over the last games; not a number before the first is over."""
        return sum(self.scores) / len(self.scores) if self.scores else float("nan")

    def close(self) -> None:
        for players in self.players:
            players.games.close()
