"""SVHN: which digit a photograph of a house number shows. The supervised case with a large network."""

from __future__ import annotations

import hashlib
import math
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .base import Stream, Transitions, ValueSet, seeded
from .data_folder import data_folder
from .pictures import Stills
from .svhn_files import Labelled, load_pictures

MEASURED = 10_000  # pictures of the training set, on which the training error is measured
_BRIGHTNESS = np.arange(256) / 255


class SVHN:
    """A state is the number of a picture and its label: whoever learns looks the picture up where it computes, and
    sees ``(picture / 255 - offset) / spread``: the paper says nothing of scales, and colours on [0, 1] would leave this
    network for long where it begins. Values are log-likelihoods of labels, at best 0. Rewards, discounts, next states
    and ``n_step`` are without meaning."""

    inputs = 2
    bootstraps = False

    def __init__(self, folder: Path | None = None) -> None:
        """The folder is ``svhn`` among the data unless given. It is read when first needed."""
        self._folder = folder or data_folder("svhn")

    @cache  # noqa: B019  a problem is made once, and kept
    def pictures(self, device: str) -> Stills:
        """Every picture, those for training first."""
        return Stills(self._data[0].image.to(device), self.offset.to(device), answers=10, spread=self.spread)

    @cache  # noqa: B019
    def fingerprint(self) -> str:
        everything, training = self._data
        digest = hashlib.sha256(everything.image.numpy().tobytes() + everything.label.numpy().tobytes())
        return f"{digest.hexdigest()[:12]}, {training}, standardised"

    @cached_property
    def offset(self) -> Tensor:
        """The mean colour of the training set, float32 [3] on [0, 1]."""
        return torch.from_numpy(self._shares @ _BRIGHTNESS).float()

    @cached_property
    def spread(self) -> float:
        """The standard deviation of its colours from it."""
        variance = self._shares @ _BRIGHTNESS**2 - (self._shares @ _BRIGHTNESS) ** 2
        return math.sqrt(variance.mean())

    @cached_property
    def _shares(self) -> np.ndarray:
        """How often every byte occurs in each channel of the training set, [3, 256]."""
        everything, training = self._data
        counts = np.zeros((3, 256), dtype=np.int64)
        for some in everything.image[:training].split(1000):  # counting makes numbers of bytes, eight times as large
            counts += [np.bincount(channel.ravel(), minlength=256) for channel in some.numpy().swapaxes(0, 1)]
        return counts / counts[0].sum()

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
