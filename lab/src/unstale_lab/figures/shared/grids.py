"""Grids of runs at four scales, and the grids that several figures share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from ...experiment import Run, Scale, grid

Choices = Mapping[str, Any]  # for ``experiment.grid``: a list holds several values, anything else is one value

PAPER_METHODS = ["momentum", "oracle", "full", "diagonal"]
METHODS_WITH_DEFAULT = [*PAPER_METHODS, "default"]
# (better, worse) as in the paper's figure 3; the pair that the paper is about comes first.
PAPER_ORDER = [
    ("full", "momentum"),
    ("oracle", "momentum"),
    ("full", "diagonal"),
    ("oracle", "diagonal"),
    ("diagonal", "momentum"),
]

# All pairs of methods; the one that the paper is about comes first.
PAPER_PAIRS = sorted(
    combinations(["full", "momentum", "oracle", "diagonal"], 2), key=lambda pair: pair != ("full", "momentum")
)


def seeds(count: int) -> list[int]:
    """Return ``[0, ..., count - 1]``."""
    return list(range(count))


@dataclass(frozen=True)
class Grid:
    """A grid of runs: the paper's choices, what "large" reduces, what "quick" and "smoke" reduce further."""

    paper: Choices
    quick: Choices = field(default_factory=dict)
    smoke: Choices = field(default_factory=dict)
    large: Choices = field(default_factory=dict)  # nothing, unless there are images

    def __call__(self, scale: Scale) -> list[Run]:
        """Return the runs at a scale; every method has the same settings and seeds."""
        cuts = {"paper": {}, "large": self.large, "quick": {**self.large, **self.quick}}
        cuts["smoke"] = {**cuts["quick"], **self.smoke}
        return grid(**{**self.paper, **cuts[scale]})

    def vary(
        self,
        paper: Choices,
        quick: Choices | None = None,
        smoke: Choices | None = None,
        large: Choices | None = None,
    ) -> Grid:
        """Return the grid with other choices, which apply at every scale unless smaller scales override them."""

        def keep(cut: Choices) -> dict[str, Any]:
            return {name: value for name, value in cut.items() if name not in paper}

        return Grid(
            {**self.paper, **paper},
            {**keep(self.quick), **(quick or {})},
            {**keep(self.smoke), **(smoke or {})},
            {**keep(self.large), **(large or {})},
        )


def union(*grids: Grid) -> Callable[[Scale], list[Run]]:
    """Return a function from a scale to the runs of all grids."""
    return lambda scale: [run for grid in grids for run in grid(scale)]


# Why some figures are published below the paper's scale.
GPU_TIME_NOTE = "to save GPU time."

SMOKE_SIZES = {"width": 4, "batch": 4, "seed": seeds(2), "steps": 50}

# The grid of figure 3; most others are variations of it.
REPLAY_GRID = Grid(
    paper={
        "problem": "mountain_car",
        "method": METHODS_WITH_DEFAULT,
        "width": [8, 16, 32],
        "batch": [4, 16, 64],
        "alpha": [0.5, 0.1, 0.05],
        "beta": [0.9, 0.99],
        "seed": seeds(10),
        "steps": 5000,
    },
    quick={"width": 16, "batch": 16},
    smoke={**SMOKE_SIZES, "alpha": [0.5, 0.1], "beta": 0.9},
)

RBF_WIDTH_NOTE = (
    "σ is in units of grid cells (2/grid of [-1, 1]), as in the authors' code; the paper's appendix has a variance of "
    "σ²/grid. The authors' code: unscaled states, of which velocities cover a small part of the grid, features of "
    "amplitude 2, gradients of δ² with a Taylor term of half strength."
)
# A linear function of radial basis functions with varying overlap.
RBF_GRID = Grid(
    paper={
        "problem": "mountain_car_scaled",
        "method": ["momentum", "full", "diagonal", "default"],
        "layers": 1,
        "rbf_width": [4.0, 3.5, 3.0, 2.5, 2.0, 1.5, 1.25, 1.0, 0.75, 0.5],
        "rbf_grid": [10, 20],
        "alpha": [0.1, 0.01],
        "beta": 0.99,
        "batch": 16,
        "seed": seeds(10),
        "steps": 5000,
        "measure": ("drift",),
    },
    quick={"rbf_width": [4.0, 2.0, 1.0, 0.5], "rbf_grid": 10},
    smoke={"rbf_width": [4.0, 2.0, 0.5], "rbf_grid": 4, "batch": 4, "seed": seeds(2), "steps": 50},
)
