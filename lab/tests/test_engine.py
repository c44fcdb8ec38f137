"""Runs batched in the engine match the library's optimizers on single runs."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import unstale
from unstale_lab import problems
from unstale_lab.checkpoint import Checkpoint
from unstale_lab.engine import training as engine
from unstale_lab.engine.architectures import build_network
from unstale_lab.engine.network import ACTIVATIONS
from unstale_lab.engine.phase_timer import WARMUP_STEPS
from unstale_lab.engine.training import Training
from unstale_lab.errors import UserError
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


def train_with_library(run: Run, kind: type | None = None, frozen_every: int = 0, **options) -> torch.Tensor:
    """Train in a plain loop with ``unstale.CorrectedSGD``, or another kind with its default β, and return the final
    parameters."""
    model = make_module(run)
    frozen = make_module(run)
    rate = run.alpha if run.damped else run.alpha / (1 - run.beta)
    if kind is None:
        kind, options = unstale.CorrectedSGD, options | {"beta": run.beta}
    optimizer = kind(model.parameters(), lr=rate, **options)
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
    if method == "oracle":  # the library's weights are cut off at the horizon
        run = replace(run, convention="code")
    trained = Training([run], "cpu")
    trained.run()
    torch.testing.assert_close(trained.theta[0], train_with_library(run, **SAME[method]), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("changes", [dict(damped=False, alpha=0.02), dict(n_step=3), dict(activation="tanh")])
def test_settings_match_library(changes):
    run = replace(SMALL, method="full", **changes)
    trained = Training([run], "cpu")
    trained.run()
    torch.testing.assert_close(trained.theta[0], train_with_library(run, **SAME["full"]), rtol=1e-9, atol=1e-11)


GAMMA = torch.tensor(0.95, dtype=torch.float32).item()  # data are in float32
ADAM = replace(SMALL, method="adam", alpha=0.01, steps=40)
ONLINE = replace(ADAM, problem="mountain_car_online", batch=1, steps=300)
# Settings that change over a run, each on a run that is long enough to tell it from its default.
CHANGING_SETTINGS = {
    "linear schedule": replace(ADAM, lr_schedule="linear"),
    "linear schedule, online": replace(ONLINE, lr_schedule="linear"),
    "averaged weights": replace(ADAM, weight_average=0.8),
    "traces": replace(ONLINE, trace_decay=0.9),
    "traces, linear schedule": replace(ONLINE, trace_decay=0.5, lr_schedule="linear", weight_average=0.9),
    "traces, momentum": replace(ONLINE, method="momentum", trace_decay=0.9, beta=0.8),
    "momentum, linear schedule": replace(ADAM, method="momentum", lr_schedule="linear"),
}


def train_with_torch(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """Train in a plain loop without corrections; return the final parameters and their moving average."""
    model = make_module(run)
    parameters = list(model.parameters())
    optimizer = make_optimizer(run, parameters)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: 1 - t / run.steps if run.lr_schedule == "linear" else 1.0
    )
    data = problems.load(run.problem).stream(run.seed, run.batch, run.n_step)(run.steps)
    averaged = flat_parameters(model)
    traces = [torch.zeros_like(p) for p in parameters]
    for t in range(run.steps):
        state, reward, discount, following = (
            field[t].double() for field in (data.state, data.reward, data.discount, data.next_state)
        )
        value = model(state)
        delta = value - (reward + discount * model(following)).detach()
        if run.trace_decay:
            gradients = torch.autograd.grad(value.sum(), parameters)
            traces = [GAMMA * run.trace_decay * e + g for e, g in zip(traces, gradients, strict=True)]
            for parameter, e in zip(parameters, traces, strict=True):
                parameter.grad = 2 * delta.detach() * e
            if discount == 0:  # the episode has ended
                traces = [torch.zeros_like(p) for p in parameters]
        else:
            optimizer.zero_grad()
            delta.square().mean().backward()
        optimizer.step()
        scheduler.step()
        decay = min(run.weight_average, (1 + t) / (10 + t))
        averaged = decay * averaged + (1 - decay) * flat_parameters(model)
    if run.trace_decay:
        assert (data.discount == 0).sum() >= 2  # several episodes
    return flat_parameters(model), averaged


def make_optimizer(run: Run, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if run.method == "momentum":
        return PlainMomentum(run, parameters)
    return torch.optim.Adam(parameters, lr=run.alpha, betas=(run.beta, 0.999), eps=1e-8)


class PlainMomentum(torch.optim.Optimizer):
    """Damped momentum."""

    def __init__(self, run: Run, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": run.alpha})
        self.beta = run.beta
        self.momenta = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self):
        (group,) = self.param_groups
        for p, momentum in zip(group["params"], self.momenta, strict=True):
            momentum.mul_(self.beta).add_(p.grad, alpha=1 - self.beta)
            p -= group["lr"] * momentum


@pytest.mark.parametrize("name", CHANGING_SETTINGS)
def test_changing_settings_match_torch(name):
    run = CHANGING_SETTINGS[name]
    trained = Training([run], "cpu")
    trained.run()
    theta, averaged = train_with_torch(run)
    torch.testing.assert_close(trained.theta[0], theta, rtol=1e-8, atol=1e-10)
    if run.weight_average:
        torch.testing.assert_close(trained.averaged_theta[0], averaged, rtol=1e-8, atol=1e-10)


def test_errors_are_those_of_the_averaged_weights():
    run = CHANGING_SETTINGS["averaged weights"]
    trained = Training([run], "cpu")
    (record,) = trained.run()
    (plain,) = Training([replace(run, weight_average=0.0)], "cpu").run()
    values = problems.load(run.problem).values()["evaluation"]
    predicted = trained.network.values(trained.averaged_theta[0], values.state.double())
    assert record.curves["evaluation"][-1] == pytest.approx((predicted - values.value).square().mean().item())
    assert record.curves["evaluation"][0] == plain.curves["evaluation"][0]  # both start from the initial weights
    assert record.curves["evaluation"][-1] != plain.curves["evaluation"][-1]
    assert record.numbers_kept == plain.numbers_kept + record.parameters


GROWING = {
    "sgd_default": replace(SMALL, method="sgd_default", steps=400),
    "adam_default": replace(ADAM, method="adam_default", steps=400),
    "adam_default, thinned": replace(ADAM, method="adam_default", batch=16, width=3, layers=2, steps=100),
    "reservoir": replace(ADAM, method="adam_reservoir", slots=40, batch=7, steps=400),
    "reservoir, stream": replace(ONLINE, method="adam_reservoir", slots=16, steps=400),
}


@pytest.mark.parametrize("name", GROWING)
def test_growing_memory_matches_library(name):
    run = GROWING[name]
    trained = Training([run], "cpu")
    trained.run()
    kind = unstale.CorrectedSGD if run.method == "sgd_default" else unstale.CorrectedAdam
    options = dict(correction="reservoir", slots=run.slots) if run.slots else {}
    expected = train_with_library(run, kind, **options)
    torch.testing.assert_close(trained.theta[0], expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("method", ["full", "default"])
@pytest.mark.parametrize("trust, bound", [(0.0, None), (0.2, 0.2), (1.0, 1.0)])
def test_trust_overrides_the_bound_of_the_method(method, trust, bound):
    run = replace(SMALL, method=method, trust=trust)
    trained = Training([run], "cpu")
    trained.run()
    expected = train_with_library(run, correction="dense", trust=bound)
    torch.testing.assert_close(trained.theta[0], expected, rtol=1e-9, atol=1e-11)


ALL_CHANGING = [
    *CHANGING_SETTINGS.values(),
    *GROWING.values(),
    replace(ADAM, method="adam_dense", lr_schedule="linear", weight_average=0.9, trust=0.5),
    replace(ADAM, method="adam_window", beta=0.8),
    replace(ADAM, method="adam_diagonal_literal", lr_schedule="linear"),
    replace(ADAM, method="adam_oracle", beta=0.8),
    replace(SMALL, method="full", convention="code"),
    replace(SMALL, method="full", convention="code", problem="regression"),
    replace(SMALL, method="diagonal", convention="code", problem="regression"),
    replace(SMALL, method="oracle", convention="code", initialization="glorot"),
]


@pytest.mark.parametrize("run", ALL_CHANGING, ids=lambda run: run.id)
def test_changing_settings_batched_over_runs(run):
    betas = [run.beta] if has_one_beta(run) else [run.beta, 0.6]
    runs = [replace(run, seed=s, alpha=a, beta=b, steps=60) for s in (0, 1) for a in (0.01, 0.03) for b in betas]
    for alone, batched in zip(runs, Training(runs, "cpu").run(), strict=True):
        (record,) = Training([alone], "cpu").run()
        for name, curve in record.curves.items():
            np.testing.assert_array_equal(curve, batched.curves[name])


@pytest.mark.parametrize("run", ALL_CHANGING, ids=lambda run: run.id)
def test_state_stays_at_its_address(run):
    """A captured CUDA graph reads and writes the addresses of its capture."""
    trained = Training([run], "cpu")
    trained.feed.fill(4)
    trained.step()

    def addresses():
        tensors = {name: getattr(trained, name) for name in (*engine.STATE, "decay")}
        return {name: x.data_ptr() for name, x in tensors.items() if isinstance(x, torch.Tensor)}

    before = addresses()
    for _ in range(3):
        trained.step()
    assert addresses() == before


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("run", ALL_CHANGING, ids=lambda run: run.id)
def test_changing_settings_resume_from_a_checkpoint(run, tmp_path, monkeypatch):
    run = replace(run, steps=100)
    monkeypatch.setattr(Checkpoint, "is_due", True)

    def stop(steps):
        progress.append(steps)
        if sum(progress) == 62:
            raise StoppedError

    progress: list[int] = []
    kept = Checkpoint(tmp_path / "run.pt")
    with pytest.raises(StoppedError):
        Training([run], "cpu").run(stop, kept)
    (resumed,), (undisturbed,) = Training([run], "cpu").run(checkpoint=kept), Training([run], "cpu").run()
    for name, curve in undisturbed.curves.items():
        np.testing.assert_array_equal(resumed.curves[name], curve)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(convention="coda"), "unknown convention 'coda': did you mean code"),
        (dict(convention="code", method="adam_window"), "convention 'code' cannot be combined with .* adam_window"),
        (dict(convention="code", method="adam_default"), "convention 'code' cannot be combined with .* adam_default"),
        (dict(convention="code", method="second_order"), "convention 'code' cannot be combined with .* second_order"),
        (dict(initialization="glrot"), "unknown initialization 'glrot': did you mean glorot"),
        (dict(rbf_amplitude=2.0), "rbf_amplitude 2.0 needs radial basis functions: set rbf_grid"),
        (dict(rbf_grid=3, problem="acrobot"), "rbf_grid 3 needs .* a problem with 2 inputs; .* acrobot has 6"),
        (dict(rbf_grid=3, network="svhn"), "rbf_grid 3 needs network='mlp'"),
        (dict(lr_schedule="lienar"), "unknown learning-rate schedule 'lienar': did you mean linear"),
        (dict(weight_average=1.0), "weight_average 1.0: it must be at least 0 and less than 1"),
        (dict(trace_decay=1.5), "trace_decay 1.5: give a number from 0 to 1"),
        (dict(trace_decay=0.9, batch=2), "trace_decay 0.9 needs batch 1 and n_step 1, got 2 and 1"),
        (dict(trace_decay=0.9, n_step=3), "trace_decay 0.9 needs batch 1 and n_step 1, got 1 and 3"),
        (dict(trace_decay=0.9, problem="cartpole"), "temporal order, which the problem cartpole does not have"),
        (dict(trace_decay=0.9, method="adam_dense"), "cannot be combined with the method adam_dense"),
    ],
)
def test_invalid_settings_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        Training([replace(ONLINE, **changes)], "cpu")


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


@pytest.mark.parametrize("problem, amplitude", [("mountain_car_scaled", 1.0), ("mountain_car", 2.0)])
def test_rbf_features(problem, amplitude):
    """The grid lies on [-1, 1]², whether states are scaled to it or not."""
    run = Run(problem=problem, rbf_grid=3, rbf_width=0.5, layers=1, rbf_amplitude=amplitude, steps=1, batch=4)
    network = build_network(run, problems.load(run.problem))
    trained = Training([run], "cpu")
    trained.feed.fill(1)
    states = trained.feed.current().rows[0].double()
    features = network.feature_map(states)
    assert network.size == 10
    assert (states[:, 1].abs().max() <= 0.07) == (problem == "mountain_car")
    for k, (position, velocity) in enumerate(states.tolist()):
        for i, x in enumerate((-1.0, 0.0, 1.0)):
            for j, y in enumerate((-1.0, 0.0, 1.0)):
                distance = (position - x) ** 2 + (velocity - y) ** 2
                expected = amplitude * np.exp(-distance / (0.5 * (2 / 3) ** 2))
                assert features[3 * i + j, k].item() == pytest.approx(expected)


@pytest.mark.parametrize("method", ["adam", "adam_dense"])
def test_phases_are_timed_without_changing_the_run(method):
    run = replace(SMALL, method=method, steps=50)
    [plain], [timed] = (Training([own], "cpu").run() for own in (run, replace(run, measure=("phases",))))
    np.testing.assert_array_equal(timed.curves["evaluation"], plain.curves["evaluation"])
    passes, correction = (timed.curves[f"seconds in {phase}"] for phase in ("passes", "the correction"))
    assert np.isinf(passes[: WARMUP_STEPS + 1]).all()  # not timed
    assert (passes[WARMUP_STEPS + 1 :] > 0).all() and np.isfinite(passes[WARMUP_STEPS + 1 :]).all()
    assert np.isfinite(correction[WARMUP_STEPS + 1 :]).all() == (method == "adam_dense")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"beta": 1.0}, "beta 1.0: it must be at least 0 and less than 1"),
        ({"alpha": -1.0}, "alpha -1.0: it must be positive"),
        ({"batch": 0}, "batch 0: it must be at least 1"),
        ({"steps": 0}, "steps 0: it must be at least 1"),
        ({"layers": 0}, "layers 0: it must be at least 1"),
        ({"n_step": 0}, "n_step 0: it must be at least 1"),
        ({"rbf_width": 0.0}, "rbf_width 0.0: it must be positive"),
        ({"horizon": -1}, "horizon -1: it must be at least 0"),
        ({"method": "layers", "corrected_layers": (9,)}, "corrected_layers (9,): it must be different numbers from 0"),
        ({"method": "layers", "corrected_layers": (1, 1)}, "corrected_layers (1, 1)"),
        ({"precision": "float16"}, "unknown precision 'float16'"),
        ({"activation": "relu6"}, "unknown activation 'relu6'"),
        ({"measure": ("drfit",)}, "unknown measurement 'drfit'"),
        ({"problem": "regression", "measure": ("drift",)}, "regression has no target values"),
        ({"method": "oracle", "measure": ("phases",)}, "the steps of oracle cannot be split into passes"),
        ({"method": "second_order", "measure": ("phases",)}, "the steps of second_order cannot be split into passes"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(UserError, match=re.escape(message)):
        Training([replace(SMALL, **settings)], "cpu")


@pytest.mark.parametrize("method", ["momentum", "full"])
def test_linear_networks_do_not_depend_on_their_batch(method):
    linear = replace(SMALL, problem="mountain_car_scaled", layers=1, rbf_grid=10, method=method)
    runs = [replace(linear, seed=seed) for seed in range(8)]
    alone, *_ = Training(runs[:1], "cpu").run()
    together, *_ = Training(runs, "cpu").run()
    np.testing.assert_array_equal(alone.curves["evaluation"], together.curves["evaluation"])
