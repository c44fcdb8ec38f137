"""How well a policy plays."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from .games import Policy, make_games

GAMES = 30
LAST_GAMES = 100  # whose mean is the score of a learning curve
UNSEEN_IN_TRAINING = 1 << 60  # added to seeds


class GamePolicy(Policy, Protocol):
    """Whoever can play a certain game."""

    @property
    def game(self) -> str: ...


def evaluate(policy: GamePolicy, games: int = GAMES, seed: int = 0) -> list[float]:
    """The scores of whole games, one in each of ``games`` side by side: the first to finish among many would be the
    short ones."""
    played = make_games(policy.game, games, UNSEEN_IN_TRAINING + seed)
    numbers = torch.Generator().manual_seed(seed)
    frames, _ = played.reset()
    scores, playing = np.zeros(games), np.ones(games, dtype=bool)
    while playing.any():
        frames, rewards, terminated, truncated, _ = played.step(policy.act(torch.from_numpy(frames), numbers).numpy())
        scores += rewards * playing
        playing &= ~(terminated | truncated)
    played.close()
    return scores.tolist()
