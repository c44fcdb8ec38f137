"""Corrections of past gradients: one correction per file, one interface (:mod:`.base`)."""

from .base import Correction, Memory, Replay, Selection
from .blocks import Blocks, dense
from .diagonal import Diagonal
from .memory import bytes_needed, check_memory
from .oracle import Oracle
from .reservoir import Reservoir, ReservoirPlan, plan_reservoir
from .saved import Layout
from .select import (
    CLASSES,
    DEFAULT_BETA,
    DEFAULT_BUDGET,
    LONG_MEMORY,
    NAMES,
    Plan,
    Sizes,
    build,
    default_horizon,
    describe,
    make_plan,
    paper_horizon,
    slot_numbers,
    too_few_slots,
)
from .window import Window

__all__ = [
    "CLASSES",
    "DEFAULT_BETA",
    "DEFAULT_BUDGET",
    "LONG_MEMORY",
    "NAMES",
    "Blocks",
    "Correction",
    "Diagonal",
    "Layout",
    "Memory",
    "Oracle",
    "Plan",
    "Replay",
    "Reservoir",
    "ReservoirPlan",
    "Selection",
    "Sizes",
    "Window",
    "build",
    "bytes_needed",
    "check_memory",
    "default_horizon",
    "dense",
    "describe",
    "make_plan",
    "paper_horizon",
    "plan_reservoir",
    "slot_numbers",
    "too_few_slots",
]
