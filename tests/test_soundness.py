"""Situations in which numbers could be silently wrong, each by name.

``.grad`` is compared with autograd's and the parameters with a literal float64 reference, step by step.
"""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import warnings
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from problems import mlp, parameters_of
from reference import Reference, diagonal_mask
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

import unstale
from unstale.diagnostics import skipped_steps

M = 6


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def train_beside_reference(net, program, draw, correction="dense", steps=8, dtype=torch.float64, trust=None):
    """Train ``net`` on ``program(net, *draw(step))`` and compare every step with the reference in float64."""
    twin = copy.deepcopy(net).double()
    net.to(dtype)
    optimizer = unstale.CorrectedSGD(net, lr=0.1, beta=0.9, correction=correction, trust=trust)
    parameters = list(twin.parameters())
    mask = diagonal_mask(parameters) if correction == "diagonal" else None
    reference = Reference(parameters, 0.1, 0.9, mask=mask, trust=trust)
    close = dict(rtol=1e-9, atol=1e-10) if dtype == torch.float64 else dict(rtol=2e-3, atol=1e-4)
    for step in range(steps):
        data = draw(step)
        prediction, target = program(net, *[x.to(dtype) if x.is_floating_point() else x for x in data])
        expected = torch.autograd.grad(
            0.5 * (prediction - target.detach()).square().mean(), net.parameters(), retain_graph=True, allow_unused=True
        )
        optimizer.backward(prediction, target)
        for p, want in zip(net.parameters(), expected, strict=True):
            torch.testing.assert_close(p.grad, want, rtol=1e-5, atol=1e-7)
        optimizer.step()
        optimizer.zero_grad()
        reference.step(lambda data=data: program(twin, *data))
        torch.testing.assert_close(parameters_of(net).double(), parameters_of(twin), **close)


# ------------------------------------------------------------------------------------------------------ shared rows


