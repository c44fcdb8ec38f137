"""Figure 2: classification of photographs, the supervised case with a convolutional network."""

from __future__ import annotations

from .grids import Grid, seeds

GRID = Grid(
    paper={
        "problem": "svhn",
        "network": "svhn",
        "method": ["momentum", "oracle", "diagonal", "window"],
        "width": [8, 16],
        "batch": [4, 16, 64],
        "alpha": [0.005, 0.01],
        "beta": [0.9, 0.99],
        "seed": seeds(5),
        "steps": 20_000,
        "precision": "tf32",
    },
    quick={"batch": [4, 16], "steps": 5_000},
    smoke={"width": 2, "batch": 4, "alpha": 0.01, "beta": 0.9, "seed": seeds(2), "steps": 10},
)
