"""Evaluation of a MsPacman expert from recordings of its play."""

from __future__ import annotations

import hashlib
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .base import Stream, Transitions, ValueSet, seeded
from .data_folder import data_folder
from .pictures import Film

if TYPE_CHECKING:
    from ..atari.tape import Tape
    from ..atari.truth import Truth

GAMMA = 0.99
MEASURED = 2_000  # transitions of the training set, on which the training error is measured


class Recordings(NamedTuple):
    train: Tape
    test: Tape
    truth: Truth  # of some of the test


class MsPacman:
    """A state is the number of a transition, the test's after the training's, and an action. Rewards are clipped to
    their signs. Errors are measured against single sampled returns, as in the paper (``evaluation``), where chance
    rules; and against means of many returns from the same state of the emulator (``truth``)."""

    inputs = 2
    bootstraps = True

    def __init__(self, folder: Path | None = None, transitions: int | None = None) -> None:
        """The folder is ``ms_pacman`` among the data unless given, read when first needed; and of the training set all
        is learned from, or its first so many transitions."""
        self._folder = folder or data_folder("ms_pacman")
        self._transitions = transitions
        self._sarsa = cache(self._learned_from)
        self.pictures = cache(self._pictures)

    def stream(self, seed: int, batch: int, n_step: int) -> Stream:
        """Transitions drawn with replacement."""
        buffer = self._sarsa(n_step)
        numbers = seeded("ms_pacman", "stream", seed)

        def take(count: int) -> Transitions:
            index = torch.randint(len(buffer.reward), (count, batch), generator=numbers)
            return buffer.map(lambda field: field[index])

        return take

    def values(self) -> dict[str, ValueSet]:
        train, test, truth = self._data
        some = torch.randperm(len(train), generator=seeded("ms_pacman", "training values"))[:MEASURED]
        error = truth.standard_error
        return {
            "training": self._returned(train, some, offset=0),
            "evaluation": self._returned(test, torch.arange(len(test)), offset=len(train)),
            "truth": ValueSet(
                _states(test, truth.index, len(train)), truth.mean, error, floor=error.square().mean().item()
            ),
        }

    def fingerprint(self) -> str:
        train, test, truth = self._data
        values = hashlib.sha256(truth.mean.numpy().tobytes()).hexdigest()[:12]
        return f"{train.fingerprint()}, {test.fingerprint()}, {values}"

    def _pictures(self, device: str) -> Film:
        from ..atari.games import action_count

        train, test, _ = self._data
        # Of the test's frames all but the blank one, which both have.
        frames = torch.cat([train.frames, test.frames[1:]])
        shift = len(train.frames) - 1
        newest, first = (torch.cat([getattr(train, name), getattr(test, name) + shift]) for name in ("newest", "first"))
        answers = action_count(train.about["game"])
        return Film(frames.to(device), newest.to(device), first.to(device), answers)

    def _learned_from(self, n_step: int) -> Transitions:
        sarsa = self._data.train.sarsa(n_step, GAMMA)
        kept = slice(self._transitions)
        return Transitions(
            torch.stack([sarsa.state, sarsa.action], -1)[kept],
            sarsa.reward[kept],
            sarsa.discount[kept],
            torch.stack([sarsa.next_state, sarsa.next_action], -1)[kept],
        )

    def _returned(self, tape: Tape, index: Tensor, offset: int) -> ValueSet:
        """Of the transitions whose game was recorded to its end."""
        value = tape.returns(GAMMA)[index]
        known = value.isfinite()
        index, value = index[known], value[known]
        return ValueSet(_states(tape, index, offset), value, torch.zeros_like(value))

    @cached_property
    def _data(self) -> Recordings:
        return _recordings(self._folder)


def _states(tape: Tape, index: Tensor, offset: int) -> Tensor:
    return torch.stack([index + offset, tape.action[index]], -1)


@cache
def _recordings(folder: Path) -> Recordings:
    from ..atari.make_data import TEST, TRAIN, TRUTH
    from ..atari.tape import Tape
    from ..atari.truth import Truth

    return Recordings(Tape.load(folder / TRAIN), Tape.load(folder / TEST), Truth.load(folder / TRUTH, gamma=GAMMA))
