"""Image networks batched over runs match the library's optimizers on ``torch.nn`` modules."""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import unstale
from unstale_lab import checkpoint, problems
from unstale_lab.checkpoint import Checkpoint
from unstale_lab.engine import batch, layers, training
from unstale_lab.engine.architectures import build_network
from unstale_lab.engine.sweep import make_engine, run_batches
from unstale_lab.engine.training import Training
from unstale_lab.errors import UserError
from unstale_lab.experiment import Run
from unstale_lab.figures.figure import Figure
from unstale_lab.methods import METHODS
from unstale_lab.problems.images import FrameStacks, ImageSet
from unstale_lab.problems.problem import Transitions, ValueSet, seeded
from unstale_lab.reproduce import summarise
from unstale_lab.store import Store

IMAGES = 12


def random_bytes(*shape: int, key: str = "images") -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=seeded(key), dtype=torch.uint8)


class Classes:
    """A few noise images, each with a class."""

    inputs = 2
    bootstraps = False
    outputs = 3

    def images(self, device: str) -> ImageSet:
        return ImageSet(
            random_bytes(IMAGES, 3, 16, 16).to(device),
            torch.tensor([0.4, 0.5, 0.6]).to(device),
            self.outputs,
            spread=0.5,
        )

    def fingerprint(self) -> str:
        return "noise"

    def stream(self, seed: int, batch: int, n_step: int):
        generator = seeded("classes", seed)

        def take(count: int) -> Transitions:
            which = torch.randint(IMAGES, (count, batch), generator=generator)
            state = torch.stack([which, which % self.outputs], -1)
            nothing = torch.zeros(count, batch)
            return Transitions(state, nothing, nothing, state)

        return take

    def values(self) -> dict[str, ValueSet]:
        which = torch.arange(IMAGES)
        return {"evaluation": ValueSet(torch.stack([which, which % self.outputs], -1), *torch.zeros(2, IMAGES))}


class Game(Classes):
    """Frames of two episodes, with random actions."""

    bootstraps = True
    side = 84
    floor = 0.0

    def images(self, device: str) -> FrameStacks:
        first = torch.tensor([1] * 5 + [6] * (IMAGES - 5))
        stacks = random_bytes(1 + IMAGES, self.side, self.side), 1 + torch.arange(IMAGES), first
        return FrameStacks(*(part.to(device) for part in stacks), self.outputs)

    def stream(self, seed: int, batch: int, n_step: int):
        generator = seeded("game", seed)

        def take(count: int) -> Transitions:
            drawn = torch.randint(60, (count, batch, 4), generator=generator)
            which, action, following = drawn[..., 0] % (IMAGES - 1), drawn[..., 1] % 3, drawn[..., 2] % 3
            return Transitions(
                torch.stack([which, action], -1),
                drawn[..., 3] / 60,
                0.9 * (which % 4 > 0).double(),
                torch.stack([which + 1, following], -1),
            )

        return take

    def values(self) -> dict[str, ValueSet]:
        (held,) = super().values().values()
        return {"evaluation": held, "truth": replace(held, floor=self.floor)}


@pytest.fixture(autouse=True)
def register_problems(monkeypatch):
    monkeypatch.setitem(problems.PROBLEMS, "classes", Classes)
    monkeypatch.setitem(problems.PROBLEMS, "game", Game)
    problems.load.cache_clear()
    yield
    problems.load.cache_clear()


BASE = Run(batch=2, steps=10, width=2, alpha=0.05, beta=0.75, seed=1, precision="float64")
CASES = {
    "classes": replace(BASE, problem="classes", network="svhn"),
    "game": replace(BASE, problem="game", network="dqn"),
    "small": replace(BASE, problem="game", network="small_atari"),
}


