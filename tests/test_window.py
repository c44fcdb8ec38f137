"""The window when batches change: other sizes, other positions, refreshing."""

from __future__ import annotations

import pytest
import torch
from problems import Stream, mlp, parameters_of, twins
from reference import Reference, flat
from torch import nn

import unstale


def train(model, optimizer, batches, as_functions=False):
    for batch in batches:
        optimizer.backward(batch(model)) if as_functions else optimizer.backward(*batch(model)())
        optimizer.step()
        optimizer.zero_grad()
    return parameters_of(model)


def batches_of(sizes):
    """Batches of the given sizes, the same every time they are asked for."""
    streams = {m: Stream(m, seed=m) for m in set(sizes)}
    return [lambda model, m=m: streams[m].batch(model) for m in sizes]


@pytest.mark.parametrize("sizes", [[4, 4, 2, 4, 1], [1, 3, 2, 6, 4, 1], [2] * 3 + [5] * 4])
@pytest.mark.parametrize("horizon", [3, 50])
def test_batches_of_changing_size(sizes, horizon):
    model, twin = twins(lambda: mlp(30))
    optimizer = unstale.CorrectedSGD(model, lr=0.2, correction="window", trust=None, horizon=horizon)
    train(model, optimizer, batches_of(sizes * 2))
    reference = Reference(twin.parameters(), 0.2, 0.9, horizon=horizon)
    for batch in batches_of(sizes * 2):
        reference.step(batch(twin))
    torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-10, atol=1e-10)


def test_calls_that_come_and_go():
    """Sequences of changing length, a second call now and then, a constant target, a target from another layer."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.other = nn.Linear(30, 40), nn.Linear(40, 1), nn.Linear(30, 40)

        def forward(self, x, layer="a"):
            return self.b(torch.tanh(getattr(self, layer)(x))).mean(1).squeeze(-1)

    g = torch.Generator().manual_seed(0)
    x = [torch.randn(3, length, 30, generator=g) for length in (1, 2, 1, 3, 2, 1)]
    shapes = [
        lambda net, i: (net(x[i]), 0.9 * net(x[i - 1])),
        lambda net, i: (net(x[i]) + net(x[i] ** 2), 0.9 * net(x[i - 1], "other")),
        lambda net, i: (net(x[i], "other"), 0.9 * net(x[i - 1]) + net(x[i - 2])),
    ]
    model, twin = twins(Net)
    optimizer = unstale.CorrectedSGD(model, lr=0.2, correction="window", trust=None, horizon=50)
    reference = Reference(twin.parameters(), 0.2, 0.9)
    for i in range(6):
        optimizer.backward(*shapes[i % 3](model, i))
        optimizer.step()
        optimizer.zero_grad()
        reference.step(lambda i=i: shapes[i % 3](twin, i))
    torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lengths", [(2, 60, 3, 1), (60, 2, 1, 90)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_layers_that_change_their_form(lengths, accumulate):
    """Short sequences are stored as positions, long ones materialized; a window and a step can hold both."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(5, 40), nn.Linear(40, 40), nn.Linear(40, 1)

        def forward(self, x):
            return self.c(torch.tanh(self.b(torch.tanh(self.a(x))))).mean(1).squeeze(-1)

    g = torch.Generator().manual_seed(0)
    data = [torch.randn(2, 2, length, 5, generator=g) for length in lengths]
    paths = []
    for options in (dict(correction="window", horizon=50), dict(correction="dense")):
        model, _ = twins(Net)
        optimizer = unstale.CorrectedSGD(model, lr=0.3, trust=None, **options)
        for place, (s, n) in enumerate(data * 2):
            optimizer.backward(model(s), 0.9 * model(n))
            if not accumulate or place % 2:
                optimizer.step()
                optimizer.zero_grad()
        paths.append(parameters_of(model))
    torch.testing.assert_close(*paths, rtol=1e-9, atol=1e-9)


