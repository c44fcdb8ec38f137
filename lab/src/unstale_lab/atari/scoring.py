"""Evaluation of policies on whole games."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from .games import Policy, make_games

GAMES = 30
SCORE_WINDOW = 100  # games whose mean is the score in a learning curve
EVALUATION_SEED_OFFSET = 1 << 60  # keeps evaluation games apart from training games


class GamePolicy(Policy, Protocol):
    """A policy for one game."""

    @property
    def game(self) -> str: ...


def evaluate(policy: GamePolicy, games: int = GAMES, seed: int = 0) -> list[float]:
    """The scores of whole games, one per parallel environment: taking the first games to finish would favor short
    ones."""
    envs = make_games(policy.game, games, EVALUATION_SEED_OFFSET + seed)
    generator = torch.Generator().manual_seed(seed)
    frames, _ = envs.reset()
    scores, playing = np.zeros(games), np.ones(games, dtype=bool)
    while playing.any():
        frames, rewards, terminated, truncated, _ = envs.step(policy.act(torch.from_numpy(frames), generator).numpy())
        scores += rewards * playing
        playing &= ~(terminated | truncated)
    envs.close()
    return scores.tolist()
