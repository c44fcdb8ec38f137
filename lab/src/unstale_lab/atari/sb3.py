"""Reads models of Stable-Baselines3 without Stable-Baselines3: its ``CnnPolicy`` has the architecture of ``Actor``.

The files may come from anywhere. Sizes are checked before anything is unpacked, and only tensors are unpickled.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import torch
from torch import Tensor

from ..problems.tensor_file import TensorFile

MAX_BYTES = 256 << 20  # of the unpacked policy; that of a CnnPolicy has 7 to 20 MB

# Layers of ``Actor``, and their names in Stable-Baselines3 after the prefix of the features extractor.
TRUNK = {"trunk.0": "cnn.0", "trunk.2": "cnn.2", "trunk.4": "cnn.4", "trunk.7": "linear.0"}
PPO_OR_A2C = {
    **{ours: f"features_extractor.{theirs}" for ours, theirs in TRUNK.items()},
    "policy": "action_net",
    "value": "value_net",
}
# Action values take the place of logits.
DQN = {**{ours: f"q_net.features_extractor.{theirs}" for ours, theirs in TRUNK.items()}, "policy": "q_net.q_net.0"}


def read_sb3(file: TensorFile, expected: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], bool]:
    """The weights of an ``Actor`` from the ``.zip`` of a PPO, A2C or DQN with a ``CnnPolicy``.

    Args:
        expected: the ``state_dict`` of an ``Actor`` for the game, which defines the shapes.

    Returns:
        The weights, and whether to act greedily, as a DQN does.

    Raises:
        DataError: the file is not such a model.
    """
    try:
        saved = torch.load(io.BytesIO(_policy(file)), map_location="cpu", weights_only=True)
    except Exception as error:  # zipfile, zlib and torch.load raise nearly any type for malformed files
        raise file.refused(f"it is not a model of Stable-Baselines3 ({_first_line(error)})") from error
    if not isinstance(saved, dict) or not all(isinstance(name, str) for name in saved):
        raise file.refused("it is not a model of Stable-Baselines3 (its policy is not a state_dict)")
    layout = DQN if any(name.startswith("q_net.") for name in saved) else PPO_OR_A2C
    names = {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in layout.items() for kind in ("weight", "bias")}
    missing = [theirs for theirs in names.values() if theirs not in saved]
    if missing:
        raise file.refused(f"only PPO, A2C and DQN with a CnnPolicy can be read, and {missing[0]} is not in it")
    for ours, theirs in names.items():
        _check(file, theirs, saved[theirs], list(expected[ours].shape))
    weights = {ours: saved[theirs].float() for ours, theirs in names.items()}
    if layout is DQN:  # it has no state value, and none is needed to act
        weights |= {name: torch.zeros_like(expected[name]) for name in ("value.weight", "value.bias")}
    return weights, layout is DQN


def _policy(file: TensorFile) -> bytes:
    """The content of ``policy.pth``. It is a ZIP archive in turn, whose unpacked size is checked too."""
    with zipfile.ZipFile(file.path) as archive:
        _check_size(archive.getinfo("policy.pth").file_size)
        with archive.open("policy.pth") as member:
            content = member.read(MAX_BYTES + 1)  # the size in the directory of the archive may be wrong
    _check_size(len(content))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        _check_size(sum(member.file_size for member in archive.infolist()))
    return content


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise ValueError(f"its policy is larger than {MAX_BYTES >> 20} MiB when unpacked")


def _check(file: TensorFile, name: str, tensor: object, shape: list[int]) -> None:
    """Checks the shape first: a tensor that repeats one element takes no memory until it is computed with."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise file.refused(f"{name} is not a plain tensor")
    if list(tensor.shape) != shape:
        raise file.refused(f"the shape of {name} is {list(tensor.shape)}, not {shape}")
    if not tensor.is_floating_point() or not tensor.isfinite().all():
        raise file.refused(f"{name} has elements that are not finite numbers")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
