"""One game whose state can be saved, and played on from as often as one likes.

It shows the pictures of ale-py's ``AtariVectorEnv``, which is faster but cannot save its games: gray, 84 by 84, the
brighter of two successive screens in each pixel. An action is held for four screens, and on each of them the one before
sticks with probability 1/4.
"""

from __future__ import annotations

import hashlib
from collections import deque
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from .games import SIDE, STACK, STICKY_ACTIONS, check_game

HELD = 4  # screens for which an action is held
MOST_NO_OPS = 30
MOST_SCREENS = 108_000  # in an episode: half an hour of play

Picture = NDArray[np.uint8]


class State(NamedTuple):
    """A moment of a game, without any random numbers: what follows differs from one restoring to the next."""

    machine: bytes
    held: int  # the action that may stick
    observation: Picture  # [4, 84, 84]


class Emulator:
    """One game. The seed decides everything that is left to chance.

    ale-py draws sticky actions itself if asked to, but neither saves nor restores the action that may stick. They are
    drawn here instead, so that a saved state is the whole of the state.
    """

    def __init__(self, game: str, seed: int, *, sticky: float = STICKY_ACTIONS, most_no_ops: int = MOST_NO_OPS) -> None:
        check_game(game)
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale_py.ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.setInt("max_num_frames_per_episode", MOST_SCREENS)
        self._ale.setInt("random_seed", seed % 2**31)
        self._ale.loadROM(cast(Path, ale_py.roms.get_rom_path(game)))
        self._load_state = ale_py.ALEState
        self._actions = [action.value for action in self._ale.getMinimalActionSet()]
        self._fire = ale_py.Action.FIRE.value
        self._sticky, self._most_no_ops = sticky, most_no_ops
        self._screens = np.empty((2, 210, 160), np.uint8)
        self._pictures: deque[Picture] = deque(maxlen=STACK)
        self.seed(seed)
        self.reset()

    def seed(self, seed: int) -> None:
        """New random numbers, from here on."""
        self._numbers = np.random.default_rng(seed)

    def reset(self) -> None:
        """A new episode, after up to 29 screens of doing nothing; games that wait for FIRE get it."""
        self._ale.reset_game()
        self._held = 0
        fires = self._fire in self._actions
        for _ in range(int(self._numbers.integers(max(1, self._most_no_ops))) - fires):
            self._ale.act(0)
        if fires:
            self._act(self._fire, self._numbers.random())
        self._pictures.extend([np.zeros((SIDE, SIDE), np.uint8)] * (STACK - 1))
        self._pictures.append(smaller(self._ale.getScreenGrayscale()))

    def step(self, action: int) -> tuple[float, bool, bool]:
        """The score it earned, and whether the game ended with it or was cut off after it."""
        score = 0.0
        for screen, luck in enumerate(self._numbers.random(HELD)):
            score += self._act(self._actions[action], luck)
            if screen >= HELD - 2:
                self._ale.getScreenGrayscale(self._screens[screen - HELD])
        self._pictures.append(smaller(np.maximum(*self._screens)))
        terminated = self._ale.game_over(with_truncation=False)
        return score, terminated, not terminated and self._ale.game_truncated()

    @property
    def frame(self) -> Picture:
        """The newest picture, [84, 84]."""
        return self._pictures[-1]

    @property
    def observation(self) -> Picture:
        """The last four pictures, [4, 84, 84], the newest last; blank ones before an episode's first."""
        return np.stack(self._pictures)

    def save(self) -> State:
        return State(self._ale.cloneState().serialize(), self._held, self.observation)

    def restore(self, state: State) -> None:
        self._ale.restoreState(self._load_state(state.machine))
        self._held = state.held
        self._pictures.extend(state.observation)

    def _act(self, action: int, luck: float) -> int:
        """One screen. After the end of a game nothing happens any more, and the screen stays."""
        if luck >= self._sticky:
            self._held = action
        return self._ale.act(self._held)


def seeds(count: int, *key: str | int) -> list[int]:
    """Seeds that depend on the key alone. A hash keeps keys apart that differ little."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return np.random.SeedSequence(int.from_bytes(digest, "little")).generate_state(count).tolist()


def smaller(screen: Picture) -> Picture:
    """210 by 160 to 84 by 84, each pixel the mean over its area, rounded.

    Every 5 rows become 2 and every 40 columns 21. All sums are of whole numbers, exact in float32; ale-py's are not,
    so where the mean lies halfway between two levels, one pixel in 100,000 differs from ale-py's, by one level.
    """
    rows = _ROWS @ screen.reshape(42, 5, 160).astype(np.float32)
    sums = rows.reshape(-1, 40) @ _COLUMNS
    return np.rint(sums / np.float32(5 * 40)).astype(np.uint8).reshape(SIDE, SIDE)


def _overlaps(old: int, new: int) -> NDArray[np.float32]:
    """How much of each old cell lies in each new one, [new, old], where a line is cut into so many cells of each kind.

    >>> _overlaps(5, 2)
    array([[2., 2., 1., 0., 0.],
           [0., 0., 1., 2., 2.]], dtype=float32)
    """
    of_new, of_old = np.arange(new)[:, None] * old, np.arange(old) * new  # where cells begin, on a line of old · new
    return (np.minimum(of_new + old, of_old + new) - np.maximum(of_new, of_old)).clip(0).astype(np.float32)


_ROWS, _COLUMNS = _overlaps(5, 2), _overlaps(40, 21).T
