"""Batches as functions that read variables of the loop: an error where they are evaluated again, not another batch."""

# ruff: noqa: B023, E731
from __future__ import annotations

import functools
import re

import numpy
import pytest
import torch
from problems import mlp

import unstale
from unstale._late_binding import bound

LATE = r"reads the variables? .*'s'.*s=s"


def new_batch():
    return torch.randn(4, 3)


def oracle_loop(model, late, steps=3):
    optimizer = unstale.CorrectedSGD(model, lr=0.1, beta=0.9, correction="oracle")
    for _ in range(steps):
        s = new_batch()

        def compute(s=s):
            return model(s).squeeze(-1), 1 + 0.9 * model(2 * s).squeeze(-1)

        optimizer.backward((lambda: compute(s)) if late else compute)
        optimizer.step()
        optimizer.zero_grad()


def window_loop(model, late, steps=3):
    optimizer = unstale.CorrectedSGD(model, lr=0.1, beta=0.9, correction="window", refresh=(1, 2))
    for _ in range(steps):
        s = new_batch()
        batch = functools.partial(lambda s: (model(s).squeeze(-1), 0.9 * model(2 * s).squeeze(-1)), s)
        optimizer.backward((lambda: (model(s).squeeze(-1), 0.9 * model(2 * s).squeeze(-1))) if late else batch)
        optimizer.step()
        optimizer.zero_grad()


def likelihood_loop(model, late, steps=3):
    optimizer = unstale.CorrectedSGD(model, lr=0.1, beta=0.9, correction="oracle")
    for _ in range(steps):
        s = new_batch()
        optimizer.backward_log_likelihood(
            (lambda: -model(s).squeeze(-1).square()) if late else (lambda s=s: -model(s).squeeze(-1).square())
        )
        optimizer.step()
        optimizer.zero_grad()


def drift_loop(model, late, steps=3):
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    monitor = unstale.diagnostics.DriftMonitor(optimizer)
    for _ in range(steps):
        s = new_batch()
        values = lambda s=s: (model(s).squeeze(-1), 0.9 * model(2 * s).squeeze(-1))
        optimizer.backward((lambda: values(s)) if late else values)
        optimizer.step()
        optimizer.zero_grad()
    monitor.read()


def monitor_loop(model, late, steps=3):
    optimizer = torch.optim.Adam(model.parameters())
    monitor = unstale.Monitor(model, optimizer)
    for _ in range(steps):
        s = new_batch()
        values = lambda s=s: (model(s).squeeze(-1), 0.9 * model(2 * s).squeeze(-1))
        value, target = monitor.observe((lambda: values(s)) if late else values)
        (value - target.detach()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.read()


LOOPS = [oracle_loop, window_loop, likelihood_loop, drift_loop, monitor_loop]


@pytest.mark.parametrize("loop", LOOPS)
def test_variables_of_the_loop_are_an_error(loop):
    with pytest.raises(RuntimeError, match=LATE):
        loop(mlp(), late=True)


@pytest.mark.parametrize("loop", LOOPS)
def test_bound_data_is_not(loop):
    loop(mlp(), late=False)


SCRIPT = """
import torch
make = lambda s: s.sum()
{setup}
f = bound({function})
f()
{change}
f()
"""


@pytest.mark.parametrize(
    ("setup", "function", "change", "name"),
    [
        ("s = torch.ones(2)", "lambda: make(s)", "s = torch.ones(2)", "s"),
        ("i, data = 1, torch.ones(4)", "lambda: data[i]", "i += 1", "i"),
        ("batch = (torch.ones(2),)", "lambda: [make(x) for x in batch]", "batch = (torch.ones(2),)", "batch"),
        ("s = torch.ones(2)", "lambda: [make(s) for _ in range(2)]", "s = torch.zeros(2)", "s"),
        ("s = None", "lambda: s", "s = 1", "s"),
        ("s = torch.ones(2)", "lambda: s", "del s", "s"),
    ],
)
def test_rebound_globals(setup, function, change, name):
    script = SCRIPT.format(setup=setup, function=function, change=change)
    with pytest.raises(RuntimeError, match=re.escape(f"reads the variable {name!r}")):
        exec(script, {"bound": bound})


@pytest.mark.parametrize(
    ("setup", "function", "change"),
    [
        ("s = torch.ones(2)", "lambda: make(s)", "pass"),
        ("s = torch.ones(2)", "lambda s=s: make(s)", "s = torch.zeros(2)"),
        ("gamma = 0.5 + 0.25", "lambda: gamma", "gamma = sum([0.25, 0.5])"),
        ("gamma = numpy.float32(0.5)", "lambda: gamma", "gamma = numpy.float32(0.5)"),
        ("gamma = float('nan')", "lambda: gamma", "gamma = float('nan')"),
        ("device = torch.ones(1).device", "lambda: device", "device = torch.ones(1).device"),
        ("shape = (torch.ones(2).shape, 3)", "lambda: shape", "shape = (torch.ones(2).shape, 3)"),
        # What a function assigns to itself is no data.
        ("calls = 0\ndef count():\n    global calls\n    calls += 1", "count", "calls = 7"),
        # A network may be exchanged, and an attribute is not the variable of its name.
        ("network = torch.nn.Linear(2, 1)", "lambda: network", "network = torch.nn.Linear(2, 1)"),
        ("mH = torch.ones(1, 1)", "lambda x=mH: x.mH", "mH = torch.zeros(1, 1)"),
        ("", "torch.nn.Identity().children", "torch = None"),
        ("", "iter(int, 1).__next__", "make = None"),
    ],
)
def test_what_may_change(setup, function, change):
    exec(SCRIPT.format(setup=setup, function=function, change=change), {"bound": bound, "numpy": numpy})


def test_a_function_may_count_its_calls():
    calls = 0

    def count():
        nonlocal calls
        calls += 1
        return calls

    again = bound(count)
    assert [again(), again()] == [1, 2]


def test_the_first_call_finds_variables_that_are_not_assigned_yet():
    def outer():
        again = bound(lambda: later)
        later = 3
        return again()

    assert outer() == 3
