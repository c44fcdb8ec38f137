"""Figure 14: Acrobot."""

from __future__ import annotations

from .several_steps import figure

FIGURE = figure("fig14", "Acrobot from replay, 5-step targets", claim=16, problem="acrobot", n_step=5)
