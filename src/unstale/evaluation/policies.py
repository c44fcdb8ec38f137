"""Policies, from names, functions and files.

Files may come from anywhere: nothing is unpickled unless ``trust_pickle`` is set.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import EvaluationError, first_line
from .spaces import ActionSpace, Array, Box, Discrete

WHY = "unpickling runs code that is stored in the file; pass --trust-pickle if you trust its author"
PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin")
SAMPLED_ACTIONS = 8  # per state, for expectations over actions of a stochastic policy


class Policy(ABC):
    """A batch of observations to a batch of actions.

    Subclasses implement :meth:`outputs`. What it returns are actions, or for discrete actions also one logit each.

    Args:
        stochastic: sample from the logits. Otherwise the largest is chosen.
    """

    def __init__(self, name: str, stochastic: bool = False, seed: int = 0) -> None:
        self.name, self.stochastic = name, stochastic
        self.generator = np.random.default_rng(seed)
        self.space: ActionSpace = Discrete(1)

    @abstractmethod
    def outputs(self, observations: Array) -> Array:
        """Actions ``[m, ...]``, or logits ``[m, n]`` of discrete actions."""

    @property
    def repeats(self) -> int:
        """How many actions to sample for an expectation."""
        return SAMPLED_ACTIONS if self.stochastic else 1

    def check(self, observation_space: Any, space: ActionSpace) -> None:
        """Set the action space, and refuse a policy that was made for another environment."""
        self.space = space

    def act(self, observations: Array) -> Array:
        """One action for each observation ``[m, ...]``, as the environment takes it."""
        found = self._outputs(observations)
        if not self._are_logits(found):
            return found
        assert isinstance(self.space, Discrete)
        if not self.stochastic:
            return found.argmax(1) + self.space.start
        chances = _softmax(found).cumsum(1)
        drawn = self.generator.random((len(found), 1)) * chances[:, -1:]
        return np.asarray((drawn >= chances).sum(1) + self.space.start)

    def probabilities(self, observations: Array) -> Array:
        """Probabilities ``[m, n]`` of discrete actions."""
        assert isinstance(self.space, Discrete)
        found = self._outputs(observations)
        if self._are_logits(found):
            return _softmax(found) if self.stochastic else np.eye(self.space.n)[found.argmax(1)]
        return np.eye(self.space.n)[self.space.check(found, f"the policy {self.name}")]

    def _outputs(self, observations: Array) -> Array:
        try:
            found = np.asarray(self.outputs(observations))
        except EvaluationError:
            raise
        except Exception as error:  # whatever a foreign function or a network raises
            raise EvaluationError(
                f"the policy {self.name} fails on observations of shape {observations.shape[1:]}: "
                f"{type(error).__name__}: {first_line(error)}"
            ) from error
        if found.shape[:1] != (len(observations),):
            raise EvaluationError(
                f"the policy {self.name} gave an array of shape {found.shape} for {len(observations)} observations; "
                "it has to give one action for each."
            )
        return found

    def _are_logits(self, found: Array) -> bool:
        if not isinstance(self.space, Discrete) or found.ndim != 2 or not np.issubdtype(found.dtype, np.floating):
            return False
        if found.shape[1] != self.space.n:
            raise EvaluationError(
                f"the policy {self.name} has {found.shape[1]} outputs, but the action space is {self.space}."
            )
        if not np.isfinite(found).all():
            raise EvaluationError(f"the policy {self.name} gave logits that are not finite.")
        return True


class RandomPolicy(Policy):
    """Uniform over the action space."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__("random", stochastic=True, seed=seed)

    def outputs(self, observations: Array) -> Array:
        if isinstance(self.space, Discrete):
            return np.zeros((len(observations), self.space.n))
        low, high = self.space.low, self.space.high
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise EvaluationError("a random policy needs bounds of the action space; name its environment with --env.")
        return self.generator.uniform(low, high, (len(observations), *low.shape)).astype(np.float32)


class FunctionPolicy(Policy):
    """A function of one observation, or of a batch if it has an attribute ``batched = True``."""

    def __init__(self, function: Callable[[Any], Any], name: str, stochastic: bool = False, seed: int = 0) -> None:
        super().__init__(name, stochastic, seed)
        self._function = function

    def outputs(self, observations: Array) -> Array:
        if getattr(self._function, "batched", False):
            return _array(self._function(observations))
        return np.stack([_array(self._function(one)) for one in observations])


