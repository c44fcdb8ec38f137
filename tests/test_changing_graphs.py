"""Graphs that change from step to step: nothing found in one may be used for another."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import per_sample
from test_linearize import Agent, check, generator
from torch import nn

import unstale
from unstale._flat_params import FlatParams
from unstale.per_sample.gradients import Linearization
from unstale.per_sample.linearize import linearize, trace_batch

M = 4


def agent_and_data(seed=0):
    torch.manual_seed(seed)
    g = generator(seed)
    return Agent(), torch.randn(M, 4, generator=g), torch.randn(M, 4, generator=g)


# Small programs from a network and two batches of states to prediction and target. `c` is a coefficient for each
# sample, `i` a permutation.
PROGRAMS = {
    "two calls": lambda net, s, n, c, i: (net.v(s), c * net.v(n)),
    "importance weights": lambda net, s, n, c, i: _weighted(net.v(s), net.v(n), c),
    "one call": lambda net, s, n, c, i: _halves(net.v(torch.cat([s, n])), c),
    "one call, swapped": lambda net, s, n, c, i: _halves(net.v(torch.cat([s, n])), c)[::-1],
    "sliced twice": lambda net, s, n, c, i: _overlapping(net.v(torch.cat([s, n])), c),
    "viewed": lambda net, s, n, c, i: _viewed(net.v(torch.cat([s, n])), c, 1 if c[0] else M),
    "gathered in a row": lambda net, s, n, c, i: (net.v(s), c * net.v(n).view(1, M).gather(1, i[None]).view(M)),
    "gathered down a column": lambda net, s, n, c, i: (net.v(s), c * net(n).gather(-2, i[:, None]).squeeze(1)),
    "gathered by action": lambda net, s, n, c, i: (
        net(s).gather(1, i[:, None] % 3).squeeze(1),
        c * net(n).gather(1, (i[:, None] + 1) % 3).squeeze(1),
    ),
    "indexed": lambda net, s, n, c, i: (net.v(s)[i], c * net.v(n)),
    "mixed": lambda net, s, n, c, i: (net.v(s), c * (net.v(n) + c * net.v(s).flip(0))),
    "selected": lambda net, s, n, c, i: (net(s)[:, 0], c * net(n)[:, int(i[0]) % 3]),
    "broadcast": lambda net, s, n, c, i: (net.v(s), (c[:, None] * net.v(n))[:, int(i[0])]),
    "constant target": lambda net, s, n, c, i: (net.v(s), None),
}


def _weighted(value, next_value, rho):
    return value, value + rho * (0.9 * next_value - value)


def _halves(both, c):
    first, second = both.chunk(2)
    return first * 1.0, c * second


def _overlapping(both, c):
    return both[:M], c * both[1 : M + 1] + (1 - c) * both[M:]


def _viewed(both, c, rows):
    parts = both.view(rows, 2, M // rows)
    return parts[:, 0].reshape(M), c * parts[:, 1].reshape(M)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("first", [0.0, 1.0])
def test_a_first_batch_that_hides_something(name, first):
    """Coefficients of 0 or 1 and the identity permutation at first; anything after that."""
    net, s, n = agent_and_data()
    g = generator(7)
    for step in range(4):
        c = torch.full((M,), first) if step == 0 else torch.rand(M, generator=g)
        i = torch.arange(M) if step == 0 else torch.randperm(M, generator=g)
        check(*PROGRAMS[name](net, s, n, c, i), net.parameters())


STEP = st.tuples(
    st.sampled_from(sorted(PROGRAMS)), st.sampled_from(["zero", "one", "random"]), st.permutations(range(M))
)


@given(steps=st.lists(STEP, min_size=2, max_size=6))
def test_any_sequence_of_programs(steps):
    net, s, n = agent_and_data()
    for name, coefficients, order in steps:
        c = {"zero": torch.zeros(M), "one": torch.ones(M), "random": torch.rand(M, generator=generator(1))}[
            coefficients
        ]
        check(*PROGRAMS[name](net, s, n, c, torch.tensor(order)), net.parameters())


class Between(nn.Module):
    """Does something to its rows between two layers, from some moment on."""

    def __init__(self, what):
        super().__init__()
        self.a, self.b = nn.Linear(4, 30), nn.Linear(30, 1)
        self.what, self.order, self.gate = what, torch.arange(M), nn.Parameter(torch.zeros(()))

    def forward(self, x):
        h = torch.tanh(self.a(x))
        if self.what == "roll, switched on" and self.order[0] != 0:
            h = h * h.roll(1, 0)
        if self.what == "permutation":
            h = h[self.order]
        if self.what == "gate":
            h = h + self.gate * h.mean(0)
        return self.b(h).squeeze(-1)


@pytest.mark.parametrize("what", ["roll, switched on", "permutation", "gate"])
def test_rows_that_begin_to_move_between_layers(what):
    torch.manual_seed(0)
    net = Between(what)
    s, n = torch.randn(M, 4), torch.randn(M, 4)
    check(net(s), 0.9 * net(n), net.parameters())
    net.order = torch.tensor([2, 3, 1, 0])
    with torch.no_grad():
        net.gate.fill_(0.5)
    # A permutation moves rows without mixing them.
    check(net(s), 0.9 * net(n), net.parameters(), irregular=0 if what == "permutation" else 2)


def test_rows_that_begin_to_mix_are_found_out_even_in_tiny_gradients():
    torch.manual_seed(0)
    net = Between("roll, switched on")
    net.order = net.order + 1
    s, n = torch.randn(M, 4), torch.randn(M, 4)
    check(1e-20 * net(s), 1e-20 * net(n), net.parameters(), irregular=2)


def test_layers_called_with_other_parameters():
    """``functional_call`` lends a module other tensors; they, not the module's own, were used."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 1))
    s, n = torch.randn(M, 4), torch.randn(M, 4)
    for k in (1.0, 0.5):
        lent = {name: p * k for name, p in net.named_parameters()}
        target = torch.func.functional_call(net, lent, (n,)).squeeze(-1)
        check(net(s).squeeze(-1), 0.9 * target, net.parameters())
    other = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 1))
    target = torch.func.functional_call(net, dict(other.named_parameters()), (n,)).squeeze(-1)
    check(net(s).squeeze(-1), target, [*net.parameters(), *other.parameters()])


