"""Which steps run eagerly, are captured or replayed; and on a GPU, that replayed steps match eager ones."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from unstale.corrections import Blocks, Reservoir, ReservoirPlan, Window, dense
from unstale.per_sample.gradients import Linearization
from unstale_lab.engine import cuda_graphs, step_timer
from unstale_lab.engine import training as engine
from unstale_lab.engine.cuda_graphs import GraphStepper
from unstale_lab.engine.training import Training
from unstale_lab.experiment import grid
from unstale_lab.methods import METHODS


class FakeBackend:
    """A backend that logs steps, captures and replays, and counts the steps made."""

    def __init__(self):
        self.log, self.made, self.captured, self.in_stream = [], 0, None, False
        self.length = 4

    @contextmanager
    def side_stream(self):
        assert not self.in_stream
        self.in_stream = True
        yield
        self.in_stream = False

    def step(self):
        assert self.in_stream
        if self.captured is not None:
            self.captured += 1
        else:
            self.log.append("step")
            self.made += 1

    def capture(self, work):
        assert self.in_stream
        self.log.append(f"capture at {self.made}")
        self.captured = 0
        work()
        length, self.captured = self.captured, None

        def replay():
            assert self.in_stream and self.made % self.length == 0
            self.log.append("replay")
            self.made += length

        return replay


@pytest.fixture
def fake():
    return FakeBackend()


@pytest.fixture
def advance(fake):
    return GraphStepper(fake.step, steps_per_graph=4, backend=fake)


def test_first_steps_run_eagerly_then_the_graph_is_replayed(fake, advance):
    advance(12)
    assert fake.log == [*["step"] * 4, "capture at 4", "replay", "replay"]
    advance(8)
    assert fake.log[-2:] == ["replay", "replay"] and len(fake.log) == 9
    assert fake.made == 20


def test_first_call_of_one_graph_length(fake, advance):
    advance(4)
    assert fake.made == 4 and "replay" not in fake.log
    advance(4)
    assert fake.made == 8 and fake.log[-1] == "replay"


@pytest.mark.parametrize("counts", [[3, 3, 3], [1, 6, 2]])
def test_other_step_counts_run_eagerly(fake, advance, counts):
    for count in counts:
        advance(count)
    assert fake.log == ["step"] * sum(counts)


def test_captures_and_replays_start_at_multiples(fake, advance):
    advance(2)
    advance(8)  # a multiple, but from 2
    assert fake.log == ["step"] * 10
    advance(2)
    advance(8)
    assert fake.log[12:] == [*["step"] * 4, "capture at 16", "replay"]
    advance(3)
    advance(4)  # from 23
    assert fake.log[-7:] == ["step"] * 7
    advance(1)
    advance(4)
    assert fake.log[-1] == "replay" and fake.made == 32


@pytest.mark.parametrize("counts", [[4, 12, 3], [5, 4, 3, 8, 16], [40], [7, 1, 8, 8], [0, 4, 0, 8]])
def test_number_of_steps(fake, advance, counts):
    for count in counts:
        advance(count)
    assert fake.made == sum(counts)


# Corrections, and how many steps a graph of them has.
GRAPHS = {
    "none": (None, 10),
    "dense": (dense(3), 10),
    "merging dense": (dense(3, samples=1), 10),
    "thinned, merging dense": (dense(3, every=2, samples=1), 20),
    "dense, one batch in five": (dense(3, every=5), 10),
    "thinned dense that merges every tenth time": (dense(3, every=5, samples=1), 50),
    "blocks that merge every fourth time": (Blocks([3], merge_every=4), 20),
    "reservoir": (Reservoir(ReservoirPlan(2, 25, 2, 2)), 50),
    "window": (Window(3), 10),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_graphs_have_whole_periods_of_a_correction(case, fake, monkeypatch):
    """So that a step that merges or lets samples enter has a fixed position in the graph."""
    correction, length = GRAPHS[case]
    monkeypatch.setattr(cuda_graphs, "CudaBackend", lambda: fake)
    monkeypatch.setattr(fake, "length", length)
    device = SimpleNamespace(is_cuda=True)
    training = SimpleNamespace(theta=device, correction=correction, step=fake.step, phase_timer=None)
    advance = engine.make_stepper(training, 0)
    assert correction is None or length % correction.period == 0
    advance(3 * length)
    assert fake.log == [*["step"] * length, f"capture at {length}", "replay", "replay"]
    assert fake.made == 3 * length
    advance(length // 2)
    assert fake.log[-length // 2 :] == ["step"] * (length // 2)


def test_the_period_of_a_thinned_merging_correction():
    """One batch in two enters, and ten of them are merged."""
    correction = Blocks([3], merge_every=10, every=2)
    assert correction.period == 20
    written, memory = [], {}
    for _ in range(60):
        chosen = correction.choose(memory, 1)
        batch = None
        if chosen is not None:
            batch = Linearization.of_matrices(torch.ones(1, 3), torch.ones(1, 3), torch.ones(1), torch.ones(1))
        before = memory["zeta"][0].clone() if memory else torch.zeros(1, 3, 3)
        correction.update(memory, batch, torch.zeros(3), 0.9)
        written.append(not torch.equal(memory["zeta"][0], before))
    assert written.count(True) == 3
    assert written[:20] == written[20:40] == written[40:]


def test_steps_on_the_cpu_run_eagerly(fake):
    training = SimpleNamespace(theta=torch.zeros(1), correction=None, phase_timer=None)
    training.step = lambda: fake.log.append("step")
    engine.make_stepper(training, 0)(25)
    assert fake.log == ["step"] * 25


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "width", [7, 48]
)  # the matrix of the second is so large that samples are merged every tenth step
@pytest.mark.parametrize("method", METHODS)
def test_replayed_steps_match_eager_steps_on_gpu(method, width, monkeypatch):
    changes = dict(corrected_layers=(0, 2)) if method.startswith("layers") else {}
    check_replayed_steps(monkeypatch, method=method, alpha=[0.05, 0.2], width=width, batch=3, **changes)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "settings",
    [
        dict(method="adam", lr_schedule="linear", weight_average=0.99, beta=[0.9, 0.99], batch=3),
        dict(method="adam", trace_decay=0.9, problem="mountain_car_online", batch=1),
        dict(method="adam_dense", lr_schedule="linear", beta=0.99, trust=0.5, batch=3, width=7),
        dict(method="adam_dense", lr_schedule="linear", beta=0.99, batch=3, width=48),
        dict(method="adam_window", lr_schedule="linear", beta=0.9, batch=3),
        dict(method="full", convention="code", beta=0.9, batch=3, problem="regression"),
        dict(method="full", convention="code", beta=0.9, batch=3, problem="regression", width=48),
        dict(method="diagonal", convention="code", beta=[0.9, 0.99], batch=3, initialization="glorot"),
        dict(method="adam_oracle", convention="code", beta=0.9, batch=3),
    ],
    ids=str,
)
def test_replayed_steps_of_changing_settings_match_eager_steps_on_gpu(settings, monkeypatch):
    check_replayed_steps(monkeypatch, **{"width": 7, "alpha": [0.001, 0.003], **settings})


def check_replayed_steps(monkeypatch, **choices):
    # 1,030 steps: chunks of 20 and a last one of 10; the target network is copied within graphs.
    runs = grid(seed=[3, 5], layers=3, steps=1030, precision="float64", **choices)
    replayed, eager = Training(runs, "cuda"), Training(runs, "cuda")
    records = replayed.run()

    def eager_stepper(training, steps_done):
        return lambda count: [training.step() for _ in range(count)]

    monkeypatch.setattr(engine, "make_stepper", eager_stepper)
    expected = eager.run()
    for one, other in zip(records, expected, strict=True):
        assert one.diverged_at == other.diverged_at
        for name, curve in one.curves.items():
            np.testing.assert_allclose(curve, other.curves[name], rtol=1e-7)


def test_timer_skips_warmup_on_gpu(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(step_timer.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    made = []

    def advance(count: int) -> None:
        now[0] += count if sum(made) >= step_timer.WARMUP_STEPS else 100.0 * bool(count)
        made.append(count)

    timer = step_timer.StepTimer(torch.device("cuda"))
    timer.run(advance, 15)
    timer.run(advance, 15)
    timer.run(advance, 30)
    assert sum(made) == 60 and timer.state() == (40.0, 40) and timer.estimate(60) == 60.0
