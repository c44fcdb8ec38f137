"""Figure 14: Acrobot with 5-step targets. The authors' code has 2 or 3 steps."""

from __future__ import annotations

from .shared.n_step import NStepFigure

FIGURE = NStepFigure(14, 16, "Acrobot", "acrobot", 5, code_n_step=[2, 3], code_alphas=[0.1, 0.05, 0.01]).figure()
