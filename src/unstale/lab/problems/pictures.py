"""Pictures on a device, looked up by number where they are needed: they are bytes, and each is kept once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stills:
    """Single pictures, less their mean colour."""

    images: Tensor  # uint8 [pictures, channels, side, side]
    offset: Tensor  # [channels], on [0, 1]
    answers: int

    @property
    def channels(self) -> int:
        return self.images.shape[1]

    @property
    def side(self) -> int:
        return self.images.shape[-1]

    def look(self, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        return self.images[numbers].to(dtype).div_(255) - self.offset.to(dtype)[:, None, None]


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
        ages = torch.arange(self.channels - 1, -1, -1, device=numbers.device)
        stack = self.newest[numbers].unsqueeze(-1) - ages
        stack = torch.where(stack >= self.first[numbers].unsqueeze(-1), stack, 0)
        return self.frames[stack].to(dtype).div_(255)
