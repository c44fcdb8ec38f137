"""Runs "as the authors ran it" and "as described in the text", against loops that follow the definitions."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from unstale_lab import problems
from unstale_lab.engine.architectures import build_network
from unstale_lab.engine.training import Training
from unstale_lab.experiment import Run

SMALL = Run(width=3, layers=3, batch=4, steps=24, alpha=0.2, beta=0.8, seed=2, precision="float64", convention="code")


def predict(run: Run, theta: Tensor, state: Tensor) -> Tensor:
    """Return the values of an MLP whose layers are matrices with the bias in the first column."""
    sizes = [problems.load(run.problem).inputs, *[run.width] * (run.layers - 1), 1]
    h, start = state, 0
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        matrix = theta[start : start + outputs * (inputs + 1)].view(outputs, inputs + 1)
        start += matrix.numel()
        h = matrix[:, 0] + h @ matrix[:, 1:].T
        h = leaky_relu(h) if layer < run.layers - 1 else h
    assert start == len(theta)
    return h[:, 0]


class Batches:
    """The batches of a run, and what its loss needs of them at any parameters."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.bootstraps = problems.load(run.problem).bootstraps
        data = problems.load(run.problem).stream(run.seed, run.batch, run.n_step)(run.steps)
        self.batches = [
            tuple(field[t].double() for field in (data.state, data.reward, data.discount, data.next_state))
            for t in range(run.steps)
        ]

    def residual(self, t: int, theta: Tensor, target_theta: Tensor) -> Tensor:
        state, reward, discount, following = self.batches[t]
        target = reward + (discount * predict(self.run, target_theta, following) if self.bootstraps else 0)
        return predict(self.run, theta, state) - target

    def gradient(self, t: int, theta: Tensor) -> Tensor:
        """Return the gradient of the mean of ``δ²``, with constant targets."""
        at = theta.clone().requires_grad_()
        (found,) = torch.autograd.grad(self.residual(t, at, theta).square().mean(), at)
        return found

    def taylor_term(self, t: int, theta: Tensor, of_means: bool) -> Tensor:
        """Return ``Z`` without a factor 2: the mean of outer products, or the outer product of means."""
        state = self.batches[t][0]
        v = torch.autograd.functional.jacobian(lambda at: predict(self.run, at, state), theta)
        u = torch.autograd.functional.jacobian(lambda at: self.residual(t, at, at), theta)
        if of_means:
            return torch.outer(u.mean(0), v.mean(0))
        return sum(torch.outer(u[k], v[k]) for k in range(len(v))) / len(v)


def initial(run: Run) -> Tensor:
    return build_network(run, problems.load(run.problem)).initial(run.seed, torch.float64)


def train_corrected(run: Run, mask: Tensor, of_means: bool, strength: float = 1.0) -> Tensor:
    """Train with ``η_t = -(1-β) Σ_i β^(t-i) Z_iᵀ (θ_t - θ_i)``, and return the final parameters."""
    batches, theta, beta = Batches(run), initial(run), run.beta
    past: list[tuple[Tensor, Tensor, Tensor]] = []  # θ_i, g_i, Z_i
    for t in range(run.steps):
        taylor = strength * mask * batches.taylor_term(t, theta, of_means)
        past.append((theta, batches.gradient(t, theta), taylor))
        momentum = torch.zeros_like(theta)
        for i, (then, gradient, taylor) in enumerate(past):
            weight = beta ** (t - i) * (1 - beta if run.damped else 1)
            momentum += weight * (gradient + taylor.T @ (theta - then))
        theta = theta - run.alpha * momentum
    return theta


def train(run: Run) -> Tensor:
    trained = Training([run], "cpu")
    trained.run()
    return trained.theta[0]


@pytest.mark.parametrize("method", ["full", "diagonal", "layers"])
@pytest.mark.parametrize(
    "run",
    [
        SMALL,
        replace(SMALL, n_step=3),
        replace(SMALL, problem="mountain_car_online", batch=1),
        replace(SMALL, problem="cartpole", n_step=3),
        replace(SMALL, problem="regression"),
        replace(SMALL, problem="regression", damped=False, alpha=0.04),
    ],
    ids=["mountain car", "3 steps", "online", "cartpole", "regression", "regression, undamped"],
)
def test_correction_has_half_strength_and_the_authors_taylor_term(run, method):
    """Outer products are averaged over samples in classic control; in regression, gradients are averaged first."""
    run = replace(run, method=method, corrected_layers=(0, 2) if method == "layers" else ())
    n, spans = len(initial(run)), build_network(run, problems.load(run.problem)).spans
    mask = torch.eye(n) if method == "diagonal" else torch.ones(n, n)
    if method == "layers":
        mask[spans[1], :] = mask[:, spans[1]] = 0
    of_means = run.problem == "regression"
    theta = train(run)
    torch.testing.assert_close(theta, train_corrected(run, mask, of_means), rtol=1e-9, atol=1e-11)
    others = [train_corrected(run, mask, of_means, strength=2.0)]
    others += [train_corrected(run, mask, not of_means)] if run.batch > 1 else []
    for other in others:  # the settings tell them apart
        assert (theta - other).norm() > 1e-5