class WithContext(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.ctx = mlp(width=8), nn.Linear(3, 1)


@pytest.mark.parametrize("correction", ["diagonal", "dense", "window"])
@pytest.mark.filterwarnings("ignore::unstale.SlowGradientsWarning")
def test_a_context_row_shared_by_the_batch(correction):
    """Its coefficients are zero but for one sample at first, and random later."""
    torch.manual_seed(0)
    g = generator(1)

    def draw(step):
        x = torch.rand(M, generator=g) if step >= 4 else torch.arange(M).eq(0).double()
        return torch.randn(M, 3, generator=g), torch.randn(M, 3, generator=g), torch.randn(1, 3, generator=g), x

    def program(net, s, n, c, x):
        value = net.net(s).squeeze(-1) + x * net.ctx(c).squeeze(-1)
        return value, 1 + 0.9 * net.net(n).squeeze(-1)

    train_beside_reference(WithContext(), program, draw, correction)


@pytest.mark.parametrize("correction", ["diagonal", "dense", "window"])
def test_one_bootstrap_row_for_the_whole_batch(correction):
    """``R + disc * V(last)``, where all discounts but one are zero at first."""
    torch.manual_seed(0)
    g = generator(1)

    def draw(step):
        disc = torch.rand(M, generator=g) if step >= 4 else torch.arange(M).eq(M - 1).double()
        return torch.randn(M, 3, generator=g), torch.randn(1, 3, generator=g), torch.randn(M, generator=g), disc

    def program(net, s, last, returns, disc):
        return net(s).squeeze(-1), returns + disc * net(last).squeeze(-1)

    train_beside_reference(mlp(width=8), program, draw, correction)


# ------------------------------------------------------------------------------------------------------ mixed rows


class Mixing(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.a, self.b, self.mix = nn.Linear(3, 30), nn.Linear(30, 1), mix

    def forward(self, x):
        return self.b(torch.tanh(self.mix(self.a(x)))).squeeze(-1)


MIXTURES = {
    "layer norm over the batch": lambda h: F.layer_norm(h, h.shape),
    "standard deviation": lambda h: h / h.std(),
    "mean": lambda h: h - h.mean(),
    "weak flip": lambda h: h + 0.02 * h.flip(0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.filterwarnings("ignore::unstale.SlowGradientsWarning")
def test_weak_mixing_between_layers(name, dtype):
    """The larger the batch, the weaker the influence of one row on another."""
    torch.manual_seed(0)
    g, m = generator(1), 64
    train_beside_reference(
        Mixing(MIXTURES[name]),
        lambda net, s, n: (net(s), 1 + 0.9 * net(n)),
        lambda step: (torch.randn(m, 3, generator=g), torch.randn(m, 3, generator=g)),
        dtype=dtype,
        steps=3,
    )


def test_mixing_warns_once_and_says_why():
    net = Mixing(MIXTURES["mean"])
    optimizer = unstale.CorrectedSGD(net, lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            optimizer.backward(net(torch.randn(M, 3)), 0.9 * net(torch.randn(M, 3)))
            optimizer.step()
            optimizer.zero_grad()
    (warning,) = caught
    assert warning.category is unstale.SlowGradientsWarning and warning.filename == __file__
    assert "Backward" in str(warning.message) and f"{M} backward passes" in str(warning.message)
    assert re.search(r"took \d+\.\d times as long as a plain backward pass", str(warning.message))
    assert "correction='none'" in str(warning.message)


def heads(columns):
    net = nn.Linear(3, columns)
    return net, lambda m: (net(torch.randn(m, 3)), 0.9 * net(torch.randn(m, 3)))


def categorical(columns):
    net = nn.Linear(3, columns)
    return net, lambda m: (net(torch.randn(m, 3)), net(torch.randn(m, 3)).softmax(-1))


def returns(_):
    net = nn.Linear(3, 1)

    def batch(m):
        value, ended = net(torch.randn(m + 1, 3)).squeeze(-1), torch.zeros(m, dtype=torch.bool)
        target = unstale.targets.td_lambda(torch.randn(m), value[1:], ended, ended, 0.9, 0.8)
        return value[:-1], target

    return net, batch


@pytest.mark.parametrize(
    ("make", "columns", "m", "loss", "reason"),
    [
        (heads, 16, 4, "mse", "with 16 columns take .* Predict fewer columns"),
        (heads, 15, 4, "mse", None),
        (categorical, 16, 4, unstale.losses.cross_entropy, r"with 16 columns take .* Use loss.sampled\(\)"),
        (categorical, 16, 4, unstale.losses.cross_entropy.sampled(), None),
        (returns, 1, 260, "mse", "combines the gradients of 26. rows, .* Use smaller batches"),
        (returns, 1, 50, "mse", None),
    ],
)
def test_slow_batches_say_why_what_to_do_and_how_slow(make, columns, m, loss, reason):
    """Whether there is a warning depends on the graph and its sizes, never on the clock."""
    net, batch = make(columns)
    optimizer = unstale.CorrectedSGD(net, lr=0.1, correction="window", horizon=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            optimizer.backward(*batch(m), loss=loss)
            optimizer.step()
            optimizer.zero_grad()
    assert len(caught) == (reason is not None)
    for warning in caught:
        assert warning.category is unstale.SlowGradientsWarning and warning.filename == __file__
        assert re.search(reason, str(warning.message))
        assert re.search(r"it took \d+\.\d times as long as a plain backward pass", str(warning.message))


def test_a_group_without_correction_needs_no_slow_gradients():
    """As the warning advises."""
    net = Mixing(MIXTURES["mean"])
    x = torch.randn(M, 3)
    with pytest.warns(unstale.SlowGradientsWarning):
        unstale.CorrectedSGD(net, lr=0.1).backward(net(x), 0.9 * net(x))
    traced = unstale.per_sample.linearize.trace_batch(net(x), None)
    slow = [p for p in net.parameters() if id(p) in traced.traces[0].irregular]
    fast = [p for p in net.parameters() if id(p) not in traced.traces[0].irregular]
    groups = [{"params": fast}, {"params": slow, "correction": "none"}]
    assert slow and fast
    optimizer = unstale.CorrectedSGD(groups, lr=0.1)
    optimizer.backward(net(x), 0.9 * net(x))  # warnings are errors here
    optimizer.step()


# ------------------------------------------------------------------------------------- layers that are not as they seem


def _scaled_output(module, inputs, output):
    return torch.tanh(output) * 2


class Replaced:
    """A layer's ``forward``, replaced."""

    def __init__(self, layer):
        self.layer = layer

    def __call__(self, x):
        return F.linear(x, self.layer.weight, self.layer.bias).sin() + 0.5 * F.linear(x * 2, self.layer.weight)


@pytest.mark.parametrize("kind", ["forward hook", "forward hook from a step on", "replaced forward"])
@pytest.mark.parametrize("correction", ["diagonal", "window"])
def test_layers_whose_output_is_changed(kind, correction):
    torch.manual_seed(0)
    net = mlp(width=30)
    g = generator(1)
    if kind == "forward hook":
        net[2].register_forward_hook(_scaled_output)
    seen = []

    def program(model, s, n):
        if kind == "replaced forward" and not isinstance(model[2].forward, Replaced):
            model[2].forward = Replaced(model[2])
        if kind == "forward hook from a step on" and len(seen) >= 6 and not model[2]._forward_hooks:
            model[2].register_forward_hook(_scaled_output)
        seen.append(model)
        return model(s).squeeze(-1), 1 + 0.9 * model(n).squeeze(-1)

    def draw(step):
        return torch.randn(M, 3, generator=g), torch.randn(M, 3, generator=g)

    train_beside_reference(net, program, draw, correction)


def test_hooks_on_activations_do_not_change_grad():
    """A hook that clips what flows back acts on ``.grad`` as it does with ``loss.backward()``."""
    torch.manual_seed(0)
    net, x = mlp(width=30), torch.randn(M, 3)

    def value():
        h = net[:3](x)
        h.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        return net[3:](h).squeeze(-1)

    (0.5 * (value() - 1.0).square()).mean().backward()
    expected = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    optimizer = unstale.CorrectedSGD(net, lr=0.1, correction="diagonal")
    with pytest.warns(unstale.ConstantTargetWarning):
        optimizer.backward(value(), torch.ones(M))
    for p, want in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, want)


def test_column_major_activations():
    class Transposing(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 24), nn.Linear(4, 6), nn.Linear(36, 1)

        def forward(self, x):
            h = torch.tanh(self.a(x)).unflatten(1, (4, 6)).transpose(1, 2)
            return self.c(torch.tanh(self.b(h)).transpose(1, 2).flatten(1)).squeeze(-1)

    torch.manual_seed(0)
    g = generator(1)
    train_beside_reference(
        Transposing(),
        lambda net, s, n: (net(s.T.contiguous().T), 1 + 0.9 * net(n)),
        lambda step: (torch.randn(M, 3, generator=g), torch.randn(M, 3, generator=g)),
        "window",
        steps=4,
    )


@pytest.mark.parametrize("correction", ["diagonal", "dense", "window"])
def test_column_major_inputs(correction):
    """Rows that do not lie one after another in memory, alone in their batch."""
    torch.manual_seed(0)
    g = generator(1)

    def program(net, s):
        return net(s.T.contiguous().T).squeeze(-1), torch.ones(M)

    with pytest.warns(unstale.ConstantTargetWarning):
        train_beside_reference(mlp(), program, lambda step: (torch.randn(M, 3, generator=g),), correction, steps=4)


@pytest.mark.parametrize("correction", ["diagonal", "dense", "window"])
def test_sparse_embeddings(correction):
    torch.manual_seed(0)
    sparse = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(8, 1))
    dense = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 1))
    dense.load_state_dict(sparse.state_dict())
    optimizers = [unstale.CorrectedSGD(net, lr=0.1, correction=correction) for net in (sparse, dense)]
    g = generator(1)
    for _ in range(4):
        s, n = (torch.randint(9, (M, 2), generator=g) for _ in range(2))
        for net, optimizer in zip((sparse, dense), optimizers, strict=True):
            optimizer.backward(net(s).squeeze(-1), 1 + 0.9 * net(n).squeeze(-1))
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(parameters_of(sparse), parameters_of(dense))


def test_sparse_gradients_are_clipped_as_dense_ones():
    torch.manual_seed(0)
    sparse = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(8, 1))
    dense = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 1))
    dense.load_state_dict(sparse.state_dict())
    s = torch.tensor([[0, 1], [1, 1], [5, 0]])
    norms = []
    for net in (sparse, dense):
        optimizer = unstale.CorrectedSGD(net, lr=0.1, correction="window")
        for _ in range(2):  # with entries that occur several times
            optimizer.backward(net(s).squeeze(-1), 5 + 0.9 * net(s.flip(0)).squeeze(-1))
        norms.append(optimizer.clip_grad_norm_(0.01))
        optimizer.step()
    torch.testing.assert_close(*norms)
    torch.testing.assert_close(parameters_of(sparse), parameters_of(dense))


