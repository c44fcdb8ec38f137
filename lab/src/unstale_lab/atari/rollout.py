"""Collects rollouts from parallel games: the CPU steps one half while the device evaluates the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from .actor import Actor
from .games import SIDE, STACK, make_games
from .scoring import SCORE_WINDOW

# Functions of the score of a step. In Ms. Pac-Man, "log" makes a pellet worth 1, and ghosts 4.4 to 7.3: more than a
# pellet, but not so much that one reward dominates the others.
REWARDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "log": lambda score: np.sign(score) * np.log2(1 + np.abs(score) / 10),
    "sign": np.sign,
}


@dataclass(frozen=True)
class Rollout:
    """T steps of n games, and the outputs of the actor. All tensors are on its device."""

    observation: Tensor  # [T + 1, n, 4, 84, 84], bytes
    value: Tensor  # [T + 1, n]
    action: Tensor  # [T, n]
    log_prob: Tensor  # [T, n]
    reward: Tensor  # [T, n]
    ended: Tensor  # [T, n], whether a life was lost: lives are episodes for the actor

    @classmethod
    def empty(cls, steps: int, games: int, device: torch.device) -> Rollout:
        def of(dtype: torch.dtype, length: int = steps, shape: tuple[int, ...] = ()) -> Tensor:
            return torch.empty(length, games, *shape, dtype=dtype, device=device)

        single = torch.float32
        observation = of(torch.uint8, steps + 1, (STACK, SIDE, SIDE))
        return cls(observation, of(single, steps + 1), of(torch.int64), of(single), of(single), of(torch.bool))


class GameGroup:
    """Some of the games, and their columns in a rollout."""

    def __init__(self, game: str, columns: slice, seed: int, reward: str, device: torch.device) -> None:
        count = columns.stop - columns.start
        # One core is left for the main thread, which would otherwise wait for the emulators.
        self.games = make_games(game, count, seed, threads=max(1, torch.get_num_threads() - 1))
        self.columns = columns
        self.reward_function = REWARDS[reward]
        first, info = self.games.reset()
        # Copies from pinned memory to the device are asynchronous.
        self.seen = torch.empty(first.shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.seen.copy_(torch.from_numpy(first))
        self.lives = info["lives"]
        self.score = np.zeros(count)

    def send(self, action: Tensor) -> None:
        """Starts a step, which runs in the background."""
        self.games.send(action.cpu().numpy())

    def receive(self) -> tuple[np.ndarray, np.ndarray, list[float]]:
        """Waits for the step. Returns rewards, whether lives ended, and the scores of finished games."""
        observation, score, terminated, truncated, info = self.games.recv()
        self.seen.copy_(torch.from_numpy(observation))
        over = terminated | truncated
        ended = over | (info["lives"] < self.lives)
        self.lives = info["lives"]
        self.score += score
        finished = self.score[over].tolist()
        self.score[over] = 0
        return self.reward_function(score), ended, finished


class Collector:
    """Collects one rollout after another, and tracks the scores of the last games."""

    def __init__(self, game: str, games: int, steps: int, seed: int, reward: str, device: torch.device) -> None:
        bounds = [0, games // 2, games]
        self.groups = [
            GameGroup(game, slice(start, stop), seed=2 * seed + half, reward=reward, device=device)
            for half, (start, stop) in enumerate(pairwise(bounds))
            if start < stop
        ]
        self.rollout = Rollout.empty(steps, games, device)
        self.rewards = np.zeros((steps, games), dtype=np.float32)
        self.ends = np.zeros((steps, games), dtype=bool)
        self.scores: deque[float] = deque(maxlen=SCORE_WINDOW)

    @torch.no_grad()
    def collect(self, actor: Actor, generator: torch.Generator) -> Rollout:
        """The next T steps of every game, with actions sampled from the policy. The next call overwrites them."""
        steps = len(self.rewards)
        for step in range(steps + 1):
            for group in self.groups:
                if step:
                    self._finish_step(group, step - 1)
                logits = self._evaluate(group, step, actor)
                if step < steps:
                    self._start_step(group, step, logits, generator)
        self.rollout.reward.copy_(torch.from_numpy(self.rewards))
        self.rollout.ended.copy_(torch.from_numpy(self.ends))
        return self.rollout

    def _evaluate(self, group: GameGroup, step: int, actor: Actor) -> Tensor:
        observation = self.rollout.observation[step, group.columns]
        observation.copy_(group.seen, non_blocking=True)
        logits, value = actor(observation)
        self.rollout.value[step, group.columns] = value
        return logits

    def _start_step(self, group: GameGroup, step: int, logits: Tensor, generator: torch.Generator) -> None:
        log_probs = logits.log_softmax(-1)
        action = torch.multinomial(log_probs.exp(), 1, generator=generator)
        group.send(action.squeeze(-1))
        self.rollout.action[step, group.columns] = action.squeeze(-1)
        self.rollout.log_prob[step, group.columns] = log_probs.gather(-1, action).squeeze(-1)

    def _finish_step(self, group: GameGroup, step: int) -> None:
        self.rewards[step, group.columns], self.ends[step, group.columns], finished = group.receive()
        self.scores.extend(finished)

    def score(self) -> float:
        """The mean score of the last games; NaN before the first has finished."""
        return sum(self.scores) / len(self.scores) if self.scores else float("nan")

    def close(self) -> None:
        for group in self.groups:
            group.games.close()
