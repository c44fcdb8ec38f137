"""What a policy's actions are worth: the mean of many returns from the same state of the game.

One return says little, as chance decides much of it. Games that go on from a saved state, each with random numbers of
its own, say as much about the value there as one has time for, and how sure that is.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import pickle
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from ..problems.tensor_file import TensorFile
from ..processes import end_with_parent
from .emulator import Emulator, State, seeds
from .tape import KnownPolicy

GAMMA = 0.99
LIMIT = 460  # steps; γ^460 < 0.01
TOGETHER = 2  # states whose games are played side by side, with random numbers that depend on nothing else


@dataclass(frozen=True, eq=False)
class Truth:
    """Values of actions in states of a recording. The rewards are clipped to their sign."""

    index: Tensor  # [states], of the transition on the tape
    mean: Tensor  # [states]
    standard_error: Tensor  # [states], of the mean
    returns: Tensor  # [states, count]
    about: Mapping[str, str]

    @classmethod
    def of(cls, index: Tensor, returns: Tensor, about: Mapping[str, str]) -> Truth:
        exact = returns.double()
        error = exact.std(1) / returns.shape[1] ** 0.5
        return cls(index, exact.mean(1).float(), error.float(), returns, about)

    def save(self, path: Path) -> None:
        _file(path, self.about["game"]).write({name: getattr(self, name) for name in TENSORS}, dict(self.about))

    @classmethod
    def load(cls, path: Path, game: str = "ms_pacman", gamma: float = GAMMA) -> Truth:
        """Values for that game, so discounted; an ``DataError`` where the file has none."""
        file = _file(path, game)
        tensors, about = file.read(TENSORS)
        if about.get("game") != game:
            raise file.refused(f"its values are for {about.get('game', 'no game')}, not for {game}")
        if about.get("gamma") != str(gamma):
            raise file.refused(f"its values are discounted by {about.get('gamma', 'nothing it names')}, not by {gamma}")
        return cls(**tensors, about=about)


TENSORS = tuple(name for name in Truth.__dataclass_fields__ if name != "about")


def continuations(
    game: str,
    policy: KnownPolicy,
    states: Sequence[State],
    actions: Sequence[int],
    *,
    count: int = 16,
    gamma: float = GAMMA,
    limit: int = LIMIT,
    seed: int = 0,
    jobs: int = 1,
    keep: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tensor:
    """Returns from each state, [states, count]: the action given first, then those of the policy, until the game ends
    or so many steps are played. The numbers do not depend on ``jobs``, nor on how often the work was broken off: what
    is done is kept in the folder ``keep``, and not done again."""
    player = Player(game, policy, count, gamma, limit)
    parts = [
        Part(seed, start, tuple(states[start : start + TOGETHER]), tuple(actions[start : start + TOGETHER]))
        for start in range(0, len(states), TOGETHER)
    ]
    returns = torch.full((len(states), count), torch.nan, dtype=torch.float32)
    done = 0
    for part, played in _kept(player, parts, jobs, keep):
        returns[part.start : part.start + len(part.states)] = played
        done += len(part.states)
        progress(done, len(states))
    return returns


@dataclass(frozen=True)
class Part:
    """A few states, and the numbers that decide which random numbers their games get."""

    seed: int
    start: int
    states: tuple[State, ...]
    actions: tuple[int, ...]


class Player:
    """Plays on from saved states. Emulators take long to make, so they are made once."""

    def __init__(self, game: str, policy: KnownPolicy, count: int, gamma: float, limit: int) -> None:
        self.game, self.policy = game, policy
        self.count, self.gamma, self.limit = count, gamma, limit
        self._settings = (game, policy.fingerprint(), count, gamma, limit)
        self._emulators: list[Emulator] = []

    def play(self, part: Part) -> Tensor:
        """Returns, [states, count]."""
        games = len(part.states) * self.count
        self._emulators += [Emulator(self.game, 0) for _ in range(games - len(self._emulators))]
        first, *others = seeds(1 + games, "continuations", part.seed, part.start)
        numbers = torch.Generator().manual_seed(first)
        for number, seed in enumerate(others):
            self._emulators[number].restore(part.states[number // self.count])
            self._emulators[number].seed(seed)
        returns = np.zeros(games)
        playing = list(range(games))
        actions = [part.actions[number // self.count] for number in playing]
        for step in range(self.limit):
            if step:
                observations = np.stack([self._emulators[number].observation for number in playing])
                actions = self.policy.act(torch.from_numpy(observations), numbers).tolist()
            for number, action in zip(list(playing), actions, strict=True):
                reward, terminated, truncated = self._emulators[number].step(action)
                returns[number] += self.gamma**step * np.sign(reward)
                if terminated or truncated:
                    playing.remove(number)
            if not playing:
                break
        return torch.from_numpy(returns).float().unflatten(0, (len(part.states), self.count))

    def key(self, part: Part) -> str:
        """Differs wherever the returns would."""
        digest = hashlib.sha256(repr((*self._settings, part.seed, part.start, part.actions)).encode())
        for state in part.states:
            digest.update(state.machine + bytes([state.held]) + state.observation.tobytes())
        return digest.hexdigest()


def _kept(player: Player, parts: Sequence[Part], jobs: int, keep: Path | None) -> Iterator[tuple[Part, Tensor]]:
    """The returns of all parts, in any order; played only where the folder does not have them yet."""
    missing = []
    for part in parts:
        played = _read(player, part, keep)
        if played is None:
            missing.append(part)
        else:
            yield part, played
    for part, played in _played(player, missing, min(jobs, len(missing))):
        if keep:
            _part_file(keep, part).write({"returns": played}, {"key": player.key(part)})
        yield part, played


def _read(player: Player, part: Part, keep: Path | None) -> Tensor | None:
    if keep is None or not (file := _part_file(keep, part)).path.exists():
        return None
    try:
        tensors, about = file.read(["returns"])
    except DataError:
        return None  # damaged: it is played again
    return tensors["returns"] if about.get("key") == player.key(part) else None


def _played(player: Player, parts: Sequence[Part], jobs: int) -> Iterator[tuple[Part, Tensor]]:
    if jobs <= 1:
        for part in parts:
            yield part, player.play(part)
        return
    # Plain pickle: torch's own way would share a GPU's memory with the other processes rather than copy.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin, (pickle.dumps(player),))
    try:
        asked = {pool.submit(_play, part): part for part in parts}
        for future in as_completed(asked):
            yield asked[future], torch.from_numpy(future.result())
    finally:
        pool.shutdown(cancel_futures=True)


_player: Player  # of a process that was started to play


def _begin(pickled: bytes) -> None:
    global _player
    torch.set_num_threads(1)  # there is a process for every core
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and ends its children in order
    end_with_parent()
    _player = pickle.loads(pickled)
    util.Finalize(None, _let_go, exitpriority=0)


def _let_go() -> None:
    """Emulators complain, at length, when a process ends that still has them."""
    global _player
    del _player


def _play(part: Part) -> np.ndarray:
    return _player.play(part).numpy()


def _part_file(folder: Path, part: Part) -> TensorFile:
    return TensorFile(folder / f"{part.start:06d}.safetensors", "part", "unstale-lab make-data")


def _file(path: Path, game: str) -> TensorFile:
    return TensorFile(path, "values", f"unstale-lab make-data {game}")