class ModulePolicy(Policy):
    """A torch module of float32 observations ``[m, ...]``."""

    def __init__(self, module: Callable[[Tensor], Any], name: str, stochastic: bool = False, seed: int = 0) -> None:
        super().__init__(name, stochastic, seed)
        self._module = module
        self._one_by_one = False  # modules can be exported for batches of one

    def outputs(self, observations: Array) -> Array:
        x = torch.as_tensor(observations, dtype=torch.float32)
        with torch.no_grad():
            if not self._one_by_one:
                try:
                    return _array(self._module(x))
                except Exception:
                    if len(x) == 1:
                        raise
            found = np.concatenate([_array(self._module(x[i : i + 1])) for i in range(len(x))])
        self._one_by_one = True
        return found


def load_policy(
    source: str | Callable[[Any], Any] | Policy, stochastic: bool = False, trust_pickle: bool = False, seed: int = 0
) -> Policy:
    """The policy that a command line names, or a Python function.

    Args:
        source: ``"random"``, a ``.zip`` of Stable-Baselines3, a ``.pt2`` of ``torch.export``, ``"module:function"``,
            a function, a torch module, or a pickle of one.
        stochastic: sample actions instead of the most likely ones.
        trust_pickle: unpickle files.

    Raises:
        EvaluationError: it is none of them, or cannot be read.
    """
    if isinstance(source, Policy):
        return source
    if isinstance(source, torch.nn.Module):
        return ModulePolicy(source, type(source).__name__, stochastic, seed)
    if not isinstance(source, str | Path):
        return FunctionPolicy(source, getattr(source, "__name__", "policy"), stochastic, seed)
    if source == "random":
        return RandomPolicy(seed)
    path = Path(source)
    if path.suffix in (".zip", ".pt2", *PICKLES):
        return _load_file(path, stochastic, trust_pickle, seed)
    if ":" in str(source):
        return FunctionPolicy(_import(str(source)), str(source), stochastic, seed)
    raise EvaluationError(
        f"{str(source)!r} is not a policy; give random, module:function, or a file that ends with .zip "
        "(Stable-Baselines3) or .pt2 (torch.export)."
    )


def _load_file(path: Path, stochastic: bool, trust_pickle: bool, seed: int) -> Policy:
    from . import exported, sb3

    if not path.is_file():
        raise EvaluationError(f"there is no file {path}.")
    if path.stat().st_size == 0:
        raise EvaluationError(f"{path} is empty.")
    if path.suffix == ".zip":
        return sb3.load(path, stochastic, trust_pickle, seed)
    if path.suffix == ".pt2":
        return ModulePolicy(exported.load(path, trust_pickle), path.name, stochastic, seed)
    if not trust_pickle:
        raise EvaluationError(f"{path} is a pickle, which is not read: {WHY}, or save the policy with torch.export.")
    try:
        found = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise EvaluationError(f"{path} cannot be read: {first_line(error)}") from error
    if isinstance(found, torch.nn.Module):
        return ModulePolicy(found.eval(), path.name, stochastic, seed)
    if callable(found):
        return FunctionPolicy(found, path.name, stochastic, seed)
    raise EvaluationError(f"{path} holds a {type(found).__name__}, not a torch module or a function.")


def _import(source: str) -> Callable[[Any], Any]:
    module_name, _, function_name = source.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does
    try:
        found = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:  # a module raises whatever it likes
        raise EvaluationError(f"the policy {source} cannot be imported: {first_line(error)}") from error
    if not callable(found):
        raise EvaluationError(f"the policy {source} is a {type(found).__name__}, not a function.")
    return found  # type: ignore[no-any-return]


def _array(found: Any) -> Array:
    if isinstance(found, tuple) and found:
        found = found[0]  # as Stable-Baselines3's predict(), which also returns a state
    return found.detach().cpu().numpy() if isinstance(found, Tensor) else np.asarray(found)


def _softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def expected_actions(policy: Policy, observations: Array) -> Array:
    """Sampled continuous actions ``[m, repeats, size]`` for expectations over a policy."""
    assert isinstance(policy.space, Box)
    samples = [policy.space.check(policy.act(observations), f"the policy {policy.name}") for _ in range(policy.repeats)]
    return np.stack(samples, 1).astype(np.float32)
