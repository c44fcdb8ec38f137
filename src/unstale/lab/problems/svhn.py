"""SVHN: which digit a photograph of a house number shows. The supervised case with a large network."""

from __future__ import annotations

import hashlib
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .base import Stream, Transitions, ValueSet, seeded
from .data_folder import data_folder
from .pictures import Stills
from .svhn_files import SIDE, Labelled, load_pictures

MEASURED = 10_000  # pictures of the training set, on which the training error is measured


class SVHN:
    """A state is the number of a picture and its label: whoever learns looks the picture up where it computes, and
    sees ``picture / 255 - offset``. Values are log-likelihoods of labels, at best 0. Rewards, discounts, next states
    and ``n_step`` are without meaning."""

    inputs = 2
    bootstraps = False

    def __init__(self, folder: Path | None = None) -> None:
        """The folder is ``svhn`` among the data unless given. It is read when first needed."""
        self._folder = folder or data_folder("svhn")

    @cache  # noqa: B019  a problem is made once, and kept
    def pictures(self, device: str) -> Stills:
        """Every picture, those for training first."""
        return Stills(self._data[0].image.to(device), self.offset.to(device), answers=10)

    @cache  # noqa: B019
    def fingerprint(self) -> str:
        everything, training = self._data
        digest = hashlib.sha256(everything.image.numpy().tobytes() + everything.label.numpy().tobytes())
        return f"{digest.hexdigest()[:12]}, {training}"

    @cached_property
    def offset(self) -> Tensor:
        """The mean colour of the training set, float32 [3] on [0, 1]."""
        everything, training = self._data
        # By numpy: torch makes integers of all bytes, eight times as large, before it adds them.
        total = everything.image[:training].numpy().sum((0, 2, 3), dtype=np.int64)
        return torch.from_numpy(total / (255 * training * SIDE**2)).float()

    def stream(self, seed: int, batch: int, n_step: int) -> Stream:
        """Minibatches of the training set, drawn with replacement."""
        numbers = seeded("svhn", "stream", seed)
        _, training = self._data

        def take(count: int) -> Transitions:
            state = self._states(torch.randint(training, (count, batch), generator=numbers))
            nothing = torch.zeros(count, batch, dtype=torch.float32)
            return Transitions(state, nothing, nothing, state)

        return take

    def values(self) -> dict[str, ValueSet]:
        """Some of the training set, the same for every seed, and the whole test set."""
        everything, training = self._data
        some = torch.randperm(training, generator=seeded("svhn", "training values"))[:MEASURED]
        return {
            name: ValueSet(self._states(numbers), *torch.zeros(2, len(numbers), dtype=torch.float64))
            for name, numbers in (("training", some), ("evaluation", torch.arange(training, len(everything.label))))
        }

    @cached_property
    def _data(self) -> tuple[Labelled, int]:
        """Training set and test set as one, and how many are in the first."""
        loaded = load_pictures(self._folder)
        sets = (loaded.train, loaded.test)
        everything = Labelled(torch.cat([s.image for s in sets]), torch.cat([s.label for s in sets]))
        return everything, len(loaded.train.label)

    def _states(self, numbers: Tensor) -> Tensor:
        return torch.stack([numbers, self._data[0].label[numbers]], -1)
