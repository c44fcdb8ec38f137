"""Figure 15: Cartpole."""

from __future__ import annotations

from .shared.n_step import n_step_figure

FIGURE = n_step_figure("fig15", "Cartpole from replay, 3-step targets", claim=17, problem="cartpole", n_step=3)
