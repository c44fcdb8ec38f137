"""Recordings of play: every picture kept once, whatever the number of observations it is part of."""

from __future__ import annotations

import hashlib
import itertools
import lzma
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..problems.pictures import stacked
from ..problems.tensor_file import TensorFile
from .emulator import Emulator, Picture, State
from .games import SIDE, STACK, Policy


class KnownPolicy(Policy, Protocol):
    def fingerprint(self) -> str:
        """Tells it from other policies."""
        ...


@dataclass(frozen=True)
class Sarsa:
    """The target of ``Q(state, action)`` is ``reward + discount · Q(next_state, next_action)``. States are indices of
    transitions on the tape; where the game ended on the way, the discount is 0 and the next state any."""

    state: Tensor
    action: Tensor
    reward: Tensor  # the discounted sum of n clipped rewards
    discount: Tensor  # γⁿ, or 0
    next_state: Tensor
    next_action: Tensor


@dataclass(frozen=True, eq=False)
class Tape:
    """Transitions in the order of play, one episode after the other.

    An episode of T actions has T+1 pictures, one after the other in ``frames``; the last is what was seen after the
    last action. Picture 0 belongs to no episode: it is blank, and stands in for what was before an episode's first.
    """

    frames: Tensor  # uint8 [pictures, 84, 84]
    newest: Tensor  # [transitions], the newest picture in view when the action was chosen
    first: Tensor  # [transitions], the first picture of the episode
    action: Tensor  # [transitions]
    reward: Tensor  # [transitions], the score in the game, not clipped
    terminated: Tensor  # [transitions], whether the game ended with this action
    truncated: Tensor  # [transitions], whether it was cut off after this action
    saved: Tensor  # [saved], transitions before whose action the state of the game was saved
    machines: Tensor  # uint8 [saved, bytes], and those states
    held: Tensor  # [saved]
    about: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.action)

    def to(self, device: torch.device | str) -> Tape:
        """With all its tensors there."""
        return replace(self, **{name: getattr(self, name).to(device) for name in TENSORS})

    def stacks(self, index: Tensor) -> Tensor:
        """The pictures in view at these transitions, [..., 4], the newest last."""
        return stacked(self.newest[index], self.first[index], STACK)

    def observations(self, index: Tensor) -> Tensor:
        """What was in view at these transitions, uint8 [..., 4, 84, 84]."""
        return self.frames[self.stacks(index)]

    def state(self, number: int) -> State:
        """The state of the game before the action of transition ``saved[number]``."""
        observation = self.observations(self.saved[number]).numpy()
        return State(self.machines[number].numpy().tobytes(), int(self.held[number]), observation)

    def clipped(self) -> Tensor:
        """The sign of each reward."""
        return self.reward.sign()

    def sarsa(self, n_step: int, gamma: float) -> Sarsa:
        """All that can be learned from; left out is what looks ahead to an action that was not recorded."""
        start = torch.arange(len(self), device=self.action.device)
        reward = torch.zeros_like(self.reward)
        known = torch.ones_like(self.terminated)
        running = torch.ones_like(self.terminated)  # neither terminated nor at the end of what was recorded
        for ahead in range(n_step + 1):
            at = (start + ahead).clamp(max=len(self) - 1)
            recorded = (self.first[at] == self.first) & (start + ahead < len(self))
            known &= recorded | ~running
            running &= recorded
            if ahead < n_step:
                reward += gamma**ahead * self.clipped()[at] * running
                running &= ~self.terminated[at]
        state, goes_on = start[known], running[known]
        next_state = state + n_step * goes_on
        discount = gamma**n_step * goes_on.to(reward.dtype)
        return Sarsa(state, self.action[state], reward[known], discount, next_state, self.action[next_state])

    def returns(self, gamma: float) -> Tensor:
        """The discounted sum of clipped rewards from each transition to the end of its game, [transitions] in float64;
        NaN where that end was not recorded."""
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
        """Twelve characters that differ between recordings of different play."""
        digest = hashlib.sha256()
        for part in (self.first, self.action, self.reward, self.saved):
            digest.update(part.cpu().numpy().tobytes())
        return digest.hexdigest()[:12]

    def save(self, path: Path) -> None:
        tensors = {name: getattr(self, name) for name in TENSORS}
        _file(path, self.about.get("game", "")).write(
            {name: _packed(held) if name in PACKED else held.contiguous() for name, held in tensors.items()},
            dict(self.about),
        )

    @classmethod
    def load(cls, path: Path, game: str = "ms_pacman") -> Tape:
        """A recording of that game; an ``DataError`` where the file is none."""
        file = _file(path, game)
        tensors, about = file.read(TENSORS)
        if about.get("game") != game:
            raise file.refused(f"it is a recording of {about.get('game', 'no game')}, not of {game}")
        try:
            tensors["frames"] = _unpacked(tensors["frames"], (-1, SIDE, SIDE))
            tensors["machines"] = _unpacked(tensors["machines"], (len(tensors["saved"]), -1))
        except (lzma.LZMAError, EOFError, ValueError, RuntimeError) as error:
            raise file.refused(error) from error
        return cls(**tensors, about=about)


