"""Grids of runs at three scales, and those that several figures share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..experiment import Run, Scale, grid

Choices = Mapping[str, Any]  # of ``experiment.grid``: a list is several, anything else is one

FOUR = ["momentum", "oracle", "full", "diagonal"]  # the paper's
FIVE = [*FOUR, "default"]
# Which is better than which in figure 3, beginning with the pair that the paper is about.
ORDER = [
    ("full", "momentum"),
    ("oracle", "momentum"),
    ("full", "diagonal"),
    ("oracle", "diagonal"),
    ("diagonal", "momentum"),
]


def seeds(count: int) -> list[int]:
    return list(range(count))


@dataclass(frozen=True)
class Grid:
    """The paper's choices; what is cut for a quick look; and what is cut further to see that it runs at all."""

    paper: Choices
    quick: Choices = field(default_factory=dict)
    smoke: Choices = field(default_factory=dict)

    def __call__(self, scale: Scale) -> list[Run]:
        """Every method has the same settings and seeds."""
        cuts = {"paper": {}, "quick": self.quick, "smoke": {**self.quick, **self.smoke}}
        return grid(**{**self.paper, **cuts[scale]})

    def varied(self, paper: Choices, quick: Choices | None = None, smoke: Choices | None = None) -> Grid:
        """The same with other choices, which hold at every scale unless ``quick`` or ``smoke`` say otherwise."""

        def kept(cut: Choices) -> dict[str, Any]:
            return {name: value for name, value in cut.items() if name not in paper}

        return Grid(
            {**self.paper, **paper}, {**kept(self.quick), **(quick or {})}, {**kept(self.smoke), **(smoke or {})}
        )


# Why some figures were published at the scale "quick".
FOR_WANT_OF_TIME = "for want of time on a GPU, of which all figures of pictures and games had an hour."

TINY = {"width": 4, "batch": 4, "seed": seeds(2), "steps": 50}

# Figure 3's, of which most others are variations.
REPLAY = Grid(
    paper={
        "problem": "mountain_car",
        "method": FIVE,
        "width": [8, 16, 32],
        "batch": [4, 16, 64],
        "alpha": [0.5, 0.1, 0.05],
        "beta": [0.9, 0.99],
        "seed": seeds(10),
        "steps": 5000,
    },
    quick={"width": 16, "batch": 16},
    smoke={**TINY, "alpha": [0.5, 0.1], "beta": 0.9},
)

CELLS = (
    "σ is measured in cells of the grid (2/grid of [-1, 1]), as in the authors' code, where the paper's appendix has a "
    "variance of σ²/grid."
)
# A linear function of radial basis functions, whose overlap is varied.
KERNELS = Grid(
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