# ------------------------------------------------------------------------------------ compiled and checkpointed modules


@pytest.mark.parametrize("correction", ["diagonal", "dense", "window"])
@pytest.mark.parametrize("how", ["script", "trace", "checkpoint", "checkpoint a part"])
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore::unstale.SlowGradientsWarning")
def test_compiled_and_checkpointed_modules(how, correction):
    torch.manual_seed(0)
    model, g = mlp(), generator(1)
    compiled = {"script": torch.jit.script, "trace": lambda net: torch.jit.trace(net, torch.randn(M, 3))}
    known = (
        {id(model): compiled[how](model)} if how in compiled else {}
    )  # with its parameters; the twin is not compiled

    def value(net, x):
        net = known.get(id(net), net)
        if how == "checkpoint":
            return checkpoint(net, x, use_reentrant=False).squeeze(-1)
        if how == "checkpoint a part":
            return net[3:](checkpoint(net[:3], x, use_reentrant=False)).squeeze(-1)
        return net(x).squeeze(-1)

    train_beside_reference(
        model,
        lambda net, s, n: (value(net, s), 1 + 0.9 * value(net, n)),
        lambda step: tuple(torch.randn(M, 3, generator=g) for _ in range(2)),
        correction,
        steps=5,
    )


# --------------------------------------------------------------------------------------------- losses on a shared trunk


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.critic, self.actor = nn.Linear(3, 5), nn.Linear(5, 1), nn.Linear(5, 2)

    def forward(self, x):
        h = torch.tanh(self.trunk(x))
        return self.critic(h).squeeze(-1), self.actor(h).log_softmax(-1)[:, 0]


