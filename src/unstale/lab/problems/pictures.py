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
    """Frames in their order; a picture is a frame below those before it, never reaching behind ``first``, where it is
    the first frame over again."""

    frames: Tensor  # uint8 [frames, side, side]
    first: Tensor  # [frames], the first of the same episode
    answers: int
    channels: int = 4

    @property
    def side(self) -> int:
        return self.frames.shape[-1]

    def look(self, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        ages = torch.arange(self.channels - 1, -1, -1, device=numbers.device)
        stack = torch.maximum(numbers.unsqueeze(-1) - ages, self.first[numbers].unsqueeze(-1))
        return self.frames[stack].to(dtype).div_(255)
