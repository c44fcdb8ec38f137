"""Optimizers for temporal-difference learning whose momentum is corrected for moving targets."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from . import corrections, diagnostics, distributions, losses, targets
from ._batch import ConstantTargetWarning, UnfollowedTargetWarning
from ._compat import observe, unobserve
from ._options import UnusedOptionWarning
from ._param_group import AmbiguousScalingWarning, FewSlotsWarning
from .corrections import paper_horizon
from .evaluation import evaluate
from .monitor import Monitor
from .optimizers import CorrectedAdam, CorrectedRMSprop, CorrectedSGD, CorrectedTDprop
from .per_sample.slow import SlowGradientsWarning

if TYPE_CHECKING:
    from . import sb3 as sb3
else:

    def __getattr__(name: str) -> ModuleType:
        """``unstale.sb3``, which needs Stable-Baselines3, is imported when it is first used."""
        if name == "sb3":
            return importlib.import_module(".sb3", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = "0.2.0"

__all__ = [
    "AmbiguousScalingWarning",
    "ConstantTargetWarning",
    "CorrectedAdam",
    "CorrectedRMSprop",
    "CorrectedSGD",
    "CorrectedTDprop",
    "FewSlotsWarning",
    "Monitor",
    "SlowGradientsWarning",
    "UnfollowedTargetWarning",
    "UnusedOptionWarning",
    "corrections",
    "diagnostics",
    "distributions",
    "evaluate",
    "losses",
    "observe",
    "paper_horizon",
    "targets",
    "unobserve",
]
