"""Momentum for temporal-difference learning that follows its moving targets."""

from . import corrections, diagnostics, losses, targets
from .corrections import paper_horizon
from .inputs import ConstantTargetWarning
from .observe import observe, unobserve
from .optimizers import CorrectedAdam, CorrectedRMSprop, CorrectedSGD, CorrectedTDprop

__version__ = "0.1.0"

__all__ = [
    "ConstantTargetWarning",
    "CorrectedAdam",
    "CorrectedRMSprop",
    "CorrectedSGD",
    "CorrectedTDprop",
    "corrections",
    "diagnostics",
    "losses",
    "observe",
    "paper_horizon",
    "targets",
    "unobserve",
]
