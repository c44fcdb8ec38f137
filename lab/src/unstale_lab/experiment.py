"""What a run is: a frozen description that says everything needed to run it again, and an id made of nothing else."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from numbers import Real
from typing import Any, Literal, get_args, get_type_hints

Scale = Literal["smoke", "quick", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)


@dataclass(frozen=True)
class Run:
    """One training run. Fields at their defaults are not part of the id, so a new field changes no id there is."""

    problem: str = "mountain_car"  # a key of ``problems.PROBLEMS``
    method: str = "momentum"  # a key of ``methods.METHODS``
    seed: int = 0  # of the data and of the initial weights, whatever the method
    alpha: float = 0.1
    beta: float = 0.9
    batch: int = 16
    steps: int = 5000
    width: int = 16
    layers: int = 4  # weight matrices; 1 is linear in the features
    activation: str = "leaky_relu"
    n_step: int = 1
    damped: bool = True  # undamped momentum adds gradients without 1-β: damped momentum at α / (1-β)
    rbf_grid: int = 0  # radial basis functions along each side; 0 is none
    rbf_width: float = 1.0  # σ², in cells of the grid, squared
    horizon: int = 0  # of the oracle, in batches; 0 is the paper's 2 / (1-β)
    corrected_layers: tuple[int, ...] = ()  # with the method "layers": those corrected fully, 0 nearest to the input
    measure: tuple[str, ...] = ()  # keys of ``engine.measurements.MEASUREMENTS``: "drift", "agreement", ...
    precision: str = "float32"  # or "float64"; "tf32" is float32 whose products a GPU may round to 10 bits
    network: str = "mlp"  # a key of ``engine.architectures.ARCHITECTURES``

    def __post_init__(self) -> None:
        """Equal runs must have equal ids, and 1 equals 1.0 but is written differently: fields take their own type."""
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not f.default:
                object.__setattr__(self, f.name, _typed(f.name, _KINDS[f.name], value))

    @cached_property
    def id(self) -> str:
        """Twelve characters that stay the same as long as the description does."""
        text = json.dumps(self.settings(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def settings(self) -> dict[str, Any]:
        """The fields that were set to something else than their defaults."""
        own = {f.name: (getattr(self, f.name), f.default) for f in fields(self)}
        return {name: value for name, (value, default) in own.items() if value != default}


_KINDS = get_type_hints(Run)


def _typed(name: str, kind: Any, value: Any) -> Any:
    """The value as one of that type; an error where it would be another value then."""
    if get_args(kind):  # tuple[int, ...] and the like
        if isinstance(value, list | tuple):
            return tuple(_typed(name, get_args(kind)[0], item) for item in value)
    elif isinstance(value, str if kind is str else Real) and kind(value) == value:
        return kind(value)
    raise ValueError(f"{name} is of the type {getattr(kind, '__name__', kind)}, and cannot be {value!r}")


def grid(**choices: Any) -> list[Run]:
    """Every combination of the choices: a list is several, anything else is one.

    >>> [(run.alpha, run.beta) for run in grid(alpha=[0.1, 0.5], beta=0.99)]
    [(0.1, 0.99), (0.5, 0.99)]
    """
    columns = [value if isinstance(value, list) else [value] for value in choices.values()]
    return [Run(**dict(zip(choices, row, strict=True))) for row in itertools.product(*columns)]


def unique(runs: Iterable[Run]) -> list[Run]:
    """The runs in order, each once."""
    return list(dict.fromkeys(runs))
