"""Algorithms of Stable-Baselines3 whose value functions learn with corrected momentum.

Each class is used like the one that it derives from. ``correction_kwargs`` are options of the optimizer::

    model = CorrectedDQN("MlpPolicy", "CartPole-v1", correction_kwargs=dict(slots=512))
    model.learn(50_000)

Only value functions are corrected. Actors, and parameters that a policy shares with its value function, keep the
optimizer of Stable-Baselines3. With ``correction="none"`` an algorithm is that of Stable-Baselines3, up to rounding.
"""

from __future__ import annotations

try:
    import stable_baselines3  # noqa: F401
except ImportError as error:
    raise ImportError(
        f'unstale.sb3 needs Stable-Baselines3 ({error}); run: pip install ".[sb3]" (in a clone of unstale)'
    ) from error

from .off_policy import CorrectedDQN, CorrectedSAC, CorrectedTD3
from .on_policy import CorrectedA2C, CorrectedPPO

__all__ = ["CorrectedA2C", "CorrectedDQN", "CorrectedPPO", "CorrectedSAC", "CorrectedTD3"]
