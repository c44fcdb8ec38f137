"""The mathematics, written as slowly and as literally as it is defined. Shares no code with the library.

Everything is in float64. Per-sample gradients come from a loop over samples; the correction is the double sum of
the paper's appendix in displacement form, every past batch remembered whole, no recursion anywhere:

    η_t = -(1-β) Σ_{i≤t} β^{t-i} Z_iᵀ (θ_{t-1} - θ_{i-1})

If a target network with parameters φ is followed, θ is (θ, φ) in this sum, and Z_i has a row for every entry of φ too.
"""

from __future__ import annotations

import torch


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def gradient_of(value, parameters):
    found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    return flat([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)])


def per_sample(values, parameters):
    """[m, n], one backward pass per sample."""
    if not values.requires_grad:
        return torch.zeros(len(values), sum(p.numel() for p in parameters), dtype=values.dtype)
    return torch.stack([gradient_of(value, parameters) for value in values])


def derivatives(loss, residual):
    """ℓ, ℓ', ℓ'' of a scalar function, one residual at a time."""
    rows = []
    for r in residual.detach():
        point = r.clone().requires_grad_()
        value = loss(point)
        (slope,) = torch.autograd.grad(value, point, create_graph=True)
        curvature = torch.autograd.grad(slope, point)[0] if slope.requires_grad else torch.zeros_like(slope)
        rows.append([value.detach(), slope.detach(), curvature.detach()])
    return torch.tensor(rows, dtype=residual.dtype).T


def half_squared(residual):
    return residual**2 / 2


class Reference:
    """Trains a model on batches, remembering all of them. ``mask`` selects the entries of Z. Only one in ``every``
    batches has a Z, with that many times its weight. ``followed`` are the parameters of target networks."""

    def __init__(
        self,
        parameters,
        lr,
        beta,
        *,
        mask=None,
        trust=None,
        oracle=False,
        horizon=None,
        base="sgd",
        weight_decay=0.0,
        loss=half_squared,
        literal=False,
        beta2=0.999,
        alpha=0.99,
        eps=1e-8,
        every=1,
        followed=(),
    ):
        self.parameters = list(parameters)
        self.moving = [*self.parameters, *followed]
        n = sum(p.numel() for p in self.parameters)
        self.lr, self.beta, self.trust, self.oracle, self.base = lr, beta, trust, oracle, base
        self.mask = torch.ones(sum(p.numel() for p in self.moving), n) if mask is None else mask
        self.horizon = horizon or 10**9
        self.weight_decay, self.loss, self.literal = weight_decay, loss, literal
        self.beta2, self.alpha, self.eps, self.every = beta2, alpha, eps, every
        self.batches, self.gradients, self.taylors, self.points, self.moves = [], [], [], [], []
        self.squares = []
        self.mu_hat = None

    def evaluate(self, batch):
        prediction, target = batch()
        residual = (prediction - target).detach()
        _, slope, curvature = derivatives(self.loss, residual)
        return prediction, target, slope, curvature

    def semi_gradient(self, batch):
        prediction, _, slope, _ = self.evaluate(batch)
        return gradient_of((prediction * slope).mean(), self.parameters)

    def linearize(self, batch):
        """The gradient of a batch, its Z, and what the denominator averages."""
        prediction, target, slope, curvature = self.evaluate(batch)
        m = len(prediction)
        v = per_sample(prediction, self.parameters)
        n = v.shape[1]
        u = per_sample(prediction, self.moving) - per_sample(target, self.moving)
        gradient = sum(slope[k] * v[k] for k in range(m)) / m
        taylor = sum(curvature[k] * torch.outer(u[k], v[k]) for k in range(m)) / m
        square = gradient**2
        if self.base == "tdprop":
            square = sum((curvature[k] * u[k, :n] * v[k]) ** 2 for k in range(m)) / m
        return gradient, taylor, square

    def step(self, batch, lr=None):
        lr = self.lr if lr is None else lr
        gradient, taylor, square = self.linearize(batch)
        self.batches.append(batch)
        self.gradients.append(gradient)
        self.squares.append(square)
        step = len(self.taylors)  # one batch of each interval is chosen, at a position that moves by one
        present = self.every if step % self.every == (step // self.every) % self.every else 0
        self.taylors.append(taylor * self.mask * present)
        self.points.append(flat(self.moving))
        t = len(self.batches)
        weights = [(1 - self.beta) * self.beta ** (t - 1 - i) for i in range(t)]
        mu = sum(w * g for w, g in zip(weights, self.gradients, strict=True))
        recent = range(max(0, t - self.horizon), t)
        if self.oracle:
            mu_hat = sum(weights[i] * self.semi_gradient(self.batches[i]) for i in recent)
        else:
            now = self.points[-1]
            eta = torch.zeros_like(mu)
            for i in recent:
                moved = sum(self.moves[i:], torch.zeros_like(now)) if self.literal else now - self.points[i]
                eta = eta - weights[i] * (self.taylors[i].T @ moved)
            size = 1.0
            if self.trust is not None and eta.norm() > 0:
                size = min(1.0, float(self.trust * mu.norm() / eta.norm()))
            mu_hat = mu - size * eta
        self.mu_hat = mu_hat
        self.moves.append(-lr * mu_hat)
        self._move(mu_hat, lr, t)

    def _move(self, mu_hat, lr, t):
        if self.base == "sgd":
            direction = mu_hat
        elif self.base == "rmsprop":
            mean = sum((1 - self.alpha) * self.alpha ** (t - 1 - i) * s for i, s in enumerate(self.squares))
            direction = mu_hat / (mean.sqrt() + self.eps)
        else:
            mean = sum((1 - self.beta2) * self.beta2 ** (t - 1 - i) * s for i, s in enumerate(self.squares))
            mean = mean / (1 - self.beta2**t)
            direction = mu_hat / (1 - self.beta**t) / (mean.sqrt() + self.eps)
        start = 0
        with torch.no_grad():
            for p in self.parameters:
                part = direction[start : start + p.numel()].view_as(p)
                p.mul_(1 - lr * self.weight_decay).sub_(lr * part)
                start += p.numel()


def diagonal_mask(parameters):
    return torch.eye(sum(p.numel() for p in parameters))


def block_mask(sizes):
    return torch.block_diag(*(torch.ones(size, size) for size in sizes))
