"""Vectorized Atari games: 84×84 grayscale, frame skip 4, 4 stacked frames."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError

if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv

SIDE = 84  # pixels
STACK = 4  # frames of an observation
STICKY_ACTIONS = 0.25  # probability that the emulator repeats the previous action


class Policy(Protocol):
    """A policy for Atari observations."""

    def act(self, observations: Tensor, generator: torch.Generator) -> Tensor:
        """Actions [n], on the CPU, for observations, uint8 [n, 4, 84, 84]."""
        ...


def check_game(name: str) -> None:
    """Raises ``UserError`` if the game is unknown or cannot be loaded."""
    try:
        from ale_py import roms
    except ImportError as error:
        raise UserError(
            'Atari games need ale-py; run: pip install -e . -e "lab[atari]" (in a clone of unstale)'
        ) from error
    games = roms.get_all_rom_ids()
    if name not in games:
        snake_case = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()  # Gymnasium writes MsPacman
        nearest = get_close_matches(snake_case, games, n=1, cutoff=0)[0]
        raise UserError(f"unknown game {name!r}: did you mean {nearest}? There are {len(games)} games.")
    try:
        roms.get_rom_path(name)
    except OSError as error:
        why = " ".join(str(error).split())
        raise UserError(f"cannot use the ROM of {name}: {why}. Reinstall ale-py, or fix ALE_ROMS_DIR.") from error


def make_games(game: str, count: int, seed: int, *, threads: int | None = None) -> AtariVectorEnv:
    """``count`` games, to be started by ``reset()``.

    A game that ends restarts in the same step: ``step`` returns the first observation of the next game. Rewards are not
    clipped. Lost lives are reported in ``info["lives"]``; the emulator's ``episodic_life`` would restart the game.
    By default the emulators use as many threads as torch: one in each process of a sweep, whose processes share the
    cores.
    """
    check_game(game)
    from ale_py.vector_env import AtariVectorEnv
    from gymnasium.vector import AutoresetMode

    games = AtariVectorEnv(
        game,
        count,
        num_threads=torch.get_num_threads() if threads is None else threads,
        repeat_action_probability=STICKY_ACTIONS,
        reward_clipping=False,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    # Adjacent seeds would share games. Later resets continue from these seeds.
    games.reset(seed=np.random.default_rng(seed).integers(1, 2**31, count))
    return games


@cache
def action_count(game: str) -> int:
    """The number of actions that have an effect in the game, the minimal action set."""
    games = make_games(game, 1, seed=0, threads=1)
    count = len(games.ale.get_action_set())
    games.close()
    return count
