"""Figure 14: Acrobot."""

from __future__ import annotations

from .shared.n_step import n_step_figure

FIGURE = n_step_figure("fig14", "Acrobot from replay, 5-step targets", claim=16, problem="acrobot", n_step=5)
