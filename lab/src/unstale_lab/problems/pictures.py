"""Pictures on a device, looked up by number where they are needed: they are bytes, and each is kept once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stills:
    """Single pictures, less their mean colour, in units of how much colours vary."""

    images: Tensor  # uint8 [pictures, channels, side, side]
    offset: Tensor  # [channels], on [0, 1]
    answers: int
    spread: float = 1.0  # on [0, 1]

    @property
    def channels(self) -> int:
        return self.images.shape[1]

    @property
    def side(self) -> int:
        return self.images.shape[-1]

    def look(self, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        pictures = self.images[numbers].to(dtype).div_(255) - self.offset.to(dtype)[:, None, None]
        return pictures.div_(self.spread)


@dataclass(frozen=True)
class Film:
    """Frames in their order, the first of all being blank. A picture is a frame below those before it, and below blank
    ones where its episode has no more."""

    frames: Tensor  # uint8 [frames, side, side]
    newest: Tensor  # [pictures], a frame
    first: Tensor  # [pictures], the first frame of the same episode
    answers: int
    channels: int = 4

    @property
    def side(self) -> int:
        return self.frames.shape[-1]

    def look(self, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        stack = stacked(self.newest[numbers], self.first[numbers], self.channels)
        return self.frames[stack].to(dtype).div_(255)


def stacked(newest: Tensor, first: Tensor, height: int) -> Tensor:
    """The frames of a picture, ``[...] → [..., height]``, the newest last; before the episode's first, 0."""
    frames = newest.unsqueeze(-1) - torch.arange(height - 1, -1, -1, device=newest.device)
    return torch.where(frames >= first.unsqueeze(-1), frames, 0)
