"""SVHN: classification of digits in photographs of house numbers. The supervised problem with a large network."""

from __future__ import annotations

import hashlib
import math
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .data_folder import data_folder
from .images import ImageSet
from .problem import Stream, Transitions, ValueSet, seeded
from .svhn_files import Labelled, load_images

TRAINING_SUBSET = 10_000  # images on which the training error is measured
_BRIGHTNESS = np.arange(256) / 255


class SVHN:
    """States are pairs of an image index and a label; the images are looked up on the device.

    The network sees ``(image / 255 - offset) / spread``. The paper does not specify the scale, and with inputs in
    [0, 1] this network hardly trains at first. Values are log-likelihoods of labels, at most 0. Rewards, discounts,
    next states and ``n_step`` are unused.
    """

    inputs = 2
    bootstraps = False

    def __init__(self, folder: Path | None = None) -> None:
        """``folder`` is read when first needed. Default: ``data_folder("svhn")``."""
        self._folder = folder or data_folder("svhn")

    @cache  # noqa: B019  problems are created once and live as long as the process
    def images(self, device: str) -> ImageSet:
        """All images, the training set first."""
        return ImageSet(self._data[0].image.to(device), self.offset.to(device), outputs=10, spread=self.spread)

    @cache  # noqa: B019
    def fingerprint(self) -> str:
        everything, training = self._data
        digest = hashlib.sha256(everything.image.numpy().tobytes() + everything.label.numpy().tobytes())
        return f"{digest.hexdigest()[:12]}, {training}, standardised"

    @cached_property
    def offset(self) -> Tensor:
        """The mean color of the training set, float32 [3] in [0, 1]."""
        return torch.from_numpy(self._frequencies @ _BRIGHTNESS).float()

    @cached_property
    def spread(self) -> float:
        """The standard deviation of colors in the training set."""
        variance = self._frequencies @ _BRIGHTNESS**2 - (self._frequencies @ _BRIGHTNESS) ** 2
        return math.sqrt(variance.mean())

    @cached_property
    def _frequencies(self) -> np.ndarray:
        """Relative frequencies of pixel values in each channel of the training set, [3, 256]."""
        everything, training = self._data
        counts = np.zeros((3, 256), dtype=np.int64)
        for some in everything.image[:training].split(
            1000
        ):  # bincount converts to int64, which takes eight times the memory
            counts += [np.bincount(channel.ravel(), minlength=256) for channel in some.numpy().swapaxes(0, 1)]
        return counts / counts[0].sum()

    def stream(self, seed: int, batch: int, n_step: int) -> Stream:
        """Minibatches of the training set, sampled with replacement."""
        generator = seeded("svhn", "stream", seed)
        _, training = self._data

        def take(count: int) -> Transitions:
            state = self._states(torch.randint(training, (count, batch), generator=generator))
            nothing = torch.zeros(count, batch, dtype=torch.float32)
            return Transitions(state, nothing, nothing, state)

        return take

    def values(self) -> dict[str, ValueSet]:
        """A subset of the training set, the same for every seed, and the whole test set."""
        everything, training = self._data
        some = torch.randperm(training, generator=seeded("svhn", "training values"))[:TRAINING_SUBSET]
        return {
            name: ValueSet(self._states(index), *torch.zeros(2, len(index), dtype=torch.float64))
            for name, index in (("training", some), ("evaluation", torch.arange(training, len(everything.label))))
        }

    @cached_property
    def _data(self) -> tuple[Labelled, int]:
        """Training and test set, concatenated, and the size of the training set."""
        loaded = load_images(self._folder)
        sets = (loaded.train, loaded.test)
        everything = Labelled(torch.cat([s.image for s in sets]), torch.cat([s.label for s in sets]))
        return everything, len(loaded.train.label)

    def _states(self, index: Tensor) -> Tensor:
        return torch.stack([index, self._data[0].label[index]], -1)
