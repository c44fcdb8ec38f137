"""``RowLoss.sampled``: the correction sees one random entry of every row, which stands for all of them."""

from __future__ import annotations

import copy

import pytest
import torch
from problems import mlp, parameters_of
from test_distributional import ACTIONS, CASES

import unstale
from unstale import _batch, losses
from unstale._batch import BackwardCall
from unstale._flat_params import FlatParams
from unstale.per_sample.gradients import Linearization
from unstale.per_sample.linearize import linearize, trace_batch

every_case = pytest.mark.parametrize("kind", CASES)
CORRECTIONS = ["none", "diagonal", "blocks", "dense", "window", "reservoir", "oracle", "auto"]


def network(kind, seed=0):
    torch.manual_seed(seed)
    return mlp(outputs=ACTIONS * 5)


def taylor_of(net, batch, loss, number=0, weight=1.0):
    """``Z = Σ_k c_k u_k v_kᵀ`` and the estimated gradient ``Σ_k s_k v_k``."""
    evaluated = BackwardCall(None, loss, weight, number).evaluate(*batch(net, net))
    parameters = FlatParams(list(net.parameters()))
    found = linearize(trace_batch(evaluated.prediction, evaluated.target, evaluated.columns), [parameters])
    assert not found.irregular
    v, u = Linearization(found.gradients[0], evaluated.slope, evaluated.curvature).matrices()
    return torch.einsum("k,kn,kp->np", evaluated.curvature, u, v), evaluated.slope @ v, evaluated


@every_case
def test_the_mean_over_all_entries_is_the_exact_term(kind, monkeypatch):
    """Every entry is drawn once. Rows are independent, so that all may draw the same one."""
    case, net = CASES[kind], network(kind)
    batch, weight = next(case.stream(m=4)), torch.tensor([1.0, 0.5, 2.0, 3.0])
    taylor, gradient, exact = taylor_of(net, batch, case.loss, weight=weight)
    found = []
    for entry in range(5):
        monkeypatch.setattr(_batch, "uniform", lambda *_, entry=entry, **__: torch.full((4,), (entry + 0.5) / 5))
        found.append(taylor_of(net, batch, case.loss.sampled(), weight=weight))
    torch.testing.assert_close(sum(each[0] for each in found) / 5, taylor, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(sum(each[1] for each in found) / 5, gradient, rtol=1e-11, atol=1e-11)
    assert (found[0][0] - taylor).norm() > 0.1 * taylor.norm()  # one of them is an estimate
    for _, _, evaluated in found:
        assert len(evaluated.prediction) == len(evaluated.slope) == len(evaluated.curvature) == 4
        torch.testing.assert_close(evaluated.loss, exact.loss)


@every_case
def test_the_mean_over_many_draws_is_the_exact_term(kind):
    """In the direction of a fixed displacement, within five standard errors."""
    case, net = CASES[kind], network(kind)
    batch = next(case.stream(m=2))
    taylor = taylor_of(net, batch, case.loss)[0]
    moved = torch.randn(len(taylor), generator=torch.Generator().manual_seed(0))
    draws = torch.stack([moved @ taylor_of(net, batch, case.loss.sampled(), n)[0] for n in range(400)])
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - moved @ taylor).abs() <= 5 * error + 1e-12).all()
    assert (error > 0).any()


def test_entries_are_drawn_evenly_and_depend_on_seed_and_step():
    logits = torch.arange(12.0).view(4, 3).requires_grad_()

    def entries(seed, number):
        found = BackwardCall(None, losses.cross_entropy.sampled(seed), 1.0, number).evaluate(logits, torch.ones(4, 3))
        return (found.prediction - torch.arange(0, 12, 3)).detach().long()

    drawn = torch.stack([entries(0, number) for number in range(600)])
    assert torch.equal(drawn[0], entries(0, 0)) and not torch.equal(drawn[:50], drawn[50:100])
    assert not torch.equal(drawn[:50], torch.stack([entries(1, number) for number in range(50)]))
    counts = torch.stack([column.bincount(minlength=3) for column in drawn.T])
    assert (counts - 200).abs().max() < 60  # five standard deviations
    assert (drawn[:, 0] == drawn[:, 1]).double().mean() < 0.45  # rows draw for themselves