TENSORS = tuple(name for name in Tape.__dataclass_fields__ if name != "about")
PACKED = ("frames", "machines")  # large, and each much like the one before


def record(
    emulators: Sequence[Emulator],
    policy: Policy,
    transitions: int,
    numbers: torch.Generator,
    *,
    save_every: int = 0,
    about: Mapping[str, str] | None = None,
    progress: Callable[[int], None] = lambda transitions: None,
) -> Tape:
    """At least so many transitions: all episodes are whole, and the last goes on to its end.

    The games are played side by side, but the tape has the episodes in the order in which they began, as if one game
    had been played after the other. (Those that end first would be too short on average.) With ``save_every``, the
    state of the game is saved before every so-many-th action of an episode, the first included.
    """
    begun = [_Episode(emulator) for emulator in emulators]
    playing = list(begun)
    while _finished(begun) < transitions:
        observations = torch.from_numpy(np.stack([episode.emulator.observation for episode in playing]))
        for episode, action in zip(playing, policy.act(observations, numbers).tolist(), strict=True):
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
    return _joined(wanted, about or {})


class _Episode:
    def __init__(self, emulator: Emulator) -> None:
        emulator.reset()
        self.emulator = emulator
        self.frames: list[Picture] = [emulator.frame]
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
    """Transitions of all episodes before the first that still goes on."""
    total = 0
    for episode in begun:
        if not episode.over:
            break
        total += len(episode)
    return total


def _joined(episodes: Sequence[_Episode], about: Mapping[str, str]) -> Tape:
    lengths = np.array([len(episode) for episode in episodes])
    first = 1 + np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])  # picture 0 is the blank one
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


def _packed(rows: Tensor) -> Tensor:
    """As bytes: what changed from each row to the next, compressed. A picture takes about a hundred."""
    whole: NDArray[np.uint8] = rows.numpy()
    changes = whole.copy()
    changes[1:] ^= whole[:-1]
    return torch.frombuffer(bytearray(lzma.compress(changes.data, preset=1)), dtype=torch.uint8)


def _unpacked(packed: Tensor, shape: tuple[int, ...]) -> Tensor:
    changes = np.frombuffer(bytearray(lzma.decompress(packed.numpy().tobytes())), np.uint8)
    if not changes.size:
        return torch.empty(shape[0], 0, dtype=torch.uint8)
    rows = changes.reshape(shape)
    for before, row in itertools.pairwise(rows):  # many times faster than ufunc.accumulate along the first axis
        row ^= before
    return torch.from_numpy(rows)


def _file(path: Path, game: str) -> TensorFile:
    return TensorFile(path, "recording", f"unstale-lab make-data {game}")