@pytest.mark.parametrize("correction", ["none", "diagonal", "dense", "window", "reservoir", "auto"])
def test_the_order_of_other_losses_does_not_matter(correction):
    """Or the error says which calls to swap."""
    ends = []
    for order in ("after", "before", "freed"):
        torch.manual_seed(0)
        net, g = ActorCritic(), generator(1)
        optimizer = unstale.CorrectedSGD(net, lr=0.1, correction=correction)
        for _ in range(4):
            (value, log_prob), (following, _) = (net(torch.randn(M, 3, generator=g)) for _ in range(2))
            if order != "after":
                (-log_prob.mean()).backward(retain_graph=order == "before")
            if order == "freed":
                with pytest.raises(RuntimeError, match=r"freed the graph.*Call optimizer.backward\(\) first"):
                    optimizer.backward(value, 1 + 0.9 * following)
                break
            optimizer.backward(value, 1 + 0.9 * following)
            if order == "after":
                (-log_prob.mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
        ends.append(parameters_of(net))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(ends[0], ends[2])


@pytest.mark.parametrize("given", ["log_likelihood", "monitor"])
def test_a_freed_graph_is_named_elsewhere_too(given):
    net = ActorCritic()
    value, log_prob = net(torch.randn(M, 3))
    log_prob.sum().backward()
    if given == "monitor":
        monitor = unstale.Monitor(net, torch.optim.Adam(net.parameters()))
        with pytest.raises(RuntimeError, match=r"Call monitor.observe\(\) first"):
            monitor.observe(value, 0.9 * value)
    else:
        with pytest.raises(RuntimeError, match=r"Call optimizer.backward_log_likelihood\(\) first"):
            unstale.CorrectedSGD(net, lr=0.1).backward_log_likelihood(log_prob)


# ---------------------------------------------------------------------------------------------------------- scaling


def taylor_term(optimizer):
    return optimizer.state["group 0"]["memory"]["zeta"][0].clone()


def one_step(model, s, n, change, lr=0.0, correction="dense", samples=M):
    optimizer = unstale.CorrectedSGD(model, lr=lr, beta=0.5, correction=correction)
    optimizer.backward(model(s[:samples]).squeeze(-1), 1 + 0.9 * model(n[:samples]).squeeze(-1))
    change(optimizer)
    optimizer.step()
    optimizer.zero_grad()
    return taylor_term(optimizer)


@pytest.fixture
def problem():
    torch.manual_seed(0)
    return mlp(), torch.randn(M, 3), torch.randn(M, 3)


@pytest.mark.parametrize("weight", [5.0, -5.0])
def test_another_loss_is_not_read_as_clipping(problem, weight):
    """The bias of a value head has one entry, which is parallel to anything."""
    model, s, n = problem
    plain = one_step(model, s, n, lambda _: None)

    def other_loss(optimizer):
        (weight * model(s.flip(0) + 1).sum()).backward()

    torch.testing.assert_close(one_step(model, s, n, other_loss), plain)


@pytest.mark.parametrize("weight", [3.0, -3.0])
def test_another_loss_of_a_single_sample_is_not_read_as_clipping(problem, weight):
    """With one sample every loss of the prediction has a parallel gradient; the library warns. A loss that turns the
    gradient around cannot be scaling, and needs no warning."""
    model, s, n = problem
    plain = one_step(model, s, n, lambda _: None, samples=1)

    def other_loss(optimizer):
        (weight * model(s[:1]).sum()).backward()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(one_step(model, s, n, other_loss, samples=1), plain)
    assert all("clip_grad_norm_" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("samples", [2, M])
def test_clipping_is_inferred_where_it_is_certain(problem, samples):
    model, s, n = problem
    plain = one_step(model, s, n, lambda _: None, samples=samples)
    norms = []

    def clip(optimizer):
        norms.append(clip_grad_norm_(model.parameters(), 0.1))

    scaled = one_step(model, s, n, clip, samples=samples)
    torch.testing.assert_close(scaled, plain * (0.1 / (norms[0] + 1e-6)))


@pytest.mark.parametrize("samples", [1, M])
def test_explicit_clipping_and_scaling(problem, samples):
    model, s, n = problem
    plain = one_step(model, s, n, lambda _: None, samples=samples)
    norms = []

    def clip(optimizer):
        (2 * model(s + 1).sum()).backward()  # another loss does not matter
        norms.append(float(optimizer.clip_grad_norm_(0.1)))
        total = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        torch.testing.assert_close(total, torch.tensor(0.1), rtol=1e-4, atol=0)

    scaled = one_step(model, s, n, clip, samples=samples)
    torch.testing.assert_close(scaled, plain * (0.1 / (norms[0] + 1e-6)))
    half = one_step(model, s, n, lambda optimizer: optimizer.scale_grad_(0.5), samples=samples)
    torch.testing.assert_close(half, plain / 2)


def test_unscaling_before_explicit_clipping_counts(problem):
    """Mixed precision: ``.grad`` is divided by the loss scale by other means, then clipped explicitly."""
    model, s, n = problem
    plain = one_step(model, s, n, lambda _: None)

    def unscale_and_halve(optimizer):
        for p in model.parameters():
            p.grad.div_(8)
        optimizer.scale_grad_(0.5)

    torch.testing.assert_close(one_step(model, s, n, unscale_and_halve), plain / 16)


def test_scaling_between_two_batches_is_for_the_first_alone(problem):
    model, s, n = problem
    first, second = (one_step(model, x, n, lambda _: None) for x in (s, s.flip(1)))

    def scale_and_add(optimizer):
        optimizer.scale_grad_(0.5)
        optimizer.backward(model(s.flip(1)).squeeze(-1), 1 + 0.9 * model(n).squeeze(-1))

    torch.testing.assert_close(one_step(model, s, n, scale_and_add), first / 2 + second)


@pytest.mark.parametrize("clear", ["zero", "zeros", "none"])
def test_batches_whose_gradients_were_cleared_are_forgotten(problem, clear):
    model, s, n = problem
    plain = one_step(model, s, n, lambda _: None)
    optimizer = unstale.CorrectedSGD(model, lr=0.0, beta=0.5, correction="dense")
    optimizer.backward(model(s + 1).squeeze(-1), model(n).squeeze(-1))
    if clear == "zeros":
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
    else:
        model.zero_grad(set_to_none=clear == "none")
    optimizer.backward(model(s).squeeze(-1), 1 + 0.9 * model(n).squeeze(-1))
    optimizer.step()
    torch.testing.assert_close(taylor_term(optimizer), plain)


# -------------------------------------------------------------------------------------------------- odd tensors


def test_a_target_of_better_precision_keeps_it():
    """Under autocast the prediction is bfloat16 and the target float32, as the residual is."""
    torch.manual_seed(0)
    net = nn.Linear(3, 1).float()
    net.bias.data.fill_(100.0)
    x = torch.randn(8, 3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = net(x).squeeze(1)
        target = torch.full((8,), 0.4, dtype=torch.float32) + net(x.flip(0)).squeeze(1).float()
    loss = (0.5 * (value - target.detach()) ** 2).mean()
    loss.backward(retain_graph=True)
    expected = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    got = unstale.CorrectedSGD(net, lr=0.1).backward(value, target)
    torch.testing.assert_close(got, loss.detach())
    for p, want in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, want)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("correction", ["diagonal", "window"])
def test_half_precision_convolutions(correction, groups):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 8, 3, groups=groups), nn.ReLU(), nn.Flatten(), nn.Linear(128, 1)).float()
    options = dict(horizon=3) if correction == "window" else {}
    optimizer = unstale.CorrectedSGD(net, lr=0.01, correction=correction, **options)
    for _ in range(3):
        s = torch.randn(5, 4, 6, 6, dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value, target = net(s).squeeze(1), 0.5 + 0.9 * net(s.flip(0)).squeeze(1)
        optimizer.backward(value, target)
        optimizer.step()
        optimizer.zero_grad()
    assert parameters_of(net).isfinite().all()


def test_a_half_precision_loss_whose_sum_overflows():
    net = nn.Linear(3, 1).half()
    value = net(torch.ones(256, 3).half()).squeeze(1)
    loss = unstale.CorrectedSGD(net, lr=0.1).backward(value, 30 + 0.0 * value)
    assert loss.isfinite()


@pytest.mark.parametrize("correction", ["diagonal", "blocks", "dense", "window"])
@pytest.mark.filterwarnings("ignore::unstale.SlowGradientsWarning")
def test_bootstraps_of_no_row_at_all(correction):
    """All next states are terminal: the network is called on nothing."""
    torch.manual_seed(0)
    nets = {
        "mlp": (mlp(), torch.randn(M, 3)),
        "conv": (nn.Sequential(nn.Conv1d(2, 4, 2), nn.Flatten(), nn.Linear(8, 1)), torch.randn(M, 2, 3)),
        "grouped": (nn.Sequential(nn.Conv1d(2, 4, 2, groups=2), nn.Flatten(), nn.Linear(8, 1)), torch.randn(M, 2, 3)),
        "embedding": (nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 1)), torch.arange(M) % 5),
        "norm": (nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 1)), torch.randn(M, 3)),
        "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(3, 1)), torch.randn(M, 3)),
    }
    for net, s in nets.values():
        optimizer = unstale.CorrectedSGD(net, lr=0.1, correction=correction)
        for mask in (torch.zeros(M, dtype=torch.bool), torch.arange(M) < 2, torch.zeros(M, dtype=torch.bool)):
            following = torch.zeros(M)
            following[mask] = net(s[mask]).squeeze(-1)
            value, target = net(s).squeeze(-1), 1 + 0.9 * following
            loss = 0.5 * (value - target.detach()).square().mean()
            expected = torch.autograd.grad(loss, net.parameters(), retain_graph=True)
            optimizer.backward(value, target)
            for p, want in zip(net.parameters(), expected, strict=True):
                torch.testing.assert_close(p.grad, want)
            optimizer.step()
            optimizer.zero_grad()