@pytest.mark.parametrize("correction", CORRECTIONS)
@every_case
def test_grad_and_loss_are_those_of_all_entries(kind, correction):
    case, net = CASES[kind], network(kind)
    batch = next(case.stream(m=4))
    for weight in (2.5, torch.rand(4)):
        optimizer = unstale.CorrectedSGD(net, lr=0.1, correction=correction)
        loss = optimizer.backward(lambda: batch(net, net), loss=case.loss.sampled(), weight=weight)
        prediction, target = batch(net, net)
        values = case.loss.value(prediction, target.detach())
        torch.testing.assert_close(loss, values.mean().detach())
        expected = torch.autograd.grad((values * weight).mean(), list(net.parameters()))
        for p, gradient in zip(net.parameters(), expected, strict=True):
            torch.testing.assert_close(p.grad, gradient)
        optimizer.zero_grad()


@pytest.mark.parametrize("correction", CORRECTIONS)
@every_case
def test_it_is_repeatable_and_saved(kind, correction):
    """The same run again, also if it is continued from a state; the oracle and "none" are exact."""
    case = CASES[kind]
    ends = []
    for loss, stop in ((case.loss.sampled(), None), (case.loss.sampled(), 3), (case.loss, None)):
        net = network(kind)
        optimizer = unstale.CorrectedSGD(net, lr=0.3, correction=correction)
        for number, batch in zip(range(6), case.stream(), strict=False):
            if number == stop and correction != "oracle":
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = unstale.CorrectedSGD(net, lr=0.3, correction=correction)
                optimizer.load_state_dict(state)
            optimizer.backward(lambda batch=batch, net=net: batch(net, net), loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        ends.append(parameters_of(net))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=1e-12)
    is_exact = torch.allclose(ends[0], ends[2], rtol=1e-9, atol=1e-12)
    assert is_exact == (correction in ("none", "oracle"))


def test_several_calls_of_one_step_draw_different_entries():
    case, net = CASES["c51"], network("c51")
    optimizer = unstale.CorrectedSGD(net, lr=0.1, correction="window")
    calls = []
    optimizer.watchers.append(lambda call, batch, _: calls.append(call.number))
    for _, batch in zip(range(2), case.stream(), strict=False):
        for _ in range(2):
            optimizer.backward(*batch(net, net), loss=case.loss.sampled())
        optimizer.step()
        optimizer.zero_grad()
    assert len(set(calls)) == 4


@pytest.mark.parametrize("options", [dict(correction="window", refresh=(1, 2)), dict(second_order=True)], ids=str)
def test_other_options_take_it(options):
    """The mean over entries of a refreshed window, and the second-order term, are checked by their exact parts."""
    case, net = CASES["c51"], network("c51")
    optimizer = unstale.CorrectedSGD(net, lr=0.1, trust=None, **options)
    for _, batch in zip(range(5), case.stream(), strict=False):
        optimizer.backward(lambda batch=batch: batch(net, net), loss=case.loss.sampled())
        optimizer.step()
        optimizer.zero_grad()
    assert parameters_of(net).isfinite().all()


def test_hooks_that_scale_gradients_are_recognized():
    """As for other losses: the samples are scaled as the gradient was."""
    case, shifts = CASES["c51"], []
    for factor in (1.0, 0.5):
        net = network("c51")
        for p in net.parameters():
            p.register_hook(lambda g, factor=factor: g * factor)
        optimizer = unstale.CorrectedSGD(net, lr=0.1, correction="window")
        optimizer.backward(*next(case.stream())(net, net), loss=case.loss.sampled())
        optimizer.step()
        shifts.append(optimizer.state_of("group 0")["memory"]["weight"])
    torch.testing.assert_close(shifts[1], shifts[0] / 2)


def test_monitors_are_exact():
    """They compare gradients, for which an estimate from one entry of a row is too little."""
    case, readings = CASES["c51"], []
    for loss in (case.loss, case.loss.sampled()):
        net = network("c51")
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        monitor = unstale.Monitor(net, optimizer)
        for _, batch in zip(range(4), case.stream(), strict=False):
            prediction, target = monitor.observe(lambda batch=batch, net=net: batch(net, net), loss=loss)
            case.loss.value(prediction, target.detach()).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        readings.append(monitor.read())
    assert readings[0] == pytest.approx(readings[1], nan_ok=True)
    net = network("c51")
    optimizer = unstale.CorrectedSGD(net, lr=0.1)
    drift = unstale.diagnostics.DriftMonitor(optimizer)
    batch = next(case.stream())
    optimizer.backward(lambda: batch(net, net), loss=case.loss.sampled())
    assert drift.read().stale_agreement == pytest.approx(1)  # nothing has moved
