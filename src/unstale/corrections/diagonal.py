"""The diagonal of the Taylor term: 3n numbers. It ignores interactions between parameters."""

from __future__ import annotations

from torch import Tensor

from ..momentum import decay_
from ..per_sample.gradients import Linearization
from .base import Correction, Memory, Replay


class Diagonal(Correction):
    """``η ← β (η − ζ ∘ d)``, then ``ζ ← β ζ + (1-β) diag Z``.

    If a copy of the parameters is followed, ``ζ`` has a second half, which is multiplied with the copy's displacement.
    """

    def update(
        self,
        memory: Memory,
        batch: Linearization,
        displacement: Tensor,
        beta: float | Tensor,
        replay: Replay | None = None,
    ) -> Tensor:
        if not memory:
            memory["eta"] = self.no_eta(displacement)
            memory["zeta"] = displacement.new_zeros(displacement.shape)
        eta, zeta = memory["eta"], memory["zeta"]
        n = eta.shape[-1]
        eta.addcmul_(zeta[..., :n], displacement[..., :n], value=-1)
        if self.followed:
            eta.addcmul_(zeta[..., n:], displacement[..., n:], value=-1)
        decay_(eta, beta)
        batch.mix_diagonal(zeta, beta)
        return eta