def refreshed_by_hand(model, batches, lr, beta, ages):
    """Every batch with its own gradient, Taylor term and point, all three made anew at the given ages."""
    parameters = list(model.parameters())
    mu, kept = torch.zeros_like(flat(parameters)), []
    for batch in (b(model) for b in batches):

        def linearize(batch):
            start = flat(parameters)
            probe = Reference(parameters, 0.0, beta)
            probe.step(batch)
            nn.utils.vector_to_parameters(start, parameters)
            return probe.gradients[0], probe.taylors[0], start

        now = flat(parameters)
        kept.insert(0, (batch, linearize(batch)))
        mu = beta * mu + (1 - beta) * kept[0][1][0]
        for age in ages:
            if age < len(kept):
                kept[age] = (kept[age][0], linearize(kept[age][0]))
        mu_hat = sum((1 - beta) * beta**age * (g + z.T @ (now - point)) for age, (_, (g, z, point)) in enumerate(kept))
        nn.utils.vector_to_parameters(now - lr * mu_hat, parameters)
    return parameters_of(model)


@pytest.mark.parametrize("ages", [(1,), (1, 2, 4), (3,)])
def test_refresh_linearises_again_at_the_given_ages(ages):
    model, twin = twins(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.3, correction="window", trust=None, horizon=50, refresh=ages)
    got = train(model, optimizer, batches_of(range(1, 9)), as_functions=True)
    expected = refreshed_by_hand(twin, batches_of(range(1, 9)), 0.3, 0.9, ages)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_a_refreshed_batch_may_have_changed_its_form():
    """The same values, evaluated again over a sequence padded with positions of no weight."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(20, 40), nn.Linear(40, 1)

        def forward(self, x, padding):
            x = torch.cat([x, torch.ones(len(x), padding, 20)], 1)
            kept = (torch.arange(x.shape[1]) < x.shape[1] - padding).to(x)
            return (self.b(torch.tanh(self.a(x))).squeeze(-1) * kept).sum(1)

    paths = []
    for padding in (0, 90):
        model, _ = twins(Net)
        optimizer = unstale.CorrectedSGD(model, lr=0.1, correction="window", trust=None, horizon=50, refresh=(1, 3))
        g = torch.Generator().manual_seed(0)
        for _ in range(6):
            s, n = torch.randn(2, 3, 2, 20, generator=g)
            calls = iter([0] + [padding] * 9)

            def batch(s=s, n=n, calls=calls, model=model):
                extra = next(calls)
                return model(s, extra), 0.9 * model(n, extra)

            optimizer.backward(batch)
            optimizer.step()
            optimizer.zero_grad()
        paths.append(parameters_of(model))
    torch.testing.assert_close(*paths, rtol=1e-10, atol=1e-10)


def test_refreshing_every_age_is_the_oracle():
    model, twin = twins(mlp)
    fresh = unstale.CorrectedSGD(model, lr=0.3, correction="window", trust=None, horizon=20, refresh=range(1, 20))
    oracle = unstale.CorrectedSGD(twin, lr=0.3, correction="oracle", horizon=20)
    one = train(model, fresh, batches_of([4] * 8), as_functions=True)
    two = train(twin, oracle, batches_of([4] * 8), as_functions=True)
    torch.testing.assert_close(one, two)


@pytest.mark.parametrize("trust", [None, 1.0])
def test_forgetting_costs_only_what_beta_says(trust):
    """A horizon beyond which β^h is nothing changes nothing."""
    paths = []
    for horizon in (40, 200):
        model, _ = twins(mlp)
        optimizer = unstale.CorrectedSGD(model, lr=0.2, beta=0.5, correction="window", trust=trust, horizon=horizon)
        paths.append(train(model, optimizer, [Stream(seed=i).batch for i in range(60)]))
    torch.testing.assert_close(*paths, rtol=1e-8, atol=1e-8)
