"""An Atari environment whose state can be saved and restored.

Its observations are those of ale-py's ``AtariVectorEnv``, which is faster but cannot save its state: grayscale, 84×84,
the pixelwise maximum of the last two screens. An action is repeated for four screens, and on each of them the previous
action sticks with probability 1/4.
"""

from __future__ import annotations

import hashlib
from collections import deque
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from .games import SIDE, STACK, STICKY_ACTIONS, check_game

FRAME_SKIP = 4  # screens for which an action is repeated
MAX_NO_OPS = 30
MAX_SCREENS_PER_EPISODE = 108_000  # half an hour of play

Frame = NDArray[np.uint8]


class State(NamedTuple):
    """The state of a game, without that of the random number generator: continuations differ from one another."""

    machine: bytes
    held: int  # the previous action, which may stick
    observation: Frame  # [4, 84, 84]


class Emulator:
    """One game. The seed determines all random numbers.

    Sticky actions are drawn here and not by ale-py, which does not save the action that may stick. The saved state is
    therefore complete.
    """

    def __init__(self, game: str, seed: int, *, sticky: float = STICKY_ACTIONS, max_no_ops: int = MAX_NO_OPS) -> None:
        check_game(game)
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale_py.ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.setInt("max_num_frames_per_episode", MAX_SCREENS_PER_EPISODE)
        self._ale.setInt("random_seed", seed % 2**31)
        self._ale.loadROM(cast(Path, ale_py.roms.get_rom_path(game)))
        self._load_state = ale_py.ALEState
        self._actions = [action.value for action in self._ale.getMinimalActionSet()]
        self._fire = ale_py.Action.FIRE.value
        self._sticky, self._max_no_ops = sticky, max_no_ops
        self._screens = np.empty((2, 210, 160), np.uint8)
        self._frames: deque[Frame] = deque(maxlen=STACK)
        self.seed(seed)
        self.reset()

    def seed(self, seed: int) -> None:
        """Replaces the random number generator."""
        self._rng = np.random.default_rng(seed)

    def reset(self) -> None:
        """Starts an episode with up to 29 no-op screens, and FIRE in games that wait for it."""
        self._ale.reset_game()
        self._held = 0
        fires = self._fire in self._actions
        for _ in range(int(self._rng.integers(max(1, self._max_no_ops))) - fires):
            self._ale.act(0)
        if fires:
            self._act(self._fire, self._rng.random())
        self._frames.extend([np.zeros((SIDE, SIDE), np.uint8)] * (STACK - 1))
        self._frames.append(downsample(self._ale.getScreenGrayscale()))

    def step(self, action: int) -> tuple[float, bool, bool]:
        """Takes an action. Returns its reward, unclipped, and whether the game terminated or was truncated."""
        score = 0.0
        for screen, draw in enumerate(self._rng.random(FRAME_SKIP)):
            score += self._act(self._actions[action], draw)
            if screen >= FRAME_SKIP - 2:
                self._ale.getScreenGrayscale(self._screens[screen - FRAME_SKIP])
        self._frames.append(downsample(np.maximum(*self._screens)))
        terminated = self._ale.game_over(with_truncation=False)
        return score, terminated, not terminated and self._ale.game_truncated()

    @property
    def frame(self) -> Frame:
        """The latest frame, [84, 84]."""
        return self._frames[-1]

    @property
    def observation(self) -> Frame:
        """The last four frames, [4, 84, 84], the latest last; blank frames before the first of an episode."""
        return np.stack(self._frames)

    def save(self) -> State:
        return State(self._ale.cloneState().serialize(), self._held, self.observation)

    def restore(self, state: State) -> None:
        self._ale.restoreState(self._load_state(state.machine))
        self._held = state.held
        self._frames.extend(state.observation)

    def _act(self, action: int, draw: float) -> int:
        """Advances one screen. After the end of a game nothing changes."""
        if draw >= self._sticky:
            self._held = action
        return self._ale.act(self._held)


def seeds(count: int, *key: str | int) -> list[int]:
    """Seeds that are a hash of the key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return np.random.SeedSequence(int.from_bytes(digest, "little")).generate_state(count).tolist()


def downsample(screen: Frame) -> Frame:
    """Downsamples 210×160 to 84×84 by area averaging.

    Every 5 rows become 2, and every 40 columns become 21. Sums are of integers and exact in float32. In ale-py
    they are not, so that one pixel in 100,000, whose mean lies halfway between two levels, differs by one level.
    """
    rows = _ROWS @ screen.reshape(42, 5, 160).astype(np.float32)
    sums = rows.reshape(-1, 40) @ _COLUMNS
    return np.rint(sums / np.float32(5 * 40)).astype(np.uint8).reshape(SIDE, SIDE)


def _overlaps(old: int, new: int) -> NDArray[np.float32]:
    """The overlap of cells when a line is divided into ``old`` and into ``new`` cells, [new, old].

    >>> _overlaps(5, 2)
    array([[2., 2., 1., 0., 0.],
           [0., 0., 1., 2., 2.]], dtype=float32)
    """
    # Where cells begin, on a line of length old · new.
    of_new, of_old = np.arange(new)[:, None] * old, np.arange(old) * new
    return (np.minimum(of_new + old, of_old + new) - np.maximum(of_new, of_old)).clip(0).astype(np.float32)


_ROWS, _COLUMNS = _overlaps(5, 2), _overlaps(40, 21).T