def make_module(run: Run) -> nn.Sequential:
    """Return the network as a ``torch.nn`` module, with the engine's initial parameters."""
    w, outputs = run.width, Classes.outputs
    layers: dict[str, list[nn.Module]] = {
        "svhn": [
            nn.Conv2d(3, w, 3, 2, 1),
            nn.Conv2d(w, 2 * w, 3, 2, 1),
            nn.Conv2d(2 * w, 2 * w, 3, 2, 1),
            nn.Conv2d(2 * w, w, 3, 1, 1),
            nn.Linear(4 * w, 4 * w),  # 16 w for images of 32 by 32
            nn.Linear(4 * w, 4 * w),
            nn.Linear(4 * w, outputs),
        ],
        "dqn": [
            nn.Conv2d(4, w, 8, 4, 4),
            nn.Conv2d(w, 2 * w, 4, 2, 2),
            nn.Conv2d(2 * w, 2 * w, 3, padding=1),
            nn.Linear(2 * w * 12 * 12, 16 * w),
            nn.Linear(16 * w, outputs),
        ],
        "small_atari": [nn.Conv2d(4 if i == 0 else w, w, 3, 2, 1) for i in range(4)] + [nn.Conv2d(w, outputs, 6)],
    }
    chosen = layers[run.network]
    network = build_network(run, problems.load(run.problem))
    theta = network.initial(run.seed, torch.float64, run.initialization)
    for layer, span, shape in zip(chosen, network.spans, network.shapes, strict=True):
        matrix = theta[span].view(shape)
        layer.bias.data = matrix[:, 0].clone()
        layer.weight.data = matrix[:, 1:].reshape(layer.weight.shape).clone()
    steps: list[nn.Module] = []
    for layer in chosen:
        if isinstance(layer, nn.Linear) and not any(isinstance(step, nn.Flatten) for step in steps):
            steps.append(nn.Flatten())
        steps += [layer, nn.LeakyReLU()]
    return nn.Sequential(*steps[:-1], nn.Flatten())


def flat_parameters(model: nn.Module) -> torch.Tensor:
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    return torch.cat([torch.cat([x.bias[:, None], x.weight.flatten(1)], 1).flatten() for x in layers]).detach()


def predict(model: nn.Module, run: Run, state: torch.Tensor) -> torch.Tensor:
    outputs = model(problems.load(run.problem).images("cpu").load(state[:, 0], torch.float64))
    outputs = outputs.log_softmax(-1) if run.problem == "classes" else outputs
    return outputs.gather(1, state[:, 1:]).squeeze(1)


def train_with_library(run: Run, frozen_every: int = 0, **options) -> torch.Tensor:
    """Train in a plain loop with the library's optimizers and return the final parameters."""
    model, frozen = make_module(run), make_module(run)
    if METHODS[run.method].adam:
        optimizer = unstale.CorrectedAdam(model, lr=run.alpha, betas=(run.beta, 0.999), **options)
    else:
        optimizer = unstale.CorrectedSGD(model, lr=run.alpha, beta=run.beta, **options)
    data = problems.load(run.problem).stream(run.seed, run.batch, run.n_step)(run.steps)
    for t in range(run.steps):
        if frozen_every and t % frozen_every == 0:
            frozen.load_state_dict(model.state_dict())

        def log_likelihood(t=t):
            return predict(model, run, data.state[t])

        def values(t=t):
            following = predict(frozen if frozen_every else model, run, data.next_state[t])
            following = following.detach() if frozen_every else following
            return predict(model, run, data.state[t]), data.reward[t].double() + data.discount[t] * following

        optimizer.zero_grad()
        again = options["correction"] == "oracle"
        if run.problem == "classes":
            optimizer.backward_log_likelihood(log_likelihood if again else log_likelihood())
        elif again:
            optimizer.backward(values, loss="squared")
        else:
            optimizer.backward(*values(), loss="squared")
        optimizer.step()
    return flat_parameters(model)


HORIZON = unstale.paper_horizon(BASE.beta)
SGD = {
    "momentum": dict(correction="none"),
    "diagonal": dict(correction="diagonal", trust=None),
    "full": dict(correction="dense", trust=None),
    "oracle": dict(correction="oracle", horizon=HORIZON, trust=None),
    "window": dict(correction="window", horizon=HORIZON),
}
ADAM = {
    "adam": dict(correction="none"),
    "adam_linearized": dict(correction="none"),
    "adam_diagonal_literal": dict(correction="diagonal", trust=None, recursion="literal"),
    "adam_diagonal": dict(correction="diagonal", trust=None),
    "adam_window": dict(correction="window", horizon=HORIZON),
    "adam_dense": dict(correction="dense"),
    "adam_oracle": dict(correction="oracle", horizon=HORIZON, trust=None),
}


