"""The networks of the paper, by name."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from ..errors import UserError, unknown
from ..experiment import Run
from ..problems.problem import ImageProblem, Images, Problem
from .layers import Conv, Dense, FlattenDense, Layer
from .network import FeatureMap, Network, identity_features, rbf_features
from .objectives import ACTION_VALUE, CLASSIFICATION


def build_network(run: Run, problem: Problem, device: str = "cpu") -> Network:
    """Return the network of a run.

    Raises:
        UserError: if ``run.network`` is not a key of ``ARCHITECTURES``, or the network does not fit the problem.
    """
    if run.network not in ARCHITECTURES:
        raise unknown("network", run.network, ARCHITECTURES)
    if run.rbf_grid and (run.network != "mlp" or problem.inputs != 2):
        raise UserError(
            f"rbf_grid {run.rbf_grid} needs network='mlp' and a problem with 2 inputs; network {run.network} on "
            f"{run.problem} has {problem.inputs}"
        )
    if run.rbf_amplitude != 1 and not run.rbf_grid:
        raise UserError(f"rbf_amplitude {run.rbf_amplitude} needs radial basis functions: set rbf_grid")
    return ARCHITECTURES[run.network](run, problem, device)


def _mlp(run: Run, problem: Problem, device: str) -> Network:
    feature_map = rbf_features(run.rbf_grid, run.rbf_width, run.rbf_amplitude) if run.rbf_grid else identity_features
    sizes = [run.rbf_grid**2 or problem.inputs, *[run.width] * (run.layers - 1), 1]
    return Network([Dense(inputs, outputs) for inputs, outputs in pairwise(sizes)], run.activation, feature_map)


def _svhn(run: Run, problem: Problem, device: str) -> Network:
    """Return the paper's classifier of 32 x 32 images."""
    w, images = run.width, _images(problem, device)
    layers = _convolutions(images, [(w, 3, 2, 1), (2 * w, 3, 2, 1), (2 * w, 3, 2, 1), (w, 3, 1, 1)])
    layers += [FlattenDense(w, layers[-1].positions, 4 * w), Dense(4 * w, 4 * w), Dense(4 * w, images.outputs)]
    return Network(layers, run.activation, _image_features(images, run), CLASSIFICATION)


def _dqn(run: Run, problem: Problem, device: str) -> Network:
    """Return DQN's network, padded as in the paper. ``run.width`` is its n_h; 32 gives the paper's 4.8 million."""
    w, images = run.width, _images(problem, device)
    layers = _convolutions(images, [(w, 8, 4, 4), (2 * w, 4, 2, 2), (2 * w, 3, 1, 1)])
    layers += [FlattenDense(2 * w, layers[-1].positions, 16 * w), Dense(16 * w, images.outputs)]
    return Network(layers, run.activation, _image_features(images, run), ACTION_VALUE)


def _small_atari(run: Run, problem: Problem, device: str) -> Network:
    """Return the paper's small model: 12,745 parameters for width 16 and 9 actions."""
    images = _images(problem, device)
    layers = _convolutions(images, [*[(run.width, 3, 2, 1)] * 4, (images.outputs, 6, 1, 0)])
    return Network(layers, run.activation, _image_features(images, run), ACTION_VALUE)


def _images(problem: Problem, device: str) -> Images:
    if not isinstance(problem, ImageProblem):
        raise UserError("this network takes images, and the problem has none; use network='mlp'")
    return problem.images(device)


def _convolutions(images: Images, specs: list[tuple[int, int, int, int]]) -> list[Layer]:
    """Return a chain of convolutions. Each spec is (outputs, kernel, stride, padding)."""
    chain: list[Layer] = []
    channels, side = images.channels, images.side
    for outputs, kernel, stride, padding in specs:
        layer = Conv(channels, outputs, kernel, stride, padding, side=side)
        chain.append(layer)
        channels, side = outputs, layer.side_out
    return chain


def _image_features(images: Images, run: Run) -> FeatureMap:
    dtype = torch.float64 if run.precision == "float64" else torch.float32

    def features(state: Tensor) -> Tensor:
        """Return the images ``[..., rows, channels, pixels]`` that states index, in channels-last memory format."""
        return images.load(state[..., 0], dtype).flatten(-2).mT.contiguous().mT

    return features


ARCHITECTURES: dict[str, Callable[[Run, Problem, str], Network]] = {
    "mlp": _mlp,
    "svhn": _svhn,
    "dqn": _dqn,
    "small_atari": _small_atari,
}
