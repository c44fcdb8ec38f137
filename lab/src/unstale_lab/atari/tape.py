"""Recordings of games: every frame is stored once, although it is part of several observations."""

from __future__ import annotations

import hashlib
import itertools
import lzma
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..problems.images import stack_indices
from ..problems.n_step_returns import n_step_returns
from ..problems.tensor_file import TensorFile
from .emulator import Emulator, Frame, State
from .games import SIDE, STACK, Policy


class FingerprintedPolicy(Policy, Protocol):
    """A policy that identifies itself."""

    def fingerprint(self) -> str:
        """A string that differs from those of other policies."""
        ...


@dataclass(frozen=True)
class Sarsa:
    """n-step Sarsa samples. The target of ``Q(state, action)`` is ``reward + discount · Q(next_state, next_action)``.

    States are indices of transitions. If the game terminated on the way, the discount is 0 and the next state is
    arbitrary.
    """

    state: Tensor
    action: Tensor
    reward: Tensor  # the discounted sum of n clipped rewards
    discount: Tensor  # γⁿ, or 0
    next_state: Tensor
    next_action: Tensor


@dataclass(frozen=True, eq=False)
class Tape:
    """Transitions in temporal order, one episode after another.

    An episode of T actions has T+1 consecutive ``frames``; the last one follows the last action. Frame 0 belongs to no
    episode: it is blank, and pads observations at the start of episodes.
    """

    frames: Tensor  # uint8 [frames, 84, 84]
    newest: Tensor  # [transitions], the latest frame when the action was chosen
    first: Tensor  # [transitions], the first frame of the episode
    action: Tensor  # [transitions]
    reward: Tensor  # [transitions], not clipped
    terminated: Tensor  # [transitions], whether the game terminated with this action
    truncated: Tensor  # [transitions], whether it was truncated after this action
    saved: Tensor  # [saved], transitions before which the state of the emulator was saved
    machines: Tensor  # uint8 [saved, bytes], these states
    held: Tensor  # [saved], the actions that may stick
    about: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.action)

    def stacks(self, index: Tensor) -> Tensor:
        """The frame indices of the observations at these transitions, [..., 4], the latest last."""
        return stack_indices(self.newest[index], self.first[index], STACK)

    def observations(self, index: Tensor) -> Tensor:
        """The observations at these transitions, uint8 [..., 4, 84, 84]."""
        return self.frames[self.stacks(index)]

    def state(self, number: int) -> State:
        """The state of the emulator before transition ``saved[number]``."""
        observation = self.observations(self.saved[number]).numpy()
        return State(self.machines[number].numpy().tobytes(), int(self.held[number]), observation)

    def clipped(self) -> Tensor:
        """The sign of each reward."""
        return self.reward.sign()

    def sarsa(self, n_step: int, gamma: float) -> Sarsa:
        """n-step Sarsa samples of all transitions, except those whose next action was not recorded."""
        reward, discount, steps = n_step_returns(self.clipped(), self.terminated, self.truncated, gamma, n_step)
        start = torch.arange(len(self), device=self.action.device)
        after = (start + n_step).clamp(max=len(self) - 1)
        bootstraps = (steps == n_step) & (start + n_step < len(self)) & (self.first[after] == self.first)
        state = start[bootstraps | (discount == 0)]
        next_state = torch.where(discount == 0, start, after)[state]
        return Sarsa(state, self.action[state], reward[state], discount[state], next_state, self.action[next_state])

    def returns(self, gamma: float) -> Tensor:
        """The discounted return of clipped rewards from each transition, [transitions] in float64. NaN if the end of
        the game was not recorded."""
        reward, terminated, truncated = (part.tolist() for part in (self.clipped(), self.terminated, self.truncated))
        values = np.empty(len(self))
        after = np.nan
        for at in reversed(range(len(self))):
            if terminated[at] or truncated[at]:
                after = 0.0 if terminated[at] else np.nan
            values[at] = after = reward[at] + gamma * after
        return torch.from_numpy(values)

    def scores(self) -> Tensor:
        """The score of each episode."""
        _, lengths = self.first.unique_consecutive(return_counts=True)
        return torch.stack([episode.sum() for episode in self.reward.double().split(lengths.tolist())])

    def fingerprint(self) -> str:
        """Twelve characters of a hash of the recorded games."""
        digest = hashlib.sha256()
        for part in (self.first, self.action, self.reward, self.saved):
            digest.update(part.cpu().numpy().tobytes())
        return digest.hexdigest()[:12]

    def save(self, path: Path) -> None:
        tensors = {name: getattr(self, name) for name in TENSORS}
        _file(path, self.about.get("game", "")).write(
            {name: _compress(held) if name in COMPRESSED else held.contiguous() for name, held in tensors.items()},
            dict(self.about),
        )

    @classmethod
    def load(cls, path: Path, game: str = "ms_pacman") -> Tape:
        """The recording in a file.

        Raises:
            DataError: the file is missing, damaged, or of another game.
        """
        file = _file(path, game)
        tensors, about = file.read(TENSORS)
        if about.get("game") != game:
            raise file.refused(f"it is a recording of {about.get('game', 'an unknown game')}, not of {game}")
        try:
            frames = _check_columns(tensors)
            tensors["frames"] = _decompress(tensors["frames"], (frames, SIDE, SIDE), frames * SIDE**2)
            saved = len(tensors["saved"])
            tensors["machines"] = _decompress(tensors["machines"], (saved, -1), saved * MAX_STATE_BYTES)
        except (lzma.LZMAError, EOFError, ValueError, RuntimeError) as error:
            raise file.refused(error) from error
        return cls(**tensors, about=about)


