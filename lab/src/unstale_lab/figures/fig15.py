"""Figure 15: Cartpole."""

from __future__ import annotations

from .several_steps import figure

FIGURE = figure("fig15", "Cartpole from replay, 3-step targets", claim=17, problem="cartpole", n_step=3)
