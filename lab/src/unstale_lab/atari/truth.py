"""True action values, estimated as the mean of many returns from the same emulator state.

A single return is a noisy estimate. Here many games continue from a saved state, each with its own random numbers,
which gives the value and its standard error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from ..problems.tensor_file import TensorFile
from ..processes import Handler, Send, run_tasks
from .emulator import Emulator, State, seeds
from .tape import FingerprintedPolicy

GAMMA = 0.99
LIMIT = 460  # steps; γ^460 < 0.01
STATES_PER_PART = 2  # states whose games are played together; the random numbers depend on it


@dataclass(frozen=True, eq=False)
class Truth:
    """Estimated values of the actions in states of a recording, for rewards clipped to their sign."""

    index: Tensor  # [states], of transitions of the recording
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
        """The values in a file.

        Raises:
            DataError: the file is missing or damaged, or of another game or discount factor.
        """
        file = _file(path, game)
        tensors, about = file.read(TENSORS)
        if about.get("game") != game:
            raise file.refused(f"its values are for {about.get('game', 'an unknown game')}, not for {game}")
        if about.get("gamma") != str(gamma):
            raise file.refused(f"its values are discounted by {about.get('gamma', 'an unknown γ')}, not by {gamma}")
        return cls(**tensors, about=about)


TENSORS = tuple(name for name in Truth.__dataclass_fields__ if name != "about")


def continuations(
    game: str,
    policy: FingerprintedPolicy,
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
    """Sampled returns of each state and action, [states, count], following the policy after the action.

    The results do not depend on ``jobs``, nor on interruptions.

    Args:
        count: number of games from each state.
        limit: maximal number of steps of a game.
        keep: folder of finished parts, which are not computed again.
    """
    player = Player(game, policy, count, gamma, limit)
    parts = [
        Part(
            seed, start, tuple(states[start : start + STATES_PER_PART]), tuple(actions[start : start + STATES_PER_PART])
        )
        for start in range(0, len(states), STATES_PER_PART)
    ]
    returns = torch.full((len(states), count), torch.nan, dtype=torch.float32)
    done = 0

    def take(part: Part, played: Tensor) -> None:
        nonlocal done
        returns[part.start : part.start + len(part.states)] = played
        done += len(part.states)
        progress(done, len(states))

    def receive(message: tuple[int, np.ndarray]) -> None:
        index, array = message
        part, played = missing[index], torch.from_numpy(array)
        if keep:
            _part_file(keep, part).write({"returns": played}, {"key": player.key(part)})
        take(part, played)

    missing = []
    for part in parts:
        played = _read(player, part, keep)
        if played is None:
            missing.append(part)
        else:
            take(part, played)
    limit_threads = min(jobs, len(missing)) > 1  # there is a process for every core
    run_tasks(partial(_make_handler, player, limit_threads), list(enumerate(missing)), jobs, receive)
    return returns


@dataclass(frozen=True)
class Part:
    """A few states, and what seeds the random numbers of their games."""

    seed: int
    start: int
    states: tuple[State, ...]
    actions: tuple[int, ...]


class Player:
    """Continues games from saved states. Emulators are slow to create, so they are reused."""

    def __init__(self, game: str, policy: FingerprintedPolicy, count: int, gamma: float, limit: int) -> None:
        self.game, self.policy = game, policy
        self.count, self.gamma, self.limit = count, gamma, limit
        self._settings = (game, policy.fingerprint(), count, gamma, limit)
        self._emulators: list[Emulator] = []

    def play(self, part: Part) -> Tensor:
        """Sampled returns, [states, count]."""
        games = len(part.states) * self.count
        self._emulators += [Emulator(self.game, 0) for _ in range(games - len(self._emulators))]
        first, *others = seeds(1 + games, "continuations", part.seed, part.start)
        generator = torch.Generator().manual_seed(first)
        for number, seed in enumerate(others):
            self._emulators[number].restore(part.states[number // self.count])
            self._emulators[number].seed(seed)
        returns = np.zeros(games)
        playing = list(range(games))
        actions = [part.actions[number // self.count] for number in playing]
        for step in range(self.limit):
            if step:
                observations = np.stack([self._emulators[number].observation for number in playing])
                actions = self.policy.act(torch.from_numpy(observations), generator).tolist()
            for number, action in zip(list(playing), actions, strict=True):
                reward, terminated, truncated = self._emulators[number].step(action)
                returns[number] += self.gamma**step * np.sign(reward)
                if terminated or truncated:
                    playing.remove(number)
            if not playing:
                break
        return torch.from_numpy(returns).float().unflatten(0, (len(part.states), self.count))

    def key(self, part: Part) -> str:
        """A hash of everything that the returns depend on."""
        digest = hashlib.sha256(repr((*self._settings, part.seed, part.start, part.actions)).encode())
        for state in part.states:
            digest.update(state.machine + bytes([state.held]) + state.observation.tobytes())
        return digest.hexdigest()


def _read(player: Player, part: Part, keep: Path | None) -> Tensor | None:
    if keep is None or not (file := _part_file(keep, part)).path.exists():
        return None
    try:
        tensors, about = file.read(["returns"])
    except DataError:
        return None  # damaged: it is computed again
    return tensors["returns"] if about.get("key") == player.key(part) else None


def _make_handler(player: Player, limit_threads: bool) -> Handler:
    if limit_threads:
        torch.set_num_threads(1)
    return partial(_play, player)


def _play(player: Player, task: tuple[int, Part], send: Send) -> None:
    index, part = task
    send((index, player.play(part).numpy()))


def _part_file(folder: Path, part: Part) -> TensorFile:
    return TensorFile(folder / f"{part.start:06d}.safetensors", "part", "unstale-lab data atari")


def _file(path: Path, game: str) -> TensorFile:
    return TensorFile(path, "values", f"unstale-lab data atari {game}")
