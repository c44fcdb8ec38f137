"""The problems of the laboratory, by name."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import cache

from . import acrobot, cartpole, mountain_car
from .base import Problem
from .mountain_car import MountainCar, OnlineMountainCar
from .regression import Regression
from .replay import Replay

PROBLEMS: dict[str, Callable[[], Problem]] = {
    "mountain_car": MountainCar,
    "mountain_car_scaled": lambda: MountainCar(mountain_car.SCALED_TASK),
    "mountain_car_online": OnlineMountainCar,
    "acrobot": lambda: Replay(acrobot.TASK, states=2000),
    "cartpole": lambda: Replay(cartpole.TASK, states=256, rollouts=256),
    "regression": Regression,
}


@cache
def load(name: str) -> Problem:
    """The problem of that name, made once."""
    if name not in PROBLEMS:
        nearest = get_close_matches(name, PROBLEMS, n=1, cutoff=0)[0]
        raise ValueError(f"there is no problem {name!r}; did you mean {nearest!r}? There are: {', '.join(PROBLEMS)}.")
    return PROBLEMS[name]()
