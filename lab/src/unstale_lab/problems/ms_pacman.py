"""Ms. Pac-Man: policy evaluation of an expert from recorded games."""

from __future__ import annotations

import hashlib
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .data_folder import data_folder
from .images import FrameStacks
from .problem import Stream, Transitions, ValueSet, seeded

if TYPE_CHECKING:
    from ..atari.tape import Tape
    from ..atari.truth import Truth

GAMMA = 0.99
TRAINING_SUBSET = 2_000  # transitions on which the training error is measured


class Recordings(NamedTuple):
    train: Tape
    test: Tape
    truth: Truth  # estimated values of some test states


class MsPacman:
    """States are pairs of a transition index, with the test set after the training set, and an action.

    Rewards are clipped to their sign. Errors are measured against single sampled returns, as in the paper
    (``evaluation``), which are noisy, and against means of many returns from the same emulator state (``truth``).
    """

    inputs = 2
    bootstraps = True

    def __init__(self, folder: Path | None = None, transitions: int | None = None) -> None:
        """
        Args:
            folder: read when first needed. Default: ``data_folder("ms_pacman")``.
            transitions: use only the first ones of the training set. Default: all.
        """
        self._folder = folder or data_folder("ms_pacman")
        self._transitions = transitions
        self._sarsa = cache(self._training_transitions)
        self.images = cache(self._images)

    def stream(self, seed: int, batch: int, n_step: int) -> Stream:
        """Transitions sampled with replacement."""
        buffer = self._sarsa(n_step)
        generator = seeded("ms_pacman", "stream", seed)

        def take(count: int) -> Transitions:
            index = torch.randint(len(buffer.reward), (count, batch), generator=generator)
            return buffer.map(lambda field: field[index])

        return take

    def values(self) -> dict[str, ValueSet]:
        train, test, truth = self._data
        some = torch.randperm(len(train), generator=seeded("ms_pacman", "training values"))[:TRAINING_SUBSET]
        error = truth.standard_error
        return {
            "training": self._sampled_returns(train, some, offset=0),
            "evaluation": self._sampled_returns(test, torch.arange(len(test)), offset=len(train)),
            "truth": ValueSet(
                _states(test, truth.index, len(train)), truth.mean, error, floor=error.square().mean().item()
            ),
        }

    def fingerprint(self) -> str:
        train, test, truth = self._data
        values = hashlib.sha256(truth.mean.numpy().tobytes()).hexdigest()[:12]
        return f"{train.fingerprint()}, {test.fingerprint()}, {values}"

    def _images(self, device: str) -> FrameStacks:
        from ..atari.games import action_count

        train, test, _ = self._data
        # Both recordings begin with the blank frame; it is kept once.
        frames = torch.cat([train.frames, test.frames[1:]])
        shift = len(train.frames) - 1
        newest, first = (torch.cat([getattr(train, name), getattr(test, name) + shift]) for name in ("newest", "first"))
        outputs = action_count(train.about["game"])
        return FrameStacks(frames.to(device), newest.to(device), first.to(device), outputs)

    def _training_transitions(self, n_step: int) -> Transitions:
        sarsa = self._data.train.sarsa(n_step, GAMMA)
        kept = slice(self._transitions)
        return Transitions(
            torch.stack([sarsa.state, sarsa.action], -1)[kept],
            sarsa.reward[kept],
            sarsa.discount[kept],
            torch.stack([sarsa.next_state, sarsa.next_action], -1)[kept],
        )

    def _sampled_returns(self, tape: Tape, index: Tensor, offset: int) -> ValueSet:
        """Sampled returns of the transitions whose game was recorded to its end."""
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
    from ..atari.dataset import TEST, TRAIN, TRUTH
    from ..atari.tape import Tape
    from ..atari.truth import Truth

    return Recordings(Tape.load(folder / TRAIN), Tape.load(folder / TEST), Truth.load(folder / TRUTH, gamma=GAMMA))