def test_flipping_no_dimension():
    torch.manual_seed(0)
    g = generator(1)
    train_beside_reference(
        mlp(),
        lambda net, s, n: (net(s).flip(()).squeeze(-1), 1 + 0.9 * net(n).squeeze(-1)),
        lambda step: (torch.randn(M, 3, generator=g), torch.randn(M, 3, generator=g)),
        steps=4,
    )


@pytest.mark.filterwarnings("ignore")
def test_complex_intermediates():
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.p = nn.Linear(3, 5), nn.Parameter(torch.randn(5))
            self.z = torch.randn(5, dtype=torch.complex128)

        def forward(self, x):
            return (self.first(x) * self.z * self.p).sum(1).abs()

    torch.manual_seed(0)
    g = generator(1)
    train_beside_reference(
        Complex(),
        lambda net, s, n: (net(s), 1 + 0.5 * net(n)),
        lambda step: (torch.randn(M, 3, generator=g), torch.randn(M, 3, generator=g)),
        steps=4,
    )


@pytest.mark.parametrize("whole", [False, True])
def test_reentrant_checkpointing_is_refused(whole):
    net = mlp()
    optimizer = unstale.CorrectedSGD(net, lr=0.1)

    def value(x):
        x.requires_grad_()
        inner = net if whole else net[:3]
        h = checkpoint(inner, x, use_reentrant=True)
        return (h if whole else net[3:](h)).squeeze(-1)

    with pytest.raises((RuntimeError, ValueError), match="use_reentrant=False"):
        optimizer.backward(value(torch.randn(M, 3)), 0.9 * value(torch.randn(M, 3)))


