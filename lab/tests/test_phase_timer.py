"""Kernel times of phases, from made-up profiles with known sums, and from a real profile where there is a GPU."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from unstale_lab.engine import phase_timer
from unstale_lab.engine.phase_timer import (
    CORRECTION,
    OF_KERNELS,
    PASSES,
    PROFILED_STEPS,
    WARMUP_STEPS,
    ClockTimer,
    KernelTimer,
    kernel_seconds,
)


def kernel(microseconds, name="kernel"):
    return SimpleNamespace(name=name, duration=microseconds)


def event(name, *kernels, children=(), device="CPU"):
    device_type = SimpleNamespace(name=device)
    return SimpleNamespace(name=name, kernels=list(kernels), cpu_children=list(children), device_type=device_type)


def test_kernels_count_for_the_phase_around_their_operations():
    product = event("aten::mm", kernel(3.0), kernel(4.0))
    nested = event("aten::linear", kernel(1.0), children=[product])
    outside = event("aten::add", kernel(100.0))
    events = [
        event(PASSES, children=[nested]),
        event(CORRECTION, children=[event("aten::mul", kernel(16.0))]),
        event(PASSES, children=[product]),
        nested,
        product,
        outside,
    ]
    assert kernel_seconds(events) == pytest.approx({PASSES: 15e-6, CORRECTION: 16e-6})


def test_spans_of_phases_on_the_device_are_not_counted():
    operation = event("aten::mm", kernel(3.0))
    span = event(PASSES, device="CUDA")
    assert kernel_seconds([event(PASSES, kernel(50.0, PASSES), children=[operation]), span])[PASSES] == 3e-6


def test_a_phase_without_kernels_has_no_time():
    found = kernel_seconds([event(PASSES, children=[event("aten::view")])])
    assert all(math.isnan(seconds) for seconds in found.values())


class FakeProfiler:
    """Lists the phases that were entered between ``start`` and ``stop``."""

    running: FakeProfiler | None = None

    def __init__(self, activities):
        self.listed = []

    def start(self):
        FakeProfiler.running = self

    def stop(self):
        FakeProfiler.running = None

    def events(self):
        return self.listed


class Annotation:
    """Adds a phase with one kernel of 6 µs to the profile that is running."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        if FakeProfiler.running:
            FakeProfiler.running.listed.append(event(self.name, children=[event("aten::mm", kernel(6.0))]))

    def __exit__(self, *error):
        pass


@pytest.mark.parametrize("interval", [1, 7, 40, 100])
def test_means_are_per_profiled_step(monkeypatch, interval):
    monkeypatch.setattr(torch.profiler, "profile", FakeProfiler)
    monkeypatch.setattr(torch.profiler, "record_function", Annotation)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    timer = KernelTimer(torch.device("cpu"))
    for step in range(1, 101):
        with timer.phase(PASSES):
            pass
        for _ in range(2):  # a phase can be entered several times per step
            with timer.phase(CORRECTION):
                pass
        if step % interval == 0:  # the means are read at any time
            found = {name: mean.tolist() for name, mean in timer.means(3).items()}
            if step < WARMUP_STEPS + PROFILED_STEPS:
                assert all(math.isnan(mean) for means in found.values() for mean in means)
            else:
                expected = {PASSES: [2e-6] * 3, CORRECTION: [4e-6] * 3}
                assert found == {OF_KERNELS + name: pytest.approx(means) for name, means in expected.items()}
    assert FakeProfiler.running is None


def test_the_clock_counts_all_entries_of_a_step(monkeypatch):
    seconds = iter(range(1000))
    monkeypatch.setattr(phase_timer.time, "perf_counter", lambda: next(seconds))
    timer = ClockTimer(torch.device("cpu"))
    for _ in range(WARMUP_STEPS + 5):
        for phase in (PASSES, CORRECTION, CORRECTION):
            with timer.phase(phase):
                pass
    assert {name: mean.item() for name, mean in timer.means(1).items()} == {PASSES: 1.0, CORRECTION: 2.0}
    assert {name: mean.tolist() for name, mean in timer.means(4).items()} == {PASSES: [0.25] * 4, CORRECTION: [0.5] * 4}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_profile_finds_the_larger_phase():
    timer = KernelTimer(torch.device("cuda"))
    small, large = (torch.rand(size, size, device="cuda") for size in (256, 4096))
    for _ in range(WARMUP_STEPS + PROFILED_STEPS):
        with timer.phase(PASSES):
            small @ small
        with timer.phase(CORRECTION):
            large @ large
    passes, correction = (timer.means(1)[OF_KERNELS + name].item() for name in (PASSES, CORRECTION))
    assert 0 < passes < correction / 10
