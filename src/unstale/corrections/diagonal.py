"""The diagonal of the Taylor term: 3n numbers. It ignores interactions between parameters."""

from __future__ import annotations

from torch import Tensor

from ..momentum import decay_
from ..per_sample.gradients import Linearization
from .base import Correction, Memory, Replay


class Diagonal(Correction):
    """``η ← β (η − ζ ∘ d)``, then ``ζ ← β ζ + (1-β) diag Z``."""

    def update(
        self,
        memory: Memory,
        batch: Linearization,
        displacement: Tensor,
        beta: float | Tensor,
        replay: Replay | None = None,
    ) -> Tensor:
        if not memory:
            memory["eta"] = displacement.new_zeros(displacement.shape)
            memory["zeta"] = displacement.new_zeros(displacement.shape)
        eta, zeta = memory["eta"], memory["zeta"]
        decay_(eta.addcmul_(zeta, displacement, value=-1), beta)
        batch.mix_diagonal(zeta, beta)
        return eta