# ------------------------------------------------------------------------------------------------- not finite numbers

OPTIMIZERS = {
    "sgd": lambda p, **o: unstale.CorrectedSGD(p, lr=0.1, **o),
    "adam": lambda p, **o: unstale.CorrectedAdam(p, **o),
    "rmsprop": lambda p, **o: unstale.CorrectedRMSprop(p, **o),
    "tdprop": lambda p, **o: unstale.CorrectedTDprop(p, **o),
}


def infinite_derivative(model, where):
    """A finite loss with an infinite derivative: a square root at zero, of the prediction or of the target."""
    value, following = model(torch.ones(M, 3)).squeeze(-1), model(torch.zeros(M, 3)).squeeze(-1)
    if where == "prediction":
        return value + (following * 0).sqrt(), 0.9 * following
    return value, 0.9 * following + (value * 0).sqrt()


@pytest.mark.parametrize("where", ["prediction", "target", "another loss"])
@pytest.mark.parametrize("correction", ["none", "diagonal", "dense", "window"])
@pytest.mark.parametrize("base", OPTIMIZERS)
def test_gradients_that_are_not_finite_change_nothing(base, correction, where):
    if (base, correction, where) in [(b, "none", "target") for b in ("sgd", "adam", "rmsprop")]:
        pytest.skip("without per-sample gradients the target's derivative does not matter")
    for mode in ("raise", "skip"):
        torch.manual_seed(0)
        model = mlp()
        optimizer = OPTIMIZERS[base](model, correction=correction, on_nonfinite=mode)
        for _ in range(2):
            s, n = torch.randn(M, 3), torch.randn(M, 3)
            optimizer.backward(model(s).squeeze(-1), 1 + 0.9 * model(n).squeeze(-1))
            optimizer.step()
            optimizer.zero_grad()
        before = copy.deepcopy((list(model.parameters()), optimizer.state_dict()["state"]))

        def bad_step(model=model, optimizer=optimizer):
            if where == "another loss":
                optimizer.backward(model(torch.ones(M, 3)).squeeze(-1), 0.9 * model(torch.ones(M, 3)).squeeze(-1))
                (model(torch.ones(1, 3)) * float("inf")).sum().backward()
            else:
                optimizer.backward(*infinite_derivative(model, where))
            optimizer.step()

        if mode == "raise":
            with pytest.raises(FloatingPointError, match=r"not finite.*unchanged.*on_nonfinite='skip'"):
                bad_step()
        else:
            bad_step()
            assert skipped_steps(optimizer) == 1
            optimizer.state["shared"].clear(), before[1].get("shared", {}).clear()
        after = (list(model.parameters()), optimizer.state_dict()["state"])
        for one, two in zip(before[0], after[0], strict=True):
            assert torch.equal(one, two)
        flat_before, flat_after = (torch.utils._pytree.tree_leaves(x[1]) for x in (before, after))
        tensors = [[x for x in leaves if isinstance(x, torch.Tensor)] for leaves in (flat_before, flat_after)]
        assert len(tensors[0]) == len(tensors[1])
        assert all(torch.equal(one, two) for one, two in zip(*tensors, strict=True))


