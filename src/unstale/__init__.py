"""Optimizers for temporal-difference learning whose momentum is corrected for moving targets."""

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
