"""Runs that are batched as leading dimensions equal the same runs alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unstale.corrections import Blocks, Diagonal, Window
from unstale.momentum import correct, running_mean_
from unstale.per_sample.gradients import Linearization

CORRECTIONS = {
    "diagonal": lambda n: Diagonal(),
    "dense": lambda n: Blocks([n]),
    "dense, merged late": lambda n: Blocks([n], merge_every=4),
    "blocks, merged late": lambda n: Blocks([2] * (n // 2) + [n % 2] * (n % 2), merge_every=4),
    "blocks": lambda n: Blocks([2] * (n // 2) + [n % 2] * (n % 2)),
    "window": lambda n: Window(horizon=3),
}


def walk(correction, v, u, slope, curvature, d, beta, trust=1.0):
    """Momentum and correction over given data; every tensor is [time, ..., ·]."""
    memory, mu, path = {}, torch.zeros_like(d[0]), []
    for t in range(len(v)):
        batch = Linearization.of_matrices(v[t], u[t], slope[t], curvature[t])
        eta = correction.update(memory, batch, d[t] if t else torch.zeros_like(d[0]), beta)
        running_mean_(mu, batch.gradient(batch.slope), beta)
        path.append(correct(mu, eta, trust).momentum.clone())
    return torch.stack(path)


@pytest.mark.parametrize("name", CORRECTIONS)
@given(runs=st.integers(1, 4), n=st.integers(1, 5), m=st.integers(1, 3), seed=st.integers(0, 99))
def test_a_batch_of_runs_equals_its_runs_alone(name, runs, n, m, seed):
    g = torch.Generator().manual_seed(seed)
    steps = 6

    def draw(*shape):
        return torch.randn(steps, runs, *shape, generator=g)

    data = [draw(m, n), draw(m, n), draw(m), draw(m).abs(), 0.1 * draw(n)]
    beta = torch.rand(runs, generator=g) * 0.99
    together = walk(CORRECTIONS[name](n), *data, beta)
    for run in range(runs):
        alone = walk(CORRECTIONS[name](n), *(x[:, run] for x in data), float(beta[run]))
        torch.testing.assert_close(together[:, run], alone, rtol=1e-12, atol=1e-12)


@given(data=st.data(), n=st.integers(1, 5), late=st.integers(2, 5), seed=st.integers(0, 99))
def test_merging_late_changes_nothing(data, n, late, seed):
    g = torch.Generator().manual_seed(seed)
    at_once, later = (Blocks([n], merge_every=k) for k in (1, late))
    memories: tuple[dict, dict] = ({}, {})
    for t in range(12):
        m = data.draw(st.integers(1, 4))  # batches of any size
        v, u, c = (torch.randn(*shape, generator=g) for shape in ((m, n), (m, n), (m,)))
        hessian = torch.randn(n, n, generator=g) if data.draw(st.booleans()) else None
        batch = Linearization((*Linearization.of_matrices(v, u, c, c.abs()).pieces,), c, c.abs(), hessian)
        d = torch.randn(n, generator=g) * (t > 0)
        one, other = (b.update(memory, batch, d, 0.8) for b, memory in zip((at_once, later), memories, strict=True))
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_grid_of_runs_has_several_leading_dimensions():
    g = torch.Generator().manual_seed(0)
    data = [torch.randn(5, 2, 3, *shape, generator=g) for shape in ((4, 6), (4, 6), (4,), (4,), (6,))]
    beta = torch.tensor([[0.5], [0.9]]).expand(2, 3)
    for name, make in CORRECTIONS.items():
        grid = walk(make(6), *data, beta)
        line = walk(make(6), *(x.flatten(1, 2) for x in data), beta.reshape(-1))
        torch.testing.assert_close(grid.flatten(1, 2), line, msg=name)


def test_trust_bounds_each_run_by_its_own_momentum():
    mu = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
    eta = torch.tensor([[30.0, 40.0], [1.0, 1.0], [0.0, 0.0]])
    corrected = correct(mu, eta, trust=0.5)
    torch.testing.assert_close(corrected.momentum, torch.tensor([[1.5, 2.0], [0.0, 0.0], [1.0, 0.0]]))
    torch.testing.assert_close(corrected.kept, torch.tensor([0.05, 0.0, 1.0]))
    torch.testing.assert_close(corrected.eta_norm[0] / corrected.mu_norm[0], torch.tensor(10.0))
    torch.testing.assert_close(correct(mu, eta, trust=None).momentum, mu - eta)
