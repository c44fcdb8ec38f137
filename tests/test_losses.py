"""Losses by name, and those with derivatives in closed form, against torch's own and autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from problems import Stream, mlp, parameters_of, twins
from reference import Reference, diagonal_mask

import unstale
from unstale import losses

TORCHS = {
    "mse": F.mse_loss,
    "squared": F.mse_loss,
    "half_squared": lambda x, y, reduction: F.mse_loss(x, y, reduction=reduction) / 2,
    "huber": F.huber_loss,
    "smooth_l1": F.smooth_l1_loss,
}


def by_autograd(loss, value):
    """Value, slope and curvature of an elementwise function."""
    point = value.detach().requires_grad_()
    result = loss(point)
    (slope,) = torch.autograd.grad(result.sum(), point, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), point) if slope.requires_grad else (torch.zeros_like(slope),)
    return result.detach(), slope.detach(), curvature


def assert_all_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_every_name_has_its_counterpart():
    assert TORCHS.keys() == losses.NAMED.keys()


@pytest.mark.parametrize("shape", [(40,), (5, 8)])
@pytest.mark.parametrize("name", TORCHS)
def test_names_are_torchs(name, shape):
    residual = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = by_autograd(lambda r: TORCHS[name](r, torch.zeros_like(r), reduction="none"), residual)
    assert_all_close(losses.evaluate(name, residual), expected)
    assert_all_close(losses.evaluate(getattr(losses, name), residual), expected)


@pytest.mark.parametrize("beta", [0.3, 2.0])
def test_smooth_l1_of_any_width(beta):
    residual = 2 * torch.randn(40, generator=torch.Generator().manual_seed(0))
    expected = by_autograd(lambda r: F.smooth_l1_loss(r, torch.zeros_like(r), reduction="none", beta=beta), residual)
    assert_all_close(losses.smooth_l1(residual, beta), expected)
    with pytest.raises(ValueError, match="beta must be positive, got 0"):
        losses.smooth_l1(residual, 0)


# --------------------------------------------------------------------------------------------- the clipped value loss


def ppo_loss(value, old, target, clip):
    """As in PPO's code: the larger of two squared errors."""
    clipped = old + (value - old).clamp(-clip, clip)
    return 0.5 * torch.maximum((value - target).square(), (clipped - target).square())


# Half-integers and tenths, so that none of them is on a kink.
numbers = st.integers(-20, 20).map(lambda n: n / 2 + 0.03)


@given(
    rows=st.lists(st.tuples(numbers, numbers, st.integers(-20, 20).map(lambda n: n / 2)), min_size=1, max_size=8),
    clip=st.sampled_from([0.2, 1.1, 4.7]),
)
def test_clipped_value_is_ppos(rows, clip):
    value, old, target = torch.tensor(rows).T
    expected = by_autograd(lambda v: ppo_loss(v, old, target, clip), value)
    assert_all_close(losses.evaluate(losses.clipped_value(old, clip), value - target, target), expected)
    two = [x.reshape(-1, 1).expand(-1, 2) for x in (value, old, target)]
    found = losses.evaluate(losses.clipped_value(two[1], clip), two[0] - two[2], two[2])
    assert_all_close(found, [x.reshape(-1, 1).expand(-1, 2) for x in expected])


def test_clipped_value_has_all_of_its_branches():
    """Inside the range; outside and farther from the target; outside and closer to it, where nothing is learned."""
    value, old, target = torch.tensor([0.1, -0.5, 0.5, 3.0]), torch.zeros(4), torch.tensor([1.0, 1.0, 1.0, 1.0])
    found = losses.evaluate(losses.clipped_value(old, 0.2), value - target, target)
    assert found.slope.tolist() == pytest.approx([-0.9, -1.5, 0.0, 2.0])
    assert found.curvature.tolist() == [1.0, 1.0, 0.0, 1.0]
    assert found.value.tolist() == pytest.approx([0.405, 1.125, 0.32, 2.0])


class Clipped(Reference):
    """Evaluates PPO's loss by autograd, with the current target and the old values of the batch."""

    clip = 0.3

    def evaluate(self, batch):
        prediction, target = batch()
        constant = target.detach()
        _, slope, curvature = by_autograd(lambda v: ppo_loss(v, batch.old, constant, self.clip), prediction)
        return prediction, target, slope, curvature


class Old:
    """A batch with the values that it had at first."""

    def __init__(self, evaluate, noise):
        self.evaluate = evaluate
        self.old = evaluate()[0].detach() + noise

    def __call__(self):
        return self.evaluate()


@pytest.mark.parametrize("correction", ["none", "diagonal", "dense", "window", "oracle"])
def test_clipped_value_follows_the_double_sum(correction):
    """With targets that move. An oracle evaluates its past batches with their targets of now."""
    model, twin = twins(mlp)
    options = dict(horizon=50) if correction in ("window", "oracle") else {}
    optimizer = unstale.CorrectedSGD(model, lr=0.3, beta=0.9, correction=correction, trust=None, **options)
    n = sum(p.numel() for p in twin.parameters())
    masks = {"none": torch.zeros(n, n), "diagonal": diagonal_mask(list(twin.parameters()))}
    reference = Clipped(twin.parameters(), 0.3, 0.9, mask=masks.get(correction), oracle=correction == "oracle")
    one, two = Stream(6), Stream(6)
    noises = 0.4 * torch.randn(10, 6, generator=torch.Generator().manual_seed(1))
    clipped = 0
    for noise in noises:
        batch, same = Old(one.batch(model), noise), Old(two.batch(twin), noise)
        loss = losses.clipped_value(batch.old, Clipped.clip)
        value, target = batch()
        expected = ppo_loss(value, batch.old, target, Clipped.clip).mean().detach()
        found = optimizer.backward(batch, loss=loss)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        clipped += int((losses.evaluate(loss, (value - target).detach(), target).curvature == 0).sum())
        optimizer.step()
        optimizer.zero_grad()
        reference.step(same)
        torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-10, atol=1e-10)
    assert 5 < clipped < 55  # both branches take part


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (TypeError, "old_value must be a tensor, not float", lambda: losses.clipped_value(0.5, 0.2)),
        (ValueError, "clip must be positive, got 0", lambda: losses.clipped_value(torch.zeros(3), 0)),
        (
            TypeError,
            "needs the target",
            lambda: losses.evaluate(losses.clipped_value(torch.zeros(3), 1), torch.ones(3)),
        ),
    ],
)
def test_clipped_value_refuses(error, message, call):
    with pytest.raises(error, match=message):
        call()


def test_clipped_value_sends_no_gradient_to_old_values():
    model, _ = twins(mlp)
    other, _ = twins(mlp, seed=1)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    value = model(x).squeeze(-1)
    optimizer.backward(value, 0.9 * value, loss=losses.clipped_value(other(x).squeeze(-1), 0.2))
    assert all(p.grad is None for p in other.parameters())
