"""Runs batched in the engine match the library's optimizers on single runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import unstale
from unstale_lab import problems
from unstale_lab.engine import training as engine
from unstale_lab.engine.architectures import build_network
from unstale_lab.engine.network import ACTIVATIONS
from unstale_lab.engine.training import Training
from unstale_lab.experiment import Run, grid
from unstale_lab.methods import METHODS, has_one_beta

MODULES = {"leaky_relu": nn.LeakyReLU, "relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "selu": nn.SELU}
SMALL = Run(width=5, layers=3, batch=3, steps=30, alpha=0.3, precision="float64")


def make_module(run: Run) -> nn.Sequential:
    """Return the run's network as a ``torch.nn`` module, with the engine's initial parameters."""
    network = build_network(run, problems.load(run.problem))
    layers: list[nn.Module] = []
    theta = network.initial(run.seed, torch.float64)
    for span, (out, into) in zip(network.spans, network.shapes, strict=True):
        matrix = theta[span].view(out, into)
        linear = nn.Linear(into - 1, out)
        linear.bias.data, linear.weight.data = matrix[:, 0].clone(), matrix[:, 1:].clone()
        layers += [linear, MODULES[run.activation]()]
    return nn.Sequential(*layers[:-1], nn.Flatten(0))


def flat_parameters(model: nn.Sequential) -> torch.Tensor:
    linears = [layer for layer in model if isinstance(layer, nn.Linear)]
    return torch.cat([torch.cat([layer.bias[:, None], layer.weight], 1).flatten() for layer in linears]).detach()


def train_with_library(run: Run, frozen_every: int = 0, **options) -> torch.Tensor:
    """Train in a plain loop with ``unstale.CorrectedSGD`` and return the final parameters."""
    model = make_module(run)
    frozen = make_module(run)
    rate = run.alpha if run.damped else run.alpha / (1 - run.beta)
    optimizer = unstale.CorrectedSGD(model.parameters(), lr=rate, beta=run.beta, **options)
    problem = problems.load(run.problem)
    data = problem.stream(run.seed, run.batch, run.n_step)(run.steps)
    for t in range(run.steps):
        state, reward, discount, following = (
            field[t].double() for field in (data.state, data.reward, data.discount, data.next_state)
        )
        if frozen_every and t % frozen_every == 0:
            frozen.load_state_dict(model.state_dict())

        def batch(state=state, reward=reward, discount=discount, following=following):
            if not problem.bootstraps:
                return model(state), reward
            if frozen_every:
                return model(state), reward + discount * frozen(following).detach()
            return model(state), reward + discount * model(following)

        optimizer.zero_grad()
        if options.get("correction") == "oracle":
            optimizer.backward(batch, loss="squared")
        else:
            optimizer.backward(*batch(), loss="squared")
        optimizer.step()
    return flat_parameters(model)


SAME = {
    "momentum": dict(correction="none"),
    "diagonal": dict(correction="diagonal", trust=None),
    "full": dict(correction="dense", trust=None),
    "default": dict(correction="dense"),
    "oracle": dict(correction="oracle", horizon=unstale.paper_horizon(0.9)),
    "second_order": dict(correction="dense", trust=None, second_order=True),
    "frozen": dict(correction="none", frozen_every=100),
}


@pytest.mark.filterwarnings("ignore::unstale.ConstantTargetWarning")
@pytest.mark.parametrize("method", SAME)
@pytest.mark.parametrize("problem", ["mountain_car", "mountain_car_online", "regression"])
def test_engine_matches_library(method, problem):
    run = replace(SMALL, method=method, problem=problem, steps=120 if method == "frozen" else 30)
    trained = Training([run], "cpu")
    trained.run()
    torch.testing.assert_close(trained.theta[0], train_with_library(run, **SAME[method]), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("changes", [dict(damped=False, alpha=0.02), dict(n_step=3), dict(activation="tanh")])
def test_settings_match_library(changes):
    run = replace(SMALL, method="full", **changes)
    trained = Training([run], "cpu")
    trained.run()
    torch.testing.assert_close(trained.theta[0], train_with_library(run, **SAME["full"]), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", METHODS)
def test_batched_runs_equal_single_runs(method):
    changes = dict(corrected_layers=(0, 2)) if method.startswith("layers") else {}
    betas = 0.8 if has_one_beta(Run(method=method)) else [0.8, 0.95]
    runs = grid(
        method=method, seed=[3, 5], alpha=[0.05, 0.4], beta=betas, width=5, layers=3, batch=3, steps=20, **changes
    )
    runs = [replace(run, precision="float64") for run in runs]
    together = Training(runs, "cpu")
    records = together.run()
    for i, run in enumerate(runs):
        alone = Training([run], "cpu")
        (record,) = alone.run()
        torch.testing.assert_close(together.theta[i], alone.theta[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(records[i].curves["evaluation"], record.curves["evaluation"], rtol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_numbers_do_not_depend_on_other_runs_in_the_batch(method):
    """Bitwise, in single precision: a run's id determines its numbers."""
    changes = dict(corrected_layers=(0, 2)) if method.startswith("layers") else {}
    runs = grid(method=method, seed=[3, 5, 6], alpha=[0.05, 0.2], width=7, layers=3, batch=3, steps=60, **changes)
    together = Training(runs, "cpu").run()
    for some in ([0], [4], [1, 2], [5, 3, 0]):
        for i, record in zip(some, Training([runs[i] for i in some], "cpu").run(), strict=True):
            assert record.run == runs[i]
            for name, curve in record.curves.items():
                np.testing.assert_array_equal(curve, together[i].curves[name])


