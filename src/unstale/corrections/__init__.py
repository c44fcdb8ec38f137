"""Corrections of past gradients: one correction per file, one interface (:mod:`.base`)."""

from .base import Correction, Memory, Replay
from .blocks import Blocks, dense
from .diagonal import Diagonal
from .oracle import Oracle
from .reservoir import Reservoir, ReservoirPlan, Selection, plan_reservoir
from .select import CLASSES, NAMES, build, cheaper_full_correction, default_horizon, paper_horizon, resolve
from .window import Window

__all__ = [
    "CLASSES",
    "NAMES",
    "Blocks",
    "Correction",
    "Diagonal",
    "Memory",
    "Oracle",
    "Replay",
    "Reservoir",
    "ReservoirPlan",
    "Selection",
    "Window",
    "build",
    "cheaper_full_correction",
    "default_horizon",
    "dense",
    "paper_horizon",
    "plan_reservoir",
    "resolve",
]