@pytest.mark.parametrize("correction", ["diagonal", "dense", "window"])
@pytest.mark.filterwarnings("ignore::unstale.ConstantTargetWarning")
@pytest.mark.parametrize("style", ["one call", "two calls", "constant target"])
def test_inputs_may_be_refilled_before_the_step(correction, style):
    """A static input buffer, as for CUDA graphs, is the user's again once ``backward`` has returned."""
    paths = []
    for refill in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 1))
        optimizer = unstale.CorrectedSGD(net, lr=0.1, correction=correction)
        g = generator(1)
        for _ in range(5):
            x = torch.randn(2 * M, 40, generator=g)
            if style == "one call":
                value, next_value = net(x).squeeze(-1).chunk(2)
            elif style == "constant target":
                value, next_value = net(x).squeeze(-1), torch.zeros(2 * M)
            else:
                value, next_value = net(x[:M]).squeeze(-1), net(x[M:]).squeeze(-1)
            optimizer.backward(value, 1 + 0.9 * next_value)
            if refill:
                x.fill_(7.0)
            optimizer.step()
            optimizer.zero_grad()
        paths.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.equal(*paths)


def test_inputs_changed_before_backward_are_an_error_as_in_torch():
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = unstale.CorrectedSGD(net, lr=0.1)
    for _ in range(3):
        x = torch.randn(M, 4)
        value = net(x).squeeze(-1)
        x.add_(1)
        with pytest.raises(RuntimeError, match=r"changed in place|modified by an inplace"):
            optimizer.backward(value, 0.9 * net(torch.randn(M, 4)).squeeze(-1))


def test_half_precision_rows_that_change_places():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)).to(torch.float32)
    s = torch.randn(64, 4, dtype=torch.float32)
    order = torch.arange(64)
    for swap in (False, True):
        if swap:
            order[[3, 40]] = order[[40, 3]]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            values = net(s).squeeze(-1).float()[order]
        found = linearize(trace_batch(values, None), [FlatParams(list(net.parameters()))])
        v, _ = Linearization(found.gradients[0], values, values).matrices()
        expected = per_sample(values, list(net.parameters()))
        torch.testing.assert_close(v, expected, rtol=0.05, atol=0.02)
