"""Runs: frozen sets of settings that determine a training run, with an id that is a hash of the settings."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from numbers import Real
from typing import Any, Literal, get_args, get_type_hints

# "large" is below the paper's scale for images and games alone: the largest that an hour on a GPU allows.
Scale = Literal["smoke", "quick", "large", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)


@dataclass(frozen=True)
class Run:
    """One training run. Fields with default values are not part of the id, so a new field does not change old ids."""

    problem: str = "mountain_car"  # a key of ``problems.PROBLEMS``
    method: str = "momentum"  # a key of ``methods.METHODS``
    seed: int = 0  # of the data and of the initial weights, whatever the method
    alpha: float = 0.1
    beta: float = 0.9
    batch: int = 16
    steps: int = 5000
    width: int = 16
    layers: int = 4  # number of weight matrices; 1 is linear in the features
    activation: str = "leaky_relu"
    n_step: int = 1
    damped: bool = True  # undamped momentum lacks the factor 1-β, and equals damped momentum with α / (1-β)
    rbf_grid: int = 0  # number of radial basis functions per dimension; 0 is none
    rbf_width: float = 1.0  # σ², in units of squared grid cells
    rbf_amplitude: float = 1.0  # of the radial basis functions
    horizon: int = 0  # of the oracle, in batches; 0 is the paper's 2 / (1-β)
    corrected_layers: tuple[int, ...] = ()  # for the method "layers": indices of fully corrected layers; 0 is the first
    measure: tuple[str, ...] = ()  # keys of ``engine.measurements.MEASUREMENTS``: "drift", "agreement", ...
    precision: str = "float32"  # or "float64", or "tf32": float32 with TF32 matrix products on a GPU
    network: str = "mlp"  # a key of ``engine.architectures.ARCHITECTURES``
    lr_schedule: str = "constant"  # a key of ``engine.schedules.LR_SCHEDULES``
    weight_average: float = 0.0  # decay of the moving average of the parameters that errors are measured on; 0: none
    trace_decay: float = 0.0  # λ of accumulating eligibility traces; 0: none
    slots: int = 0  # of a reservoir correction
    trust: float = -1.0  # bound κ on the correction instead of the method's; 0: no bound; negative: the method's
    convention: str = "text"  # of ``engine.conventions``: as described in the text, or "code": as the authors ran it
    initialization: str = "default"  # of ``engine.layers.INITIALIZATIONS``; "glorot": Glorot uniform, biases 0

    def __post_init__(self) -> None:
        """Converts fields to their types: 1 equals 1.0 but has another JSON text, and equal runs need equal ids."""
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not f.default:
                object.__setattr__(self, f.name, _typed(f.name, _KINDS[f.name], value))

    @cached_property
    def id(self) -> str:
        """Twelve characters of a hash of the settings."""
        text = json.dumps(self.settings(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def settings(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        own = {f.name: (getattr(self, f.name), f.default) for f in fields(self)}
        return {name: value for name, (value, default) in own.items() if value != default}


_KINDS = get_type_hints(Run)


def _typed(name: str, kind: Any, value: Any) -> Any:
    """The value converted to the type; a ``ValueError`` if that would change it."""
    if get_args(kind):  # tuple[int, ...] and the like
        if isinstance(value, list | tuple):
            return tuple(_typed(name, get_args(kind)[0], item) for item in value)
    elif isinstance(value, str if kind is str else Real) and kind(value) == value:
        return kind(value)
    raise ValueError(f"{name} must be of type {getattr(kind, '__name__', kind)}, got {value!r}")


def grid(**choices: Any) -> list[Run]:
    """The Cartesian product of settings. A list holds several values of a setting; anything else is one value.

    >>> [(run.alpha, run.beta) for run in grid(alpha=[0.1, 0.5], beta=0.99)]
    [(0.1, 0.99), (0.5, 0.99)]
    """
    columns = [value if isinstance(value, list) else [value] for value in choices.values()]
    return [Run(**dict(zip(choices, row, strict=True))) for row in itertools.product(*columns)]


def unique(runs: Iterable[Run]) -> list[Run]:
    """The runs without duplicates, in order."""
    return list(dict.fromkeys(runs))