@pytest.mark.parametrize("problem", ["mountain_car", "regression"])
@pytest.mark.parametrize("method", ["full", "diagonal"])
def test_text_has_full_strength_and_outer_products_of_samples(problem, method):
    run = replace(SMALL, convention="text", problem=problem, method=method)
    n = len(initial(run))
    mask = torch.eye(n) if method == "diagonal" else torch.ones(n, n)
    torch.testing.assert_close(
        train(run), train_corrected(run, mask, of_means=False, strength=2.0), rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("method", ["momentum", "adam", "frozen"])
@pytest.mark.parametrize("problem", ["mountain_car", "regression"])
def test_uncorrected_methods_have_one_convention(method, problem):
    run = replace(SMALL, method=method, problem=problem, alpha=0.01)
    assert torch.equal(train(run), train(replace(run, convention="text")))


# ------------------------------------------------------------------- oracle


def train_oracle(run: Run, scaled: bool) -> Tensor:
    """Evaluate the last ``run.horizon`` batches again at every step, and return the final parameters."""
    batches, theta, beta = Batches(run), initial(run), run.beta
    second_moment = torch.zeros_like(theta)
    for t in range(run.steps):
        weights = {i: (1 - beta) * beta ** (t - i) for i in range(t + 1)}
        kept = {i: weight for i, weight in weights.items() if i > t - run.horizon}
        if scaled:
            factor = sum(weights.values()) / sum(kept.values())
            kept = {i: factor * weight for i, weight in kept.items()}
        direction = sum(weight * batches.gradient(i, theta) for i, weight in kept.items())
        if run.method == "adam_oracle":
            second_moment = 0.999 * second_moment + 0.001 * batches.gradient(t, theta).square()
            scale = (second_moment / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8
            direction = direction / (1 - beta ** (t + 1)) / scale
        theta = theta - run.alpha * direction
    return theta


ORACLES = [
    replace(SMALL, method="oracle", horizon=5),
    replace(SMALL, method="oracle", horizon=5, problem="regression", alpha=0.1),
    replace(SMALL, method="adam_oracle", horizon=5, alpha=0.01),
    replace(SMALL, method="oracle", horizon=5, layers=1),
]


@pytest.mark.parametrize("run", ORACLES, ids=["sgd", "regression", "adam", "linear"])
@pytest.mark.parametrize("convention", ["text", "code"])
def test_weights_of_the_oracle(run, convention):
    run = replace(run, convention=convention)
    theta = train(run)
    torch.testing.assert_close(theta, train_oracle(run, scaled=convention == "text"), rtol=1e-9, atol=1e-11)
    assert (theta - train_oracle(run, scaled=convention == "code")).norm() > 1e-3


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("method", ["oracle", "adam_oracle"])
def test_scaled_oracle_is_exact_up_to_its_horizon(method, precision):
    run = replace(SMALL, method=method, alpha=0.01, convention="text", precision=precision)
    whole, cut = (Training([replace(run, horizon=horizon)], "cpu") for horizon in (run.steps, 5))
    for trained in (whole, cut):
        trained.feed.fill(run.steps)
    for t in range(run.steps):
        whole.step()
        cut.step()
        if t < 5:
            torch.testing.assert_close(cut.theta, whole.theta, rtol=1e-5 if precision == "float32" else 1e-12, atol=0)
    assert (cut.theta - whole.theta).norm() > 1e-4


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_conventions_agree_on_an_oracle_of_all_batches(precision):
    run = replace(SMALL, method="oracle", horizon=SMALL.steps, precision=precision)
    assert torch.equal(train(run), train(replace(run, convention="text")))


# ------------------------------------------------------------------- initialization


@pytest.mark.parametrize("layers, problem", [(1, "mountain_car"), (4, "mountain_car"), (3, "cartpole")])
def test_glorot_initialization(layers, problem):
    run = Run(problem=problem, width=32, layers=layers, initialization="glorot", precision="float64", seed=5)
    trained = Training([run, replace(run, seed=6)], "cpu")
    sizes = [problems.load(problem).inputs, *[32] * (layers - 1), 1]
    assert not torch.equal(trained.theta[0], trained.theta[1])
    for span, (inputs, outputs) in zip(trained.network.spans, pairwise(sizes), strict=True):
        matrices = trained.theta[:, span].unflatten(-1, (outputs, inputs + 1))
        bound = (6 / (inputs + outputs)) ** 0.5
        assert (matrices[..., 0] == 0).all()
        assert matrices.abs().max() <= bound
        if inputs * outputs > 500:
            assert matrices.abs().max() > 0.99 * bound
            assert matrices[..., 1:].std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