TENSORS = tuple(name for name in Tape.__dataclass_fields__ if name != "about")
MAX_STATE_BYTES = 1 << 20  # of an emulator
MAX_LZMA_BYTES = 64 << 20  # that unpacking may take beside its result
COMPRESSED = ("frames", "machines")  # large, with rows that resemble the previous one


def record(
    emulators: Sequence[Emulator],
    policy: Policy,
    transitions: int,
    generator: torch.Generator,
    *,
    save_every: int = 0,
    about: Mapping[str, str] | None = None,
    progress: Callable[[int], None] = lambda transitions: None,
) -> Tape:
    """Records whole episodes with at least ``transitions`` transitions in total.

    The games run in parallel, but episodes are recorded in the order in which they began, as if played in sequence.
    (Episodes in the order in which they end would be too short on average.)

    Args:
        save_every: save the state of the emulator before every ``save_every``-th action of an episode, starting with
            the first; 0 saves none.
    """
    begun = [_Episode(emulator) for emulator in emulators]
    playing = list(begun)
    while _finished(begun) < transitions:
        observations = torch.from_numpy(np.stack([episode.emulator.observation for episode in playing]))
        for episode, action in zip(playing, policy.act(observations, generator).tolist(), strict=True):
            episode.play(action, save_every)
        for place, episode in reversed(list(enumerate(playing))):
            if episode.over and sum(map(len, begun)) < transitions:
                playing[place] = _Episode(episode.emulator)
                begun.append(playing[place])
            elif episode.over:
                del playing[place]
        progress(min(transitions, _finished(begun)))
    wanted: list[_Episode] = []
    while sum(map(len, wanted)) < transitions:
        wanted.append(begun[len(wanted)])
    return _concatenate(wanted, about or {})


class _Episode:
    def __init__(self, emulator: Emulator) -> None:
        emulator.reset()
        self.emulator = emulator
        self.frames: list[Frame] = [emulator.frame]
        self.actions: list[int] = []
        self.rewards: list[float] = []
        self.states: dict[int, State] = {}
        self.terminated = self.truncated = False

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated

    def play(self, action: int, save_every: int) -> None:
        if save_every and len(self) % save_every == 0:
            self.states[len(self)] = self.emulator.save()
        reward, self.terminated, self.truncated = self.emulator.step(action)
        self.actions.append(action)
        self.rewards.append(reward)
        self.frames.append(self.emulator.frame)


def _finished(begun: Iterable[_Episode]) -> int:
    """The number of transitions in all episodes before the first unfinished one."""
    total = 0
    for episode in begun:
        if not episode.over:
            break
        total += len(episode)
    return total


