"""Reads policies of Stable-Baselines3 without Stable-Baselines3, and without unpickling anything but tensors.

The archive has ``data`` (JSON, in which objects are pickles with readable attributes beside them) and ``policy.pth``
(tensors). For ``MlpPolicy`` the names of the tensors and the readable attributes say all that is needed.
"""

from __future__ import annotations

import io
import itertools
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .errors import EvaluationError, first_line, require
from .policies import WHY, ModulePolicy, Policy
from .spaces import MAX_FEATURES, ActionSpace, Array, Box, Discrete

MAX_BYTES = 256 << 20
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")
ACTIVATIONS = {"Tanh": nn.Tanh, "ReLU": nn.ReLU, "ELU": nn.ELU, "LeakyReLU": nn.LeakyReLU, "GELU": nn.GELU}


def load(path: Path, stochastic: bool, trust_pickle: bool, seed: int) -> Policy:
    """The policy of a saved model.

    Raises:
        EvaluationError: it is malformed, or a policy that needs ``trust_pickle``.
    """
    saved, weights = _read(path)
    if stochastic and "q_net.q_net.0.weight" in weights:
        raise EvaluationError(f"{path} is a DQN, which has no probabilities of actions; leave out --stochastic.")
    try:
        found = None if trust_pickle else _build(saved, weights)
    except Exception as error:  # shapes and types that do not fit each other
        raise EvaluationError(
            f"{path} is not a model of Stable-Baselines3: its data and its tensors do not fit together "
            f"({type(error).__name__}: {first_line(error)})."
        ) from error
    if found is not None:
        return Sb3Policy(found, path.name, stochastic, seed, saved)
    if not trust_pickle:
        raise EvaluationError(
            f"{path} is not a plain MlpPolicy of PPO, A2C, DQN, SAC, TD3 or DDPG, so reading it needs pickles: {WHY}."
        )
    return _unpickle(path, stochastic, seed)


class Sb3Policy(ModulePolicy):
    """A network of Stable-Baselines3, scaled or clipped to the bounds of the action space as there."""

    def __init__(self, network: SavedNetwork, name: str, stochastic: bool, seed: int, saved: Mapping[str, Any]) -> None:
        super().__init__(network.module, name, stochastic, seed)
        self._network, self._saved = network, saved
        self._bounds = (np.empty(0), np.empty(0))

    def check(self, observation_space: Any, space: ActionSpace) -> None:
        super().check(observation_space, space)
        theirs = self._saved["observation_space"]
        if observation_space is not None and tuple(theirs["_shape"]) != tuple(observation_space.shape):
            raise EvaluationError(
                f"the policy {self.name} takes observations of shape {tuple(theirs['_shape'])}, but those of the "
                f"environment have shape {tuple(observation_space.shape)}; it was trained in another environment."
            )
        actions, size = self._saved["action_space"], self._network.outputs
        discrete = "Discrete" in actions[":type:"]
        if discrete != isinstance(space, Discrete) or size != (space.n if isinstance(space, Discrete) else space.size):
            kind = f"Discrete({size})" if discrete else f"Box of shape {tuple(actions['_shape'])}"
            raise EvaluationError(f"the policy {self.name} chooses from a {kind}, but the action space is {space}.")
        if not isinstance(space, Discrete):
            self._bounds = self._find_bounds(space)

    def _find_bounds(self, space: Box) -> tuple[Array, Array]:
        """Those of the action space, or of the file if logged actions do not say."""
        low, high = space.low.ravel(), space.high.ravel()
        if not np.isfinite([low, high]).all():
            texts = (str(self._saved["action_space"].get(name, "")) for name in ("low", "high"))
            low, high = (np.array([float(x) for x in NUMBER.findall(text)], np.float32) for text in texts)
        if not low.size == high.size == space.size:
            raise EvaluationError(
                f"the bounds of the actions of {self.name} are not known; name an environment: --env."
            )
        return low, high

    def outputs(self, observations: Array) -> Array:
        if self._saved["observation_space"][":type:"].endswith("Discrete'>"):
            observations = np.eye(int(self._saved["observation_space"]["n"]), dtype=np.float32)[observations]
        found = super().outputs(observations.reshape(len(observations), -1))
        if isinstance(self.space, Discrete):
            return found
        mean, log_std = found[:, : self.space.size], found[:, self.space.size :]
        if self.stochastic and log_std.size:
            mean = mean + np.exp(log_std) * self.generator.standard_normal(mean.shape).astype(mean.dtype)
        low, high = self._bounds
        if self._network.squashed:
            mean = low + (np.tanh(mean) + 1) / 2 * (high - low)
        return np.clip(mean, low, high).reshape(len(observations), *self.space.low.shape)