# ------------------------------------------------------------------------------------------------------------ states


def run(model, optimizer, steps, g):
    for _ in range(steps):
        s, n = torch.randn(M, 3, generator=g), torch.randn(M, 3, generator=g)
        optimizer.backward(model(s).squeeze(-1), 1 + 0.9 * model(n).squeeze(-1))
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("later", [0.95, 0.81])
def test_a_checkpoint_after_a_change_of_beta(later):
    """The window keeps the length that it began with, also through a checkpoint."""
    torch.manual_seed(0)
    model = mlp()
    optimizer = unstale.CorrectedSGD(model, lr=0.1, beta=0.9, correction="window")
    g = generator(1)
    run(model, optimizer, 3, g)
    optimizer.param_groups[0]["beta"] = later
    run(model, optimizer, 40, g)
    twin = copy.deepcopy(model)
    resumed = unstale.CorrectedSGD(twin, lr=0.1, beta=0.9, correction="window")
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert resumed.state["group 0"]["plan"]["horizon"] == 66
    states = [g.get_state()] * 2
    for one, each, state in ((model, optimizer, states[0]), (twin, resumed, states[1])):
        own = torch.Generator()
        own.set_state(state)
        run(one, each, 40, own)
    assert torch.equal(parameters_of(model), parameters_of(twin))


def test_an_oracle_goes_on_with_full_steps_after_loading():
    """Gradients of batches that cannot be evaluated again stay in the momentum, uncorrected."""
    torch.manual_seed(0)
    model = mlp()
    g = generator(1)

    def batch(net, s, n):
        return lambda: (net(s).squeeze(-1), 1 + 0.9 * net(n).squeeze(-1))

    optimizer = unstale.CorrectedSGD(model, lr=0.01, beta=0.9, correction="oracle")
    for _ in range(30):
        optimizer.backward(batch(model, torch.randn(M, 3, generator=g), torch.randn(M, 3, generator=g)))
        optimizer.step()
        optimizer.zero_grad()
    twin = copy.deepcopy(model)
    resumed = unstale.CorrectedSGD(twin, lr=0.01, beta=0.9, correction="oracle")
    with pytest.warns(UserWarning, match="not part of a state"):
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    s, n = torch.randn(M, 3, generator=g), torch.randn(M, 3, generator=g)
    before, moves = parameters_of(model), []
    for net, each in ((model, optimizer), (twin, resumed)):
        each.backward(batch(net, s, n))
        each.step()
        moves.append(parameters_of(net) - before)
    # The momentum of the two differs by its staleness alone.
    assert (moves[1] - moves[0]).norm() < 0.2 * moves[0].norm()


def test_loading_a_state_with_refresh_warns():
    torch.manual_seed(0)
    model = mlp()
    optimizer = unstale.CorrectedSGD(model, lr=0.01, correction="window", refresh=(1, 2))
    s = torch.randn(M, 3)
    optimizer.backward(lambda: (model(s).squeeze(-1), 0.9 * model(-s).squeeze(-1)))
    optimizer.step()
    with pytest.warns(UserWarning, match="not part of a state"):
        unstale.CorrectedSGD(copy.deepcopy(model), lr=0.01, correction="window", refresh=(1, 2)).load_state_dict(
            optimizer.state_dict()
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: unstale.CorrectedAdam(mlp()), "saved by CorrectedSGD, not by CorrectedAdam"),
        (lambda: unstale.CorrectedSGD(mlp().float(), lr=0.1), r"dtype torch\.float64, not torch\.float32"),
        (lambda: unstale.CorrectedSGD(mlp(width=6), lr=0.1), "group 0 of this state_dict has shapes"),
        (lambda: unstale.CorrectedSGD([{"params": mlp()}, {"params": mlp()}], lr=0.1), r"has 1 parameter group\(s\)"),
        (lambda: unstale.CorrectedSGD(mlp()[:3], lr=0.1), "group 0 of this state_dict has shapes"),
    ],
)
def test_states_that_belong_elsewhere_are_refused(make, message):
    model = mlp()
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    run(model, optimizer, 2, generator())
    with pytest.raises(ValueError, match=message):
        make().load_state_dict(optimizer.state_dict())


# ------------------------------------------------------------------------------------------------------------- the rest


def test_importing_without_docstrings():
    subprocess.run([sys.executable, "-OO", "-c", "import unstale"], check=True)


