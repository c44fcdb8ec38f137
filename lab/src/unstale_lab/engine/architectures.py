"""The networks of the paper, by name."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from ..errors import UserError, unknown
from ..experiment import Run
from ..problems.base import PictureProblem, Pictures, Problem
from .heads import ACTION_VALUE, CLASS
from .layers import Conv, Dense, Flat, Layer
from .network import Look, Network, plain, radial


def network_of(run: Run, problem: Problem, device: str = "cpu") -> Network:
    if run.network not in ARCHITECTURES:
        raise unknown("network", run.network, ARCHITECTURES)
    return ARCHITECTURES[run.network](run, problem, device)


def _mlp(run: Run, problem: Problem, device: str) -> Network:
    look = radial(run.rbf_grid, run.rbf_width) if run.rbf_grid else plain
    sizes = [run.rbf_grid**2 or problem.inputs, *[run.width] * (run.layers - 1), 1]
    return Network([Dense(into, out) for into, out in pairwise(sizes)], run.activation, look)


def _svhn(run: Run, problem: Problem, device: str) -> Network:
    """For pictures of 32 by 32."""
    w, pictures = run.width, _pictures(problem, device)
    layers = _chain(pictures, [(w, 3, 2, 1), (2 * w, 3, 2, 1), (2 * w, 3, 2, 1), (w, 3, 1, 1)])
    layers += [Flat(w, layers[-1].positions, 4 * w), Dense(4 * w, 4 * w), Dense(4 * w, pictures.answers)]
    return Network(layers, run.activation, _look(pictures, run), CLASS)


def _dqn(run: Run, problem: Problem, device: str) -> Network:
    """The network of DQN, padded as in the paper; ``run.width`` is its n_h, 32 being the paper's 4.8 million."""
    w, pictures = run.width, _pictures(problem, device)
    layers = _chain(pictures, [(w, 8, 4, 4), (2 * w, 4, 2, 2), (2 * w, 3, 1, 1)])
    layers += [Flat(2 * w, layers[-1].positions, 16 * w), Dense(16 * w, pictures.answers)]
    return Network(layers, run.activation, _look(pictures, run), ACTION_VALUE)


def _small_atari(run: Run, problem: Problem, device: str) -> Network:
    """The paper's small model: 12,745 parameters at a width of 16 and 9 actions."""
    pictures = _pictures(problem, device)
    layers = _chain(pictures, [*[(run.width, 3, 2, 1)] * 4, (pictures.answers, 6, 1, 0)])
    return Network(layers, run.activation, _look(pictures, run), ACTION_VALUE)


def _pictures(problem: Problem, device: str) -> Pictures:
    if not isinstance(problem, PictureProblem):
        raise UserError("this network looks at pictures, and the problem has none")
    return problem.pictures(device)


def _chain(pictures: Pictures, convolutions: list[tuple[int, int, int, int]]) -> list[Layer]:
    """Convolutions one after another, each by its outputs, kernel, stride and padding."""
    chain: list[Layer] = []
    channels, side = pictures.channels, pictures.side
    for outputs, kernel, stride, padding in convolutions:
        layer = Conv(channels, outputs, kernel, stride, padding, side=side)
        chain.append(layer)
        channels, side = outputs, layer.side_out
    return chain


def _look(pictures: Pictures, run: Run) -> Look:
    dtype = torch.float64 if run.precision == "float64" else torch.float32

    def look(state: Tensor) -> Tensor:
        """``[..., rows, channels, pixels]`` of the pictures that states number."""
        return pictures.look(state[..., 0], dtype).flatten(-2).mT.contiguous().mT  # as convolutions like them

    return look


ARCHITECTURES: dict[str, Callable[[Run, Problem, str], Network]] = {
    "mlp": _mlp,
    "svhn": _svhn,
    "dqn": _dqn,
    "small_atari": _small_atari,
}
