"""Atari games, many side by side in the emulator's own threads: 84×84 gray, 4 frames a step, the last 4 steps seen."""

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

SIDE = 84  # of a picture
STACK = 4  # pictures in an observation
STICKY_ACTIONS = 0.25  # how often the emulator repeats the last action in place of the new one


class Policy(Protocol):
    """Whoever can play."""

    def act(self, observations: Tensor, numbers: torch.Generator) -> Tensor:
        """The number of an action for each observation, [n] on the CPU, from uint8 [n, 4, 84, 84]."""
        ...


def check_game(name: str) -> None:
    """Refuses, in one line, a game that cannot be played."""
    try:
        from ale_py import roms
    except ImportError as error:
        raise UserError("games need ale-py: pip install 'unstale[atari]'") from error
    games = roms.get_all_rom_ids()
    if name not in games:
        snake_case = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()  # Gymnasium writes MsPacman
        nearest = get_close_matches(snake_case, games, n=1, cutoff=0)[0]
        raise UserError(f"unknown game {name!r}: did you mean {nearest}? The emulator knows {len(games)} games.")
    try:
        roms.get_rom_path(name)
    except OSError as error:
        why = " ".join(str(error).split())
        raise UserError(f"cannot use the ROM of {name}: {why}. Install ale-py again, or mend ALE_ROMS_DIR.") from error


def make_games(game: str, count: int, seed: int, *, threads: int = 0) -> AtariVectorEnv:
    """``count`` games, begun by ``reset()``: the same ones for the same seed.

    A game that is over begins again in the same step: the observation that ``step`` returns is then the first of the
    next game. Rewards are those of the game. Lost lives show in ``info["lives"]``: the emulator's ``episodic_life``
    would begin the whole game again. ``threads=0`` takes as many as there are cores.
    """
    check_game(game)
    from ale_py.vector_env import AtariVectorEnv
    from gymnasium.vector import AutoresetMode

    games = AtariVectorEnv(
        game,
        count,
        num_threads=threads,
        repeat_action_probability=STICKY_ACTIONS,
        reward_clipping=False,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    # Seeds of neighbouring numbers would share games; and later resets go on from these.
    games.reset(seed=np.random.default_rng(seed).integers(1, 2**31, count))
    return games


@cache
def action_count(game: str) -> int:
    """How many actions do something in the game: the emulator's minimal set, in its order."""
    games = make_games(game, 1, seed=0, threads=1)
    count = len(games.ale.get_action_set())
    games.close()
    return count