def _concatenate(episodes: Sequence[_Episode], about: Mapping[str, str]) -> Tape:
    lengths = np.array([len(episode) for episode in episodes])
    first = 1 + np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])  # frame 0 is blank
    start = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    last = np.zeros(lengths.sum(), bool)
    last[start + lengths - 1] = True
    saved = [(at + step, state) for at, e in zip(start, episodes, strict=True) for step, state in e.states.items()]
    machines = [np.frombuffer(state.machine, np.uint8) for _, state in saved]
    blank = np.zeros((SIDE, SIDE), np.uint8)
    numpy = {
        "frames": np.stack([blank, *(frame for episode in episodes for frame in episode.frames)]),
        "newest": np.concatenate([at + np.arange(length) for at, length in zip(first, lengths, strict=True)]),
        "first": first.repeat(lengths),
        "action": np.array([action for episode in episodes for action in episode.actions]),
        "reward": np.array([reward for episode in episodes for reward in episode.rewards], np.float32),
        "terminated": last & np.array([episode.terminated for episode in episodes]).repeat(lengths),
        "truncated": last & np.array([episode.truncated for episode in episodes]).repeat(lengths),
        "saved": np.array([at for at, _ in saved], np.int64),
        "machines": np.stack(machines) if machines else np.empty((0, 0), np.uint8),
        "held": np.array([state.held for _, state in saved], np.int64),
    }
    return Tape(**{name: torch.from_numpy(array) for name, array in numpy.items()}, about=about)


def _compress(rows: Tensor) -> Tensor:
    """The compressed differences of successive rows, as bytes. A frame takes about 100 bytes."""
    array: NDArray[np.uint8] = rows.numpy()
    changes = array.copy()
    changes[1:] ^= array[:-1]
    return torch.frombuffer(bytearray(lzma.compress(changes.data, preset=1)), dtype=torch.uint8)


def _check_columns(tensors: Mapping[str, Tensor]) -> int:
    """The number of frames, if all columns fit together. The compressed ones are not looked into."""
    columns = ("newest", "first", "action", "reward", "terminated", "truncated")
    count = len(tensors["action"]) if tensors["action"].ndim else 0
    if not count or any(tensors[name].shape != (count,) for name in columns):
        raise ValueError("its columns have different lengths")
    if tensors["saved"].ndim != 1 or tensors["saved"].shape != tensors["held"].shape:
        raise ValueError("its saved states have different lengths")
    kinds = {"reward": torch.float32, "terminated": torch.bool, "truncated": torch.bool}
    kinds |= dict.fromkeys(COMPRESSED, torch.uint8)
    for name, tensor in tensors.items():
        if tensor.dtype != kinds.get(name, torch.int64):
            raise ValueError(f"{name} is {tensor.dtype}")
    if any(tensors[name].ndim != 1 for name in COMPRESSED):
        raise ValueError("its compressed parts are not vectors of bytes")
    newest, first, saved = tensors["newest"], tensors["first"], tensors["saved"]
    # Every episode has one frame more than actions, and frame 0 is blank.
    frames = 1 + count + len(first.unique_consecutive())
    if int(first.min()) < 1 or not bool((first <= newest).all()) or not int(newest.max()) < frames:
        raise ValueError("its transitions name frames that do not exist")
    if len(saved) and not 0 <= int(saved.min()) <= int(saved.max()) < count:
        raise ValueError("its saved states belong to no transition")
    if int(tensors["action"].min()) < 0:
        raise ValueError("its actions are negative")
    return frames


def _decompress(packed: Tensor, shape: tuple[int, ...], most: int) -> Tensor:
    """The rows of a compressed tensor, of at most ``most`` bytes."""
    decompressor = lzma.LZMADecompressor(memlimit=MAX_LZMA_BYTES)
    content = decompressor.decompress(packed.numpy().tobytes(), most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes when unpacked")
    if not decompressor.eof:
        raise EOFError("its compressed data ends too early")
    changes = np.frombuffer(bytearray(content), np.uint8)
    if not changes.size:
        return torch.empty(shape[0], 0, dtype=torch.uint8)
    rows = changes.reshape(shape)
    for before, row in itertools.pairwise(rows):  # much faster than ufunc.accumulate along the first axis
        row ^= before
    return torch.from_numpy(rows)


def _file(path: Path, game: str) -> TensorFile:
    return TensorFile(path, "recording", f"unstale-lab data atari {game}")