@pytest.mark.parametrize("method", METHODS)
def test_training_is_deterministic(method):
    changes = dict(corrected_layers=(1,)) if method.startswith("layers") else {}
    runs = grid(method=method, seed=[0, 1], width=4, layers=3, batch=2, steps=15, **changes)
    first, second = (Training(runs, "cpu").run() for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert all((a.curves[name] == b.curves[name]).all() for name in a.curves)


def test_methods_share_data_and_initial_weights():
    made = [Training([replace(SMALL, method=method)], "cpu") for method in ("momentum", "full", "default")]
    for training in made:
        training.feed.fill(4)
    for other in made[1:]:
        assert torch.equal(other.theta, made[0].theta)
        assert torch.equal(other.feed.current().rows, made[0].feed.current().rows)


def test_layerwise_correction_of_all_and_no_layers():
    def theta(**changes):
        training = Training([replace(SMALL, **changes)], "cpu")
        training.run()
        return training.theta

    everything = theta(method="layers", corrected_layers=(0, 1, 2))
    torch.testing.assert_close(everything, theta(method="full"), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(theta(method="layers"), theta(method="momentum"), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(theta(method="layers_diagonal"), theta(method="diagonal"), rtol=1e-10, atol=1e-12)
    assert not torch.allclose(theta(method="layers", corrected_layers=(0,)), everything)


def test_diverged_run_is_frozen_and_does_not_affect_others(monkeypatch):
    monkeypatch.setattr(engine, "DIVERGENCE_THRESHOLD", 1e3)
    runs = [replace(SMALL, alpha=alpha, steps=200) for alpha in (0.1, 1e4)]
    healthy, diverged = Training(runs, "cpu").run()
    (alone,) = Training(runs[:1], "cpu").run()
    assert healthy.diverged_at is None
    np.testing.assert_allclose(healthy.curves["evaluation"], alone.curves["evaluation"], rtol=1e-9)
    assert 0 < diverged.diverged_at < 200
    after = diverged.at > diverged.diverged_at
    assert np.isinf(diverged.curves["evaluation"][after]).all() and np.isfinite(diverged.curves["evaluation"][0])


def test_diverged_run_stays_frozen(monkeypatch):
    training = Training([replace(SMALL, alpha=0.01)], "cpu")
    path = []
    for step in range(40):
        threshold = 0.0 if step == 10 else 1e6  # one batch is above it, later ones below
        monkeypatch.setattr(engine, "DIVERGENCE_THRESHOLD", threshold)
        training.feed.fill(1)
        training.step()
        path.append(training.theta[0].clone())
    assert training.diverged_at[0] == 10
    assert not torch.equal(path[9], path[0])
    assert all(torch.equal(theta, path[9]) for theta in path[10:])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_match_autograd(activation):
    network = build_network(Run(width=4, layers=3, activation=activation), problems.load("mountain_car"))
    generator = torch.Generator().manual_seed(1)
    theta = torch.randn(2, network.size, generator=generator)
    rows, discount, slope = (torch.randn(*shape, generator=generator) for shape in ((2, 10, 2), (2, 5), (2, 5)))
    forward = network.forward(theta, rows)
    batch = network.linearize(theta, forward, discount, slope, torch.ones_like(slope))
    v, u = batch.matrices()
    run = Run(width=4, activation=activation)
    for i in range(2):
        layers: list[nn.Module] = []
        for span, (out, into) in zip(network.spans, network.shapes, strict=True):
            matrix = theta[i, span].view(out, into)
            linear = nn.Linear(into - 1, out)
            linear.bias.data, linear.weight.data = matrix[:, 0], matrix[:, 1:]
            layers += [linear, MODULES[run.activation]()]
        model = nn.Sequential(*layers[:-1])
        torch.testing.assert_close(model(rows[i]).squeeze(-1), forward.values[i])

        def gradient(x, model=model, layers=layers):
            model.zero_grad()
            model(x).sum().backward()
            linears = layers[::2]
            return torch.cat([torch.cat([p.bias.grad[:, None], p.weight.grad], 1).flatten() for p in linears])

        for k in range(5):
            of_state = gradient(rows[i, k])
            torch.testing.assert_close(v[i, k], of_state)
            torch.testing.assert_close(u[i, k], of_state - discount[i, k] * gradient(rows[i, 5 + k]))
    torch.testing.assert_close(
        network.gradient(theta, network.state_rows(forward, 5), slope).total, (slope[..., None] * v).sum(1)
    )


@pytest.mark.parametrize("activation", ["leaky_relu", "tanh"])
def test_hessian_matches_finite_differences(activation):
    network = build_network(Run(width=4, layers=3, activation=activation), problems.load("mountain_car"))
    generator = torch.Generator().manual_seed(2)
    theta = torch.randn(1, network.size, generator=generator)
    state, slope = torch.randn(1, 5, 2, generator=generator), torch.randn(1, 5, generator=generator)

    def gradient(at):
        return network.gradient(at, network.forward(at, state), slope).total[0]

    hessian = network.hessian(theta, state, slope)[0]
    for i in range(network.size):
        nudge = torch.zeros_like(theta)
        nudge[0, i] = 1e-6
        difference = (gradient(theta + nudge) - gradient(theta - nudge)) / 2e-6
        torch.testing.assert_close(hessian[:, i], difference, rtol=1e-5, atol=1e-6)


def test_drift_and_agreement_match_their_definitions():
    run = replace(SMALL, beta=0.75, steps=12, method="momentum", measure=("drift", "agreement"))
    training = Training([run], "cpu")
    (record,) = training.run()
    data = problems.load(run.problem).stream(run.seed, run.batch, run.n_step)
    batches = [data(1) for _ in range(run.steps)]
    path = []
    walker = Training([replace(run, measure=())], "cpu")
    for _ in range(run.steps):
        path.append(walker.theta[0].clone())
        walker.feed.fill(1)
        walker.step()
    now = walker.theta[0]
    model = make_module(run)

    def residual_and_gradient(theta, batch, k):
        start = 0
        for layer in (x for x in model if isinstance(x, nn.Linear)):
            out, into = layer.weight.shape
            matrix = theta[start : start + out * (into + 1)].view(out, into + 1)
            layer.bias.data, layer.weight.data = matrix[:, 0].clone(), matrix[:, 1:].clone()
            start += matrix.numel()
        model.zero_grad()
        value, following = model(batch.state[0, k : k + 1].double()), model(batch.next_state[0, k : k + 1].double())
        value.backward()
        linears = [x for x in model if isinstance(x, nn.Linear)]
        gradient = torch.cat([torch.cat([p.bias.grad[:, None], p.weight.grad], 1).flatten() for p in linears])
        # In float64: what float32 loses, the finite difference below would divide by ε.
        residual = value.item() - (batch.reward[0, k].item() + batch.discount[0, k].item() * following.item())
        return residual, gradient, following.item()

    drifts, cosines = [], []
    for i in range(run.steps - unstale.paper_horizon(run.beta), run.steps):
        for k in range(run.batch):
            residual, v, before = residual_and_gradient(path[i], batches[i], k)
            epsilon = 1e-6  # the shift of the residual, by a finite difference along the way
            ahead, *_ = residual_and_gradient(path[i] + epsilon * (now - path[i]), batches[i], k)
            corrected = residual + (ahead - residual) / epsilon
            true_residual, true_v, after = residual_and_gradient(now, batches[i], k)
            drifts.append((before - after) ** 2)
            cosines.append(torch.cosine_similarity(corrected * v, true_residual * true_v, dim=0).item())
    assert record.curves["drift"][-1] == pytest.approx(np.mean(drifts), rel=1e-6)
    assert record.curves["agreement"][-1] == pytest.approx(np.mean(cosines), rel=1e-4)
    assert record.curves["drift"][0] == 0 and record.curves["agreement"][0] == 1


def test_memory_and_backward_passes():
    runs = {m: Training([replace(SMALL, method=m, beta=0.9)], "cpu").run()[0] for m in ("momentum", "diagonal", "full")}
    n = runs["momentum"].parameters
    assert [runs[m].numbers_kept for m in runs] == [n, 4 * n, 3 * n + n * n]
    assert [runs[m].backward_passes for m in runs] == [1, 2, 2]


def test_rbf_features():
    run = Run(problem="mountain_car_scaled", rbf_grid=3, rbf_width=0.5, layers=1)
    network = build_network(run, problems.load(run.problem))
    state = torch.tensor([[0.3, -0.9]])
    features = network.feature_map(state)[:, 0]
    assert network.size == 10
    for i, x in enumerate((-1.0, 0.0, 1.0)):
        for j, y in enumerate((-1.0, 0.0, 1.0)):
            distance = (0.3 - x) ** 2 + (-0.9 - y) ** 2
            assert features[3 * i + j].item() == pytest.approx(np.exp(-distance / (0.5 * (2 / 3) ** 2)))