@pytest.mark.filterwarnings("ignore::unstale.ConstantTargetWarning")
@pytest.mark.parametrize(
    ("case", "method"),
    [*(("classes", m) for m in SGD if m != "full"), *(("small", m) for m in ADAM), ("game", "adam_window")],
)
def test_engine_matches_library(case, method):
    run = replace(CASES[case], method=method, alpha=0.05 if method in SGD else 0.003)
    if "oracle" in method:  # the library's weights are cut off at the horizon
        run = replace(run, convention="code")
    trained = Training([run], "cpu")
    start = trained.theta[0].clone()
    trained.run()
    expected = train_with_library(run, **(SGD | ADAM)[method])
    assert (expected - start).norm() > 1e-3
    torch.testing.assert_close(trained.theta[0], expected, rtol=1e-8, atol=1e-10)


class MeanGradients:
    """The gradient of a batch, and the mean gradients of its predictions and residuals, by autograd."""

    def __init__(self, run: Run, model: nn.Module, data: Transitions, t: int) -> None:
        value, target = predict(model, run, data.state[t]), 0.0
        if run.problem == "game":
            target = data.reward[t].double() + data.discount[t] * predict(model, run, data.next_state[t])
            loss = (value - target.detach()).square().mean()
        else:
            loss = -value.mean()
        self.gradient, self.v, self.u = (
            flat_gradient(model, scalar) for scalar in (loss, value.mean(), (value - target).mean())
        )


def flat_gradient(model: nn.Module, scalar: torch.Tensor) -> torch.Tensor:
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    parameters = [p for layer in layers for p in (layer.bias, layer.weight)]
    found = torch.autograd.grad(scalar, parameters, retain_graph=True)
    pairs = zip(found[::2], found[1::2], strict=True)
    return torch.cat([torch.cat([bias[:, None], weight.flatten(1)], 1).flatten() for bias, weight in pairs])


def set_parameters(model: nn.Module, theta: torch.Tensor) -> None:
    start = 0
    for layer in (layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)):
        shape = (len(layer.bias), 1 + layer.weight[0].numel())
        matrix = theta[start : start + shape[0] * shape[1]].view(shape)
        start += matrix.numel()
        layer.bias.data, layer.weight.data = matrix[:, 0].clone(), matrix[:, 1:].reshape(layer.weight.shape).clone()
    assert start == len(theta)


