"""Images on a device, looked up by index: they are stored once, as bytes, and converted when needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageSet:
    """Single images, normalized: ``(image / 255 - offset) / spread``."""

    pixels: Tensor  # uint8 [images, channels, side, side]
    offset: Tensor  # [channels], in [0, 1]
    outputs: int  # of a network
    spread: float = 1.0  # in [0, 1]

    @property
    def channels(self) -> int:
        return self.pixels.shape[1]

    @property
    def side(self) -> int:
        return self.pixels.shape[-1]

    def load(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        images = self.pixels[index].to(dtype).div_(255) - self.offset.to(dtype)[:, None, None]
        return images.div_(self.spread)


@dataclass(frozen=True)
class FrameStacks:
    """Stacked frames of recorded episodes.

    Frames are in temporal order; frame 0 is blank. An image is a stack of a frame and the frames before it, with blank
    frames before the start of its episode.
    """

    frames: Tensor  # uint8 [frames, side, side]
    newest: Tensor  # [images], index of the newest frame
    first: Tensor  # [images], index of the first frame of the same episode
    outputs: int  # of a network
    channels: int = 4

    @property
    def side(self) -> int:
        return self.frames.shape[-1]

    def load(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        stack = stack_indices(self.newest[index], self.first[index], self.channels)
        return self.frames[stack].to(dtype).div_(255)


def stack_indices(newest: Tensor, first: Tensor, height: int) -> Tensor:
    """Return the frame indices of a stack, ``[..., height]``, newest last; 0 before the episode's first frame."""
    frames = newest.unsqueeze(-1) - torch.arange(height - 1, -1, -1, device=newest.device)
    return torch.where(frames >= first.unsqueeze(-1), frames, 0)
