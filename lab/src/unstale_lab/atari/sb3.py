"""Reading the actors that Stable-Baselines3 saves, without Stable-Baselines3: its ``CnnPolicy`` is the same network."""

from __future__ import annotations

import io
import pickle
import zipfile

import torch
from torch import Tensor

from ..problems.tensor_file import TensorFile

# Our name of each layer, and theirs below the trunk.
TRUNK = {"trunk.0": "cnn.0", "trunk.2": "cnn.2", "trunk.4": "cnn.4", "trunk.7": "linear.0"}
PPO_OR_A2C = {
    **{ours: f"features_extractor.{theirs}" for ours, theirs in TRUNK.items()},
    "policy": "action_net",
    "value": "value_net",
}
# Action values take the place of logits.
DQN = {**{ours: f"q_net.features_extractor.{theirs}" for ours, theirs in TRUNK.items()}, "policy": "q_net.q_net.0"}


def read_sb3(file: TensorFile) -> tuple[dict[str, Tensor], bool]:
    """The weights of an ``Actor``, from the ``.zip`` of a PPO, A2C or DQN with a ``CnnPolicy``; and whether it is to be
    followed greedily, as a DQN is."""
    try:
        with zipfile.ZipFile(file.path) as archive:
            content = archive.read("policy.pth")
        saved = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (OSError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise file.refused(f"it is no model of Stable-Baselines3 ({str(error).splitlines()[0]})") from error
    layout = DQN if any(name.startswith("q_net.") for name in saved) else PPO_OR_A2C
    names = {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in layout.items() for kind in ("weight", "bias")}
    missing = [theirs for theirs in names.values() if theirs not in saved]
    if missing:
        raise file.refused(f"only PPO, A2C and DQN with a CnnPolicy can be read, and {missing[0]} is not in it")
    weights = {ours: saved[theirs].float() for ours, theirs in names.items()}
    if layout is DQN:  # it has no value of its own, and none is needed to act
        weights |= {"value.weight": torch.zeros(1, weights["policy.weight"].shape[1], dtype=torch.float32)}
        weights |= {"value.bias": torch.zeros(1, dtype=torch.float32)}
    if not all(tensor.isfinite().all() for tensor in weights.values()):
        raise file.refused("some of its numbers are not finite")
    return weights, layout is DQN
