"""Figure 15: Cartpole with 3-step targets. The authors' code has 5 steps."""

from __future__ import annotations

from .shared.n_step import NStepFigure

FIGURE = NStepFigure(15, 17, "Cartpole", "cartpole", 3, code_n_step=[5], code_alphas=[0.5, 0.05, 0.01]).figure()
