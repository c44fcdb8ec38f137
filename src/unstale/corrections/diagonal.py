"""The diagonal of the Taylor term alone: 3n numbers, blind to how parameters move one another's residuals."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..running import decay_
from ..samples import Linearization


class Diagonal:
    """``η ← β (η − ζ ∘ d)``, then ``ζ ← β ζ + (1-β) diag Z``."""

    def update(
        self,
        memory: dict[str, Any],
        batch: Linearization,
        displacement: Tensor,
        beta: float | Tensor,
        replay: Any = None,
    ) -> Tensor:
        if not memory:
            memory["eta"] = displacement.new_zeros(displacement.shape)
            memory["zeta"] = displacement.new_zeros(displacement.shape)
        eta, zeta = memory["eta"], memory["zeta"]
        decay_(eta.addcmul_(zeta, displacement, value=-1), beta)
        batch.mix_diagonal(zeta, beta)
        return eta