class SavedNetwork:
    """A fully connected network whose last layers give logits, or the mean of an action and its log σ if it has one.

    Args:
        squashed: the mean goes through tanh and is scaled to the bounds.
    """

    def __init__(self, module: nn.Module, outputs: int, squashed: bool) -> None:
        self.module, self.outputs, self.squashed = module, outputs, squashed


class _MeanAndLogStd(nn.Module):
    def __init__(self, trunk: nn.Module, mean: nn.Module, log_std: nn.Module | Tensor | None) -> None:
        super().__init__()
        self.trunk, self.mean = trunk, mean
        self.log_std = log_std

    def forward(self, observations: Tensor) -> Tensor:
        hidden = self.trunk(observations)
        mean = self.mean(hidden)
        if self.log_std is None:
            return mean
        if isinstance(self.log_std, nn.Module):
            log_std = self.log_std(hidden).clamp(-20, 2)  # as SAC does
        else:
            log_std = self.log_std.expand_as(mean)
        return torch.cat([mean, log_std], -1)


def _build(saved: Mapping[str, Any], weights: Mapping[str, Tensor]) -> SavedNetwork | None:
    """The network, or None if there is anything in the file that is not understood."""
    if saved.get("use_sde") or not _plain_features(saved, weights):
        return None
    if "action_net.weight" in weights:  # PPO, A2C
        trunk = _layers(weights, "mlp_extractor.policy_net", _activation(saved, "Tanh"))
        head = _linear(weights, "action_net")
        discrete = "Discrete" in saved["action_space"][":type:"]
        if trunk is None or saved["action_space"][":type:"].count("Multi") or _squash_output(saved):
            return None
        return SavedNetwork(
            _MeanAndLogStd(trunk, head, None if discrete else weights["log_std"]), head.out_features, squashed=False
        )
    if "q_net.q_net.0.weight" in weights:  # DQN
        layers = _layers(weights, "q_net.q_net", _activation(saved, "ReLU"), last=True)
        return None if layers is None else SavedNetwork(layers, _out_features(layers), squashed=False)
    if "actor.mu.weight" in weights and "actor.log_std.weight" in weights:  # SAC
        trunk = _layers(weights, "actor.latent_pi", _activation(saved, "ReLU"))
        head, log_std = _linear(weights, "actor.mu"), _linear(weights, "actor.log_std")
        if trunk is None:
            return None
        return SavedNetwork(_MeanAndLogStd(trunk, head, log_std), head.out_features, squashed=True)
    if "actor.mu.0.weight" in weights:  # TD3, DDPG
        layers = _layers(weights, "actor.mu", _activation(saved, "ReLU"), last=True)
        return None if layers is None else SavedNetwork(layers, _out_features(layers), squashed=True)
    return None


def _plain_features(saved: Mapping[str, Any], weights: Mapping[str, Tensor]) -> bool:
    """Whether observations are flattened and nothing else: no features extractor with weights or options."""
    options = saved.get("policy_kwargs") or {}
    known = {":type:", ":serialized:", "activation_fn", "net_arch", "ortho_init", "n_critics", "use_sde"}
    known |= {"optimizer_class", "optimizer_kwargs", "log_std_init", "share_features_extractor"}
    kind = saved["observation_space"][":type:"]
    readable = "spaces.box.Box" in kind or "spaces.discrete.Discrete" in kind
    images = saved["observation_space"].get("dtype") == "uint8"
    return readable and not images and set(options) <= known and not any("features_extractor" in x for x in weights)


def _squash_output(saved: Mapping[str, Any]) -> bool:
    return bool((saved.get("policy_kwargs") or {}).get("squash_output", False))


def _activation(saved: Mapping[str, Any], default: str) -> type[nn.Module] | None:
    text = str((saved.get("policy_kwargs") or {}).get("activation_fn", default))
    name = re.sub(r"^<class 'torch\.nn\.modules\.activation\.(\w+)'>$", r"\1", text)
    return ACTIVATIONS.get(name)