def test_the_command_describes_the_installation():
    command = [sys.executable, "-m", "unstale"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"unstale      {unstale.__version__}\n" in printed and torch.__version__ in printed


def test_nothing_grows_with_the_number_of_batch_sizes():
    """No cache keeps anything of a batch size or of a graph."""
    import gc

    model = mlp()
    optimizer = unstale.CorrectedSGD(model, lr=1e-3, correction="diagonal")
    counts = []
    for start in (1, 101, 201):
        for m in range(start, start + 100):
            x = torch.ones(m, 3)
            optimizer.backward(model(x).squeeze(-1), 0.9 * model(-x).squeeze(-1))
            optimizer.step()
            optimizer.zero_grad()
        gc.collect()
        counts.append(len(gc.get_objects()))
    assert all(after - before < 50 for before, after in pairwise(counts[1:]))


def test_warnings_point_at_the_users_line():
    model = mlp()
    optimizer = unstale.CorrectedSGD(model, lr=0.1)

    def users_own_function():
        optimizer.backward(model(torch.ones(2, 3)).squeeze(-1), torch.ones(2))

    with pytest.warns(unstale.ConstantTargetWarning) as caught:
        users_own_function()
    line = users_own_function.__code__.co_firstlineno + 1
    assert (caught[0].filename, caught[0].lineno) == (__file__, line)


# Derivatives that are not finite, although loss and .grad are


def standardized(model, state):
    """A target that mixes samples: its derivative by constant values is infinite."""
    value = model(state).squeeze(-1)
    return value, 1 + 0.9 * (value - value.mean()) / (value.var(unbiased=False).sqrt() + 1e-3)


def infinite_at_zero(delta):
    """A loss whose second derivative is infinite where the residual is 0."""
    return delta.abs().pow(1.5)


def with_infinite_curvature(model, state):
    value = model(state).squeeze(-1)
    return value, value.detach() + torch.arange(len(value))  # a residual of 0 comes first


@pytest.mark.parametrize("correction", ["auto", "dense", "diagonal", "window", "reservoir", "blocks"])
@pytest.mark.parametrize("batch, loss", [(standardized, "half_squared"), (with_infinite_curvature, infinite_at_zero)])
@pytest.mark.parametrize("mode", ["raise", "skip"])
@pytest.mark.filterwarnings("ignore::unstale.ConstantTargetWarning", "ignore::unstale.FewSlotsWarning")
def test_derivatives_that_are_not_finite_change_nothing(batch, loss, correction, mode):
    model = mlp()
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    before = copy.deepcopy(model.state_dict())
    optimizer = unstale.CorrectedAdam(model, lr=0.1, correction=correction, on_nonfinite=mode)
    for _ in range(3):
        state = torch.randn(M, model[0].in_features, generator=generator())
        if mode == "raise":
            with pytest.raises(FloatingPointError, match="a derivative of this batch's loss, predictions or targets"):
                optimizer.backward(*batch(model, state), loss)
        else:
            assert torch.isfinite(optimizer.backward(*batch(model, state), loss))
            assert all(torch.isfinite(p.grad).all() for p in model.parameters())
            optimizer.step()
        optimizer.zero_grad()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert mode == "raise" or skipped_steps(optimizer) == 3


@pytest.mark.filterwarnings("ignore::unstale.ConstantTargetWarning", "ignore::unstale.SlowGradientsWarning")
def test_a_hessian_that_is_not_finite_changes_nothing():
    weight = nn.Parameter(torch.zeros(1))
    optimizer = unstale.CorrectedSGD([weight], lr=0.1, correction="dense", second_order=True)
    with pytest.raises(FloatingPointError, match="a derivative of this batch's loss"):
        optimizer.backward(weight.abs().pow(1.5).expand(3) * torch.arange(1.0, 4), torch.ones(3))
    assert weight.item() == 0 and not any(optimizer.state_dict()["state"].values())


@pytest.mark.parametrize("options", [{}, {"correction": "reservoir", "slots": 64}], ids=str)
@pytest.mark.parametrize("refused", ["unrelated", "not finite", "skipped"])
@pytest.mark.filterwarnings("ignore::unstale.ConstantTargetWarning", "ignore::unstale.FewSlotsWarning")
def test_a_refused_first_batch_decides_no_plan(options, refused):
    """Plans depend on the size of the first batch. Here it is 1 in the refused call and 32 in those that count."""
    mode = "skip" if refused == "skipped" else "raise"
    trained = []
    for is_disturbed in (False, True):
        torch.manual_seed(0)
        model = mlp()
        optimizer = unstale.CorrectedAdam(model, lr=0.01, on_nonfinite=mode, **options)
        single = torch.ones(1, model[0].in_features)
        if is_disturbed:
            value = (mlp() if refused == "unrelated" else model)(single).squeeze(-1)
            if refused == "skipped":
                optimizer.backward(value, value.detach(), infinite_at_zero)
                optimizer.step()
            else:
                with pytest.raises((ValueError, FloatingPointError), match=r"depends on none|is not finite"):
                    optimizer.backward(value, value.detach(), infinite_at_zero)
            optimizer.zero_grad()
        for seed in range(8):
            state = torch.randn(32, model[0].in_features, generator=generator(seed))
            value = model(state).squeeze(-1)
            optimizer.backward(value, 1 + 0.9 * model(state + 0.1).squeeze(-1))
            optimizer.step()
            optimizer.zero_grad()
        trained.append(parameters_of(model))
    assert torch.equal(*trained)
