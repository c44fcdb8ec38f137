"""A straightforward implementation of the paper's full correction: ``torch.func``, a dense ``ζ``, no ``unstale``.

It is neither tuned nor slowed down on purpose: per-sample gradients come from one ``vmap`` for the states and one for
the successors, and every formula is one line.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap


class PlainCorrectedSGD:
    """Momentum SGD with the full correction, for a value function ``model`` that maps ``[m, d]`` to ``[m, 1]``.

    The trained parameters are a flat copy, ``theta``; the model is not changed.
    """

    def __init__(self, model: nn.Module, alpha: float, beta: float) -> None:
        self.alpha, self.beta = alpha, beta
        named = dict(model.named_parameters())
        self.theta = torch.cat([p.detach().flatten() for p in named.values()])
        parts = self.theta.split([p.numel() for p in named.values()])
        self.parameters = {name: part.view(p.shape) for part, (name, p) in zip(parts, named.items(), strict=True)}

        def one_value(parameters: dict[str, Tensor], state: Tensor) -> Tensor:
            return functional_call(model, parameters, (state.unsqueeze(0),)).squeeze()

        self.per_sample = vmap(grad_and_value(one_value), in_dims=(None, 0))
        n = len(self.theta)
        self.mu, self.eta, self.muhat = (self.theta.new_zeros(n) for _ in range(3))
        self.zeta = self.theta.new_zeros(n, n)

    def gradients_and_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``∇V [m, n]`` and ``V [m]``."""
        gradients, values = self.per_sample(self.parameters, states)
        return torch.cat([g.flatten(1) for g in gradients.values()], 1), values

    @torch.no_grad()
    def step(self, s: Tensor, s2: Tensor, r: Tensor, gamma: float, not_done: Tensor) -> None:
        """Make one step on ``m`` transitions from ``s`` to ``s2``."""
        alpha, beta, m = self.alpha, self.beta, len(s)
        v, value = self.gradients_and_values(s)
        v2, value2 = self.gradients_and_values(s2)
        delta = value - (r + gamma * not_done * value2)
        u = v - gamma * not_done[:, None] * v2
        g = (delta[:, None] * v).mean(0)

        self.mu = beta * self.mu + (1 - beta) * g
        self.eta = beta * self.eta + alpha * beta * (self.zeta.T @ self.muhat)
        self.zeta = beta * self.zeta + (1 - beta) * torch.einsum("mi,mj->ij", u, v) / m
        self.muhat = self.mu - self.eta
        self.theta -= alpha * self.muhat

    @property
    def state(self) -> dict[str, Tensor]:
        """The tensors kept between steps."""
        return dict(mu=self.mu, eta=self.eta, zeta=self.zeta, muhat=self.muhat)