def _layers(
    weights: Mapping[str, Tensor], prefix: str, activation: type[nn.Module] | None, last: bool = False
) -> nn.Sequential | None:
    """Linear layers ``prefix.0``, ``prefix.2``, … with activations between them, and after the last unless ``last``."""
    if activation is None:
        return None
    layers: list[nn.Module] = []
    for number in itertools.count(0, 2):
        if f"{prefix}.{number}.weight" not in weights:
            break
        layers += [_linear(weights, f"{prefix}.{number}"), activation()]
    if sum(name.startswith(f"{prefix}.") for name in weights) != len(layers):  # a weight and a bias each
        return None
    return nn.Sequential(*(layers[:-1] if last else layers))


def _linear(weights: Mapping[str, Tensor], name: str) -> nn.Linear:
    weight, bias = weights[f"{name}.weight"].float(), weights[f"{name}.bias"].float()
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float32)
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


def _out_features(layers: nn.Sequential) -> int:
    last = layers[-1]
    assert isinstance(last, nn.Linear)
    return last.out_features


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with zipfile.ZipFile(path) as archive:
            _check_bytes(path, sum(member.file_size for member in archive.infolist()))
            saved = json.loads(archive.read("data"))
            content = archive.read("policy.pth")
        if zipfile.is_zipfile(io.BytesIO(content)):
            with zipfile.ZipFile(io.BytesIO(content)) as tensors:
                _check_bytes(path, sum(member.file_size for member in tensors.infolist()))
        weights = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if not all(isinstance(x, Tensor) for x in weights.values()):
            raise ValueError("policy.pth is not a state_dict")
        _check_bytes(path, sum(x.numel() * 4 for x in weights.values()))  # which can exceed what is stored
        for space in (saved["observation_space"], saved["action_space"]):
            if not isinstance(space, dict) or not isinstance(space[":type:"], str):
                raise ValueError("it has no spaces")
            sizes = [int(x) for x in [*(space.get("_shape") or ()), space.get("n") or 1]]
            if not all(0 <= x <= MAX_FEATURES for x in sizes):
                raise ValueError(f"it has spaces of the sizes {sizes}")
    except EvaluationError:
        raise
    except Exception as error:  # zipfile, zlib, json and torch.load raise nearly any type for malformed files
        raise EvaluationError(
            f"{path} is truncated or not a model of Stable-Baselines3: {first_line(error)}"
        ) from error
    return saved, weights


def _check_bytes(path: Path, size: int) -> None:
    if size > MAX_BYTES:
        raise EvaluationError(f"{path} has more than {MAX_BYTES >> 20} MiB when unpacked; it is not read.")


class _UnpickledPolicy(Policy):
    def __init__(self, policy: Any, name: str, stochastic: bool, seed: int) -> None:
        super().__init__(name, stochastic, seed)
        self._policy = policy

    def check(self, observation_space: Any, space: ActionSpace) -> None:
        super().check(observation_space, space)
        theirs = self._policy.observation_space
        if observation_space is not None and theirs.shape != observation_space.shape:
            raise EvaluationError(
                f"the policy {self.name} takes observations of shape {theirs.shape}, but those of the environment have "
                f"shape {observation_space.shape}; it was trained in another environment."
            )

    def outputs(self, observations: Array) -> Array:
        return np.asarray(self._policy.predict(observations, deterministic=not self.stochastic)[0])


def _unpickle(path: Path, stochastic: bool, seed: int) -> Policy:
    """The policy as Stable-Baselines3 reads it, for every algorithm and policy class."""
    utilities = require("stable_baselines3.common.save_util", "stable-baselines3")
    try:
        saved, parameters, _ = utilities.load_from_zip_file(path, device="cpu", print_system_info=False)
        options = dict(saved.get("policy_kwargs") or {})
        if saved.get("use_sde"):
            options["use_sde"] = True
        policy = saved["policy_class"](saved["observation_space"], saved["action_space"], lambda _: 0.0, **options)
        policy.load_state_dict(parameters["policy"])
        policy.set_training_mode(False)
        torch.manual_seed(seed)
    except Exception as error:
        raise EvaluationError(f"{path} cannot be read by Stable-Baselines3: {first_line(error)}") from error
    return _UnpickledPolicy(policy, path.name, stochastic, seed)