def train_as_the_authors(run: Run) -> torch.Tensor:
    """Train with ``mean(u) ⊗ mean(v)``, or its diagonal, in the paper's recursion, and return the final parameters."""
    model, beta = make_module(run), run.beta
    data = problems.load(run.problem).stream(run.seed, run.batch, run.n_step)(run.steps)
    theta = flat_parameters(model)
    mask = torch.ones(len(theta), len(theta)) if run.method == "full" else torch.eye(len(theta))
    mu, eta, second_moment = torch.zeros(3, len(theta))
    zeta = torch.zeros_like(mask)
    for t in range(run.steps):
        batch = MeanGradients(run, model, data, t)
        eta = beta * eta + run.alpha * beta * zeta.T @ (mu - eta)
        zeta = beta * zeta + (1 - beta) * mask * torch.outer(batch.u, batch.v)
        mu = beta * mu + (1 - beta) * batch.gradient
        direction = mu - eta
        if run.method == "adam_diagonal_literal":
            second_moment = 0.999 * second_moment + 0.001 * batch.gradient.square()
            denominator = (second_moment / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8
            direction = direction / denominator / (1 - beta ** (t + 1))
        theta = theta - run.alpha * direction
        set_parameters(model, theta)
    return theta


@pytest.mark.parametrize(
    ("case", "method", "alpha"),
    [
        ("classes", "diagonal", 0.3),
        ("classes", "full", 0.3),
        ("small", "diagonal", 0.3),
        ("small", "full", 0.3),
        ("small", "adam_diagonal_literal", 0.003),
    ],
)
def test_authors_taylor_term_is_that_of_mean_gradients(case, method, alpha):
    run = replace(CASES[case], method=method, convention="code", alpha=alpha, initialization="glorot", batch=3)
    trained, text = (Training([replace(run, convention=convention)], "cpu") for convention in ("code", "text"))
    trained.run()
    text.run()
    torch.testing.assert_close(trained.theta[0], train_as_the_authors(run), rtol=1e-8, atol=1e-10)
    assert (trained.theta[0] - text.theta[0]).norm() > 1e-7


def test_agreement_with_mean_gradients():
    run = replace(CASES["small"], convention="code", alpha=0.3, steps=2, batch=3, measure=("batch agreement",))
    trained = Training([run], "cpu")
    (record,) = trained.run()
    model = make_module(run)
    data = problems.load(run.problem).stream(run.seed, run.batch, run.n_step)(run.steps)
    walker = Training([replace(run, measure=())], "cpu")
    walker.feed.fill(2)
    cosines = []
    for t in range(2):
        then = walker.theta[0].clone()
        set_parameters(model, then)
        batch = MeanGradients(run, model, data, t)
        set_parameters(model, trained.theta[0])
        true = MeanGradients(run, model, data, t).gradient
        corrected = batch.gradient + batch.v * (batch.u @ (trained.theta[0] - then))
        cosines.append(torch.cosine_similarity(corrected, true, dim=0).item())
        walker.step()
    assert record.curves["agreement of batches"][-1] == pytest.approx(np.mean(cosines), rel=1e-9)
    assert np.mean(cosines) < 1 - 1e-6


@pytest.mark.parametrize("case", CASES)
def test_glorot_initialization(case):
    run = replace(CASES[case], width=16, initialization="glorot")
    trained, default = Training([run], "cpu"), Training([replace(run, initialization="default")], "cpu")
    layers = [layer for layer in make_module(run) if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer, span in zip(layers, trained.network.spans, strict=True):
        outputs, inputs = len(layer.bias), layer.weight[0].numel()
        matrix, other = (x.theta[0, span].view(outputs, inputs + 1) for x in (trained, default))
        bound = (6 / (outputs + inputs)) ** 0.5
        assert (matrix[:, 0] == 0).all()
        assert 0.98 * bound < matrix.abs().max() <= bound
        # The same random numbers, whose default bound is 1/√inputs.
        torch.testing.assert_close(matrix[:, 1:], other[:, 1:] * bound * inputs**0.5)


@pytest.mark.filterwarnings("ignore::unstale.ConstantTargetWarning")
def test_target_network_is_copied_periodically(monkeypatch):
    monkeypatch.setitem(METHODS, "adam_frozen", replace(METHODS["adam_frozen"], target_every=5))
    run = replace(CASES["small"], method="adam_frozen", alpha=0.003)
    trained = Training([run], "cpu")
    trained.run()
    expected = train_with_library(run, frozen_every=5, correction="none")
    torch.testing.assert_close(trained.theta[0], expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("method", [*SGD, *ADAM])
def test_batched_runs_equal_single_runs(method):
    run = replace(CASES["small"], method=method, steps=3, measure=("drift", "batch agreement", "trust"))
    runs = [replace(run, seed=seed, alpha=alpha) for seed, alpha in ((0, 0.001), (1, 0.001), (1, 0.003))]
    together = Training(runs, "cpu").run()
    for run, record in zip(runs, together, strict=True):
        (alone,) = Training([run], "cpu").run()
        assert alone.curves.keys() == record.curves.keys()
        for name, curve in alone.curves.items():
            np.testing.assert_allclose(record.curves[name], curve, rtol=1e-8, atol=1e-10)


def test_networks_have_the_papers_sizes():
    class Real(Game):
        outputs = 9

    assert build_network(Run(network="dqn", width=32), Real()).size == 4_801_705
    assert build_network(Run(network="dqn", width=64), Real()).size == 19_179_849
    assert build_network(Run(network="small_atari", width=16), Real()).size == 12_745


def test_numbers_per_sample():
    class Real(Game):
        outputs = 9

    # Kernels are materialized, because they are smaller than their patches; matrices are stored as factors.
    kernels = (4 * 8**2 + 1) * 32 + (32 * 4**2 + 1) * 64 + (64 * 3**2 + 1) * 64
    matrices = (64 * 144 + 1 + 512) + (512 + 1 + 9)
    dqn = build_network(Run(network="dqn", width=32), Real())
    assert dqn.numbers_per_sample == 2 * (kernels + matrices) == 176_470


@pytest.mark.parametrize("case", ["game", "small"])
def test_slots_store_the_numbers_of_per_sample_gradients(case):
    run = replace(CASES[case], method="adam_reservoir", slots=20, steps=3)
    trained = Training([run], "cpu")
    trained.run()
    slots = trained.memory["weight"].shape[-1]
    stored = training.count_elements(trained.memory["pieces"]) / len(trained.runs)
    assert stored == slots * trained.network.numbers_per_sample


def test_classification_errors_are_cross_entropy_and_accuracy():
    run = CASES["classes"]
    training = Training([run], "cpu")
    training.feed.fill(1)
    measured = training.measure()
    (held,) = problems.load("classes").values().values()
    outputs = make_module(run)(problems.load("classes").images("cpu").load(held.state[:, 0], torch.float64))
    expected = nn.functional.cross_entropy(outputs, held.state[:, 1])
    torch.testing.assert_close(measured["evaluation"][0], expected)
    right = (outputs.argmax(1) == held.state[:, 1]).double().mean()
    torch.testing.assert_close(measured["evaluation accuracy"][0], right)


def test_error_floor_is_subtracted(monkeypatch):
    monkeypatch.setattr(Game, "floor", 0.125)
    training = Training([CASES["small"]], "cpu")
    training.feed.fill(1)
    measured = training.measure()
    torch.testing.assert_close(measured["truth"] + 0.125, measured["evaluation"])


def test_agreement_does_not_depend_on_chunk_size(monkeypatch):
    run = replace(
        CASES["small"], method="adam", alpha=0.003, steps=10, measure=("drift", "agreement", "batch agreement")
    )
    (whole,) = Training([run], "cpu").run()
    monkeypatch.setattr("unstale_lab.engine.measurements.MAX_GRADIENT_ELEMENTS", 1)
    (apart,) = Training([run], "cpu").run()
    assert whole.curves.keys() == apart.curves.keys()
    for name, curve in whole.curves.items():
        np.testing.assert_allclose(apart.curves[name], curve, rtol=1e-12)
    assert 0 < whole.curves["agreement if uncorrected"][-1] < 1


def test_errors_do_not_depend_on_chunk_size(monkeypatch):
    def measured():
        training = Training([CASES["small"]], "cpu")
        training.feed.fill(1)
        return training.measure()["evaluation"]

    whole = measured()
    monkeypatch.setattr("unstale_lab.engine.training.EVAL_CHUNK_IMAGES", 5)
    torch.testing.assert_close(measured(), whole)


def test_frame_stack_is_blank_before_episode_start():
    frames = torch.arange(11, dtype=torch.uint8)[:, None, None].expand(11, 2, 2)
    stacks = FrameStacks(frames, 1 + torch.arange(10), torch.tensor([1] * 6 + [7] * 4), outputs=2)
    frames_seen = (stacks.load(torch.tensor([[0, 2, 5], [6, 7, 9]]), torch.float64)[..., 0, 0] * 255).round().int()
    assert frames_seen.tolist() == [
        [[0, 0, 0, 1], [0, 1, 2, 3], [3, 4, 5, 6]],
        [[0, 0, 0, 7], [0, 0, 7, 8], [7, 8, 9, 10]],
    ]


@pytest.mark.parametrize(
    "method", ["adam", "adam_window", "adam_dense", "adam_diagonal_literal", "adam_oracle", "adam_frozen"]
)
def test_resumed_training_is_bitwise_identical(method, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    monkeypatch.setattr(training, "MIN_EVAL_INTERVAL", 1)
    run = replace(CASES["small"], method=method, alpha=0.003, steps=6, measure=("drift", "batch agreement", "trust"))
    runs = [run, replace(run, seed=4)]
    whole = Training(runs, "cpu").run()
    kept = Checkpoint(tmp_path / "kept.pt")

    def stop(steps):
        stop.made += steps
        if stop.made == 4 * len(runs):
            raise KeyboardInterrupt

    stop.made = 0
    with pytest.raises(KeyboardInterrupt):
        Training(runs, "cpu").run(stop, kept)
    progress = []
    resumed = Training(runs, "cpu").run(progress.append, kept)
    assert progress == [3 * len(runs), *[len(runs)] * 3]  # the last step before the interrupt was not saved yet
    for a, b in zip(whole, resumed, strict=True):
        assert a.curves.keys() == b.curves.keys()
        assert all((a.curves[name] == b.curves[name]).all() for name in a.curves)


def test_trust_measurements(monkeypatch):
    monkeypatch.setattr(training, "MAX_EVAL_INTERVAL", 1)
    run = replace(CASES["small"], method="adam_window", alpha=0.05, measure=("trust",), steps=50)
    (record,) = Training([run], "cpu").run()
    bounded, staleness = record.curves["bounded"], record.curves["staleness"]
    assert bounded[0] == staleness[0] == 0
    assert ((staleness > 1) == (bounded > 0)).all() and 0 < bounded.mean() < 1  # one step between measurements


def test_figure_rejects_runs_of_different_data(tmp_path, monkeypatch):
    """Data files may change; runs of different data must not be mixed in a figure."""
    store = Store(tmp_path)
    runs = [replace(CASES["classes"], seed=seed, steps=1) for seed in (0, 1)]
    figure = Figure("figure", "", (), "", lambda scale: runs, lambda records: [], lambda records: [])
    engine = make_engine("local", "cpu", 1, store.path)
    run_batches([runs[:1]], store, engine, lambda *args: None)
    assert store.find(runs[0].id).provenance["data"] == "noise"
    monkeypatch.setattr(Classes, "fingerprint", lambda self: "other noise")
    run_batches([runs[1:]], store, engine, lambda *args: None)
    torch.set_flush_denormal(False)
    with pytest.raises(UserError, match=r"different data \(noise; other noise\)"):
        summarise(figure, "paper", store)


@pytest.mark.parametrize(
    "owner, name, value",
    [
        (Classes, "fingerprint", lambda self: "other noise"),
        (batch, "provenance", lambda device: {"torch_version": "1"}),
    ],
    ids=["data", "torch"],
)
def test_run_starts_over_if_data_or_torch_changed(tmp_path, monkeypatch, owner, name, value):
    """The interrupted run has a checkpoint, but continuing it would mix numbers of both."""
    monkeypatch.setattr(checkpoint, "INTERVAL", -1.0)
    monkeypatch.setattr(training, "MIN_EVAL_INTERVAL", 1)
    runs = [replace(CASES["classes"], steps=4)]

    def stop(message):
        if list(tmp_path.iterdir()):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        batch.BatchRunner("cpu", tmp_path)(runs, stop)
    monkeypatch.setattr(owner, name, value)
    messages = []
    batch.BatchRunner("cpu", tmp_path)(runs, messages.append)
    torch.set_flush_denormal(False)
    warned = [message for message in messages if isinstance(message, str)]
    assert len(warned) == 1 and "starts over" in warned[0]
    assert [message.count for message in messages if isinstance(message, batch.Steps)] == [1, 1, 1, 1]


def test_finished_training_releases_its_memory():
    """Memory is released at once, because the next training needs it."""
    done = Training([CASES["small"]], "cpu")
    done.run()
    reference = weakref.ref(done)
    del done
    assert reference() is None


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch, which compiles
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["adam", "adam_diagonal_literal", "adam_window", "adam_frozen", "adam_oracle"])
@pytest.mark.parametrize("case", CASES)
def test_gpu_matches_cpu(case, method, monkeypatch):
    """With several streams, compilation, CUDA graphs and split products (for which width 16 is large enough)."""
    monkeypatch.setattr(layers, "NUM_STREAMS", 2)
    layers._streams.cache_clear()
    runs = [replace(CASES[case], method=method, width=16, steps=60, alpha=1e-3, seed=seed) for seed in range(3)]
    for expected, found in zip(Training(runs, "cpu").run(), Training(runs, "cuda").run(), strict=True):
        for name, curve in expected.curves.items():
            np.testing.assert_allclose(found.curves[name], curve, rtol=1e-8, err_msg=name)
