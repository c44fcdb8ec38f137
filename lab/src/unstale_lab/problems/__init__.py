"""The problems of the laboratory, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from ..errors import unknown
from . import acrobot, cartpole, mountain_car
from .mountain_car import MountainCar, OnlineMountainCar
from .ms_pacman import MsPacman
from .problem import Problem
from .regression import Regression
from .replay import Replay
from .svhn import SVHN

REPLAYS: dict[str, Callable[..., Replay]] = {
    "acrobot": partial(Replay, acrobot.TASK, states=2000),
    "cartpole": partial(Replay, cartpole.TASK, states=256, rollouts=256),
}
PROBLEMS: dict[str, Callable[[], Problem]] = {
    "mountain_car": MountainCar,
    "mountain_car_scaled": lambda: MountainCar(mountain_car.SCALED_TASK),
    "mountain_car_online": OnlineMountainCar,
    **REPLAYS,
    "acrobot_raw": partial(REPLAYS["acrobot"], input_scale=acrobot.RAW_SCALE),
    "cartpole_raw": partial(REPLAYS["cartpole"], input_scale=cartpole.RAW_SCALE),
    "regression": Regression,
    "svhn": SVHN,
    "ms_pacman": MsPacman,
    "ms_pacman_10k": lambda: MsPacman(transitions=10_000),
}
# Whose batches are transitions in temporal order, so that eligibility traces make sense.
ONLINE_PROBLEMS = frozenset({"mountain_car_online"})


@cache
def load(name: str) -> Problem:
    """Return the problem of that name; it is created once per process.

    Raises:
        UserError: if there is none; the message suggests the nearest name.
    """
    if name not in PROBLEMS:
        raise unknown("problem", name, PROBLEMS)
    return PROBLEMS[name]()
