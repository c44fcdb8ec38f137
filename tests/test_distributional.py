"""Losses of whole rows: categorical values (C51, HL-Gauss) and quantiles (QR-DQN), against autograd and a reference."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from problems import mlp, parameters_of
from reference import Reference, block_mask, gradient_of, per_sample
from test_against_reference import OPTIMIZERS, REFERENCES, options_for
from torch import nn

import unstale
from unstale import distributions, losses
from unstale._batch import BackwardCall
from unstale._flat_params import FlatParams
from unstale.per_sample.gradients import Linearization
from unstale.per_sample.linearize import linearize, trace_batch

pytestmark = pytest.mark.filterwarnings("ignore::unstale.UnusedOptionWarning")

ACTIONS, ATOMS = 2, torch.linspace(-2, 2, 5, dtype=torch.float64)
EDGES = torch.linspace(-2, 2, 6, dtype=torch.float64)
GAMMA = 0.9


def cross_entropy(logits, target):
    """Of one row."""
    return -(target * (logits - logits.exp().sum().log())).sum()


def quantile_huber(quantiles, target, levels=None, kappa=1.0):
    """Of one row, entry by entry."""
    total = torch.zeros(())
    for a, quantile in enumerate(quantiles):
        level = (a + 0.5) / len(quantiles) if levels is None else levels[a]
        for sample in target:
            error = sample - quantile
            weight = abs(level - (1.0 if error < 0 else 0.0))
            huber = error**2 / 2 if error.abs() <= kappa else kappa * (error.abs() - kappa / 2)
            total = total + weight * huber / kappa / len(target)
    return total


class Case:
    """A network of ``[m, actions, k]``, and how its outputs become a target."""

    def __init__(self, kind):
        self.kind = kind
        self.loss = losses.quantile_huber(kappa=0.7) if kind == "qr" else losses.cross_entropy
        self.row_loss = (lambda f, y: quantile_huber(f, y, kappa=0.7)) if kind == "qr" else cross_entropy

    def outputs(self, net, x, action):
        return net(x).view(len(x), ACTIONS, -1)[torch.arange(len(x)), action]

    def target(self, rows, reward, terminated):
        if self.kind == "c51":
            return distributions.c51(reward, rows.softmax(-1), terminated, GAMMA, ATOMS)
        if self.kind == "hl_gauss":
            value = (rows.softmax(-1) * (EDGES[1:] + EDGES[:-1]) / 2).sum(-1)
            return distributions.hl_gauss(unstale.targets.td(reward, value, terminated, GAMMA), EDGES, 0.6)
        reward, terminated = (x.unsqueeze(-1).expand_as(rows) for x in (reward, terminated))
        return unstale.targets.td(reward, rows, terminated, GAMMA)[:, 1:]  # fewer samples than quantiles

    def stream(self, m=3, seed=0):
        g = torch.Generator().manual_seed(seed)
        while True:
            s, s_next, reward = (torch.randn(*size, generator=g) for size in ((m, 3), (m, 3), (m,)))
            terminated = torch.rand(m, generator=g) < 0.3
            action, next_action = (torch.randint(ACTIONS, (m,), generator=g) for _ in range(2))

            def batch(
                net, other, s=s, s_next=s_next, reward=reward, terminated=terminated, a=action, next_a=next_action
            ):
                return self.outputs(net, s, a), self.target(self.outputs(other, s_next, next_a), reward, terminated)

            yield batch


CASES = {kind: Case(kind) for kind in ("c51", "hl_gauss", "qr")}


class RowReference(Reference):
    """With the Taylor term of a row, ``J_fᵀ (H_ff J_f + H_fy J_y)``, from Hessians of the loss of a row by autograd."""

    def __init__(self, row_loss, *args, **options):
        super().__init__(*args, **options)
        self.row_loss = row_loss

    def semi_gradient(self, batch):
        prediction, target = batch()
        rows = zip(prediction, target.detach(), strict=True)
        return gradient_of(sum(self.row_loss(f, y) for f, y in rows) / len(prediction), self.parameters)

    def linearize(self, batch):
        prediction, target = batch()
        gradient = self.semi_gradient(lambda: (prediction, target))
        taylor = 0.0
        for f, y in zip(prediction, target, strict=True):
            (ff, fy), _ = torch.autograd.functional.hessian(self.row_loss, (f.detach(), y.detach()))
            change = ff @ per_sample(f, self.moving) + fy @ per_sample(y, self.moving)  # of the slopes
            taylor = taylor + change.T @ per_sample(f, self.parameters) / len(prediction)
        return gradient, taylor, gradient**2


def mask_for(correction, parameters, copies):
    lengths = [p.numel() for p in parameters]
    square = {"none": torch.zeros(sum(lengths), sum(lengths)), "diagonal": torch.eye(sum(lengths))}.get(correction)
    if correction == "blocks":
        square = block_mask(lengths)
    return None if square is None else torch.cat([square] * copies)


@pytest.mark.parametrize("follows", [False, True], ids=["own target", "target network"])
@pytest.mark.parametrize("correction", ["none", "diagonal", "blocks", "dense", "window", "reservoir", "oracle", "auto"])
@pytest.mark.parametrize("kind", CASES)
def test_follows_the_double_sum(kind, correction, follows):
    case, base = CASES[kind], "adam" if correction == "window" else "sgd"
    torch.manual_seed(0)
    nets = [mlp(outputs=ACTIONS * 5), mlp(outputs=ACTIONS * 5)]
    twins = copy.deepcopy(nets)
    optimizer = OPTIMIZERS[base](nets[0], 0.9, trust=None, horizon=100, **options_for(correction))
    if follows:
        optimizer.follow(nets[1])
    reference = RowReference(
        case.row_loss, twins[0].parameters(), 0.1, 0.9, oracle=correction == "oracle",
        mask=mask_for(correction, list(twins[0].parameters()), 1 + follows),
        followed=twins[1].parameters() if follows else (), **REFERENCES[base],
    )  # fmt: skip
    start, batches = parameters_of(nets[0]), case.stream()
    for _ in range(5):
        batch = next(batches)
        loss = optimizer.backward(lambda batch=batch: batch(nets[0], nets[follows]), loss=case.loss)
        prediction, target = batch(twins[0], twins[follows])
        expected = sum(case.row_loss(f, y) for f, y in zip(prediction, target, strict=True)) / len(prediction)
        torch.testing.assert_close(loss, expected.detach())
        optimizer.step()
        optimizer.zero_grad()
        reference.step(lambda batch=batch: batch(twins[0], twins[follows]))
        for net, average in (nets, twins):
            with torch.no_grad():
                for p, q in zip(net.parameters(), average.parameters(), strict=True):
                    q.lerp_(p, 0.3)
        torch.testing.assert_close(parameters_of(nets[0]), parameters_of(twins[0]), rtol=1e-9, atol=1e-9)
    assert (parameters_of(nets[0]) - start).abs().max() > 1e-3


@pytest.mark.parametrize("kind", CASES)
def test_the_taylor_term_is_the_derivative_of_the_gradient(kind):
    """If outputs are linear in the parameters, ``Z`` is the Jacobian of the semi-gradient, target included."""
    case = CASES[kind]
    torch.manual_seed(0)
    net = nn.Linear(3, ACTIONS * 5, bias=False)
    batch = next(case.stream())
    prediction, target = batch(net, net)
    call = BackwardCall(None, case.loss, 1.0)
    evaluated = call.evaluate(prediction, target)
    found = linearize(
        trace_batch(evaluated.prediction, evaluated.target, evaluated.columns), [FlatParams([net.weight])]
    )
    v, u = Linearization(found.gradients[0], evaluated.slope, evaluated.curvature).matrices()
    loss = sum(case.row_loss(f, y) for f, y in zip(prediction, target.detach(), strict=True)) / len(prediction)
    torch.testing.assert_close(evaluated.slope @ v, torch.autograd.grad(loss, net.weight)[0].flatten())

    def semi_gradient(weight):
        """With the target live: its part is taken out of the chain rule by hand."""
        forward = lambda x: x @ weight.view(-1, 3).T  # noqa: E731
        f, y = batch(forward, forward)
        slope = torch.stack([torch.autograd.functional.jacobian(case.row_loss, (a, b), create_graph=True)[0]
                             for a, b in zip(f, y, strict=True)])  # fmt: skip
        held = torch.autograd.functional.jacobian(
            lambda w: batch(lambda x: x @ w.view(-1, 3).T, forward)[0], net.weight.detach().flatten()
        )
        return torch.einsum("ma,man->n", slope, held) / len(f)

    jacobian = torch.autograd.functional.jacobian(semi_gradient, net.weight.detach().flatten())
    torch.testing.assert_close(torch.einsum("k,kn,kp->np", evaluated.curvature, v, u), jacobian, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("loss", ["cross_entropy", "quantiles", "given levels", "a level per entry", "wide"])
def test_values_and_slopes(loss):
    g = torch.Generator().manual_seed(0)
    f, y = 2 * torch.randn(6, 5, generator=g), 2 * torch.randn(6, 5, generator=g)
    levels = torch.rand(6, 5, generator=g)
    given, literal = {
        "cross_entropy": (losses.cross_entropy, lambda i: cross_entropy(f[i], y[i])),
        "quantiles": (losses.quantile_huber(), lambda i: quantile_huber(f[i], y[i])),
        "given levels": (losses.quantile_huber(levels[0]), lambda i: quantile_huber(f[i], y[i], levels[0])),
        "a level per entry": (losses.quantile_huber(levels), lambda i: quantile_huber(f[i], y[i], levels[i])),
        "wide": (losses.quantile_huber(kappa=3.0), lambda i: quantile_huber(f[i], y[i], kappa=3.0)),
    }[loss]
    f.requires_grad_(), y.requires_grad_()
    expected = torch.stack([literal(i) for i in range(6)])
    torch.testing.assert_close(given.value(f, y), expected)
    (slope,) = torch.autograd.grad(expected.sum(), f, create_graph=True)
    torch.testing.assert_close(given.slope(f, y), slope)
    weight = torch.randn(6, 5, generator=g)
    second = torch.autograd.grad((slope * weight).sum(), (f, y))
    for one, other in zip(torch.autograd.grad((given.slope(f, y) * weight).sum(), (f, y)), second, strict=True):
        torch.testing.assert_close(one, other)
    if loss == "cross_entropy":
        torch.testing.assert_close(expected.mean(), F.cross_entropy(f, y))


@pytest.mark.parametrize("kind", CASES)
def test_grad_is_autograds_with_weights(kind):
    case = CASES[kind]
    torch.manual_seed(0)
    net = mlp(outputs=ACTIONS * 5)
    batch = next(case.stream(m=4))
    for weight in (torch.rand(4), 2.5):
        prediction, target = batch(net, net)
        optimizer = unstale.CorrectedSGD(net, lr=0.1, correction="window")
        returned = optimizer.backward(prediction, target, loss=case.loss, weight=weight, return_weighted=True)
        loss = (case.loss.value(prediction, target.detach()) * weight).mean()
        torch.testing.assert_close(returned, loss.detach())
        expected = torch.autograd.grad(loss, list(net.parameters()))
        for p, gradient in zip(net.parameters(), expected, strict=True):
            torch.testing.assert_close(p.grad, gradient)
        optimizer.zero_grad()


def project(reward, probs, terminated, atoms):
    """Algorithm 1 of C51, one atom of one transition at a time."""
    spacing = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    result = torch.zeros_like(probs)
    for i in range(len(reward)):
        for j, atom in enumerate(atoms):
            moved = min(max(reward[i] + GAMMA * (not terminated[i]) * atom, atoms[0]), atoms[-1])
            place = float((moved - atoms[0]) / spacing)
            low, high = math.floor(place + 1e-12), math.ceil(place - 1e-12)
            if low == high:
                result[i, low] += probs[i, j]
            else:
                result[i, low] += probs[i, j] * (high - place)
                result[i, high] += probs[i, j] * (place - low)
    return result


def test_c51_projects_as_the_paper():
    g = torch.Generator().manual_seed(0)
    reward, terminated = 2 * torch.randn(20, generator=g), torch.rand(20, generator=g) < 0.3
    probs = torch.randn(20, 5, generator=g).softmax(-1)
    found = distributions.c51(reward, probs, terminated, GAMMA, ATOMS)
    torch.testing.assert_close(found, project(reward, probs, terminated, ATOMS))
    torch.testing.assert_close(found.sum(-1), torch.ones(20))
    for gamma in (torch.full((20,), GAMMA), torch.tensor(GAMMA)):
        torch.testing.assert_close(distributions.c51(reward, probs, terminated, gamma, ATOMS), found)
    with pytest.raises(ValueError, match="terminated must have the shape"):
        distributions.c51(reward, probs, terminated[:1], GAMMA, ATOMS)


def test_hl_gauss_is_a_cut_normal_distribution():
    value = torch.tensor([-1.9, 0.0, 0.33, 2.0])
    below = torch.distributions.Normal(value.unsqueeze(-1), 0.6).cdf(EDGES)
    expected = below.diff(dim=-1) / (below[:, -1:] - below[:, :1])
    torch.testing.assert_close(distributions.hl_gauss(value, EDGES, 0.6), expected)
    outside = distributions.hl_gauss(torch.tensor([-50.0, 50.0]), EDGES, 0.1)  # limited to the range
    torch.testing.assert_close(outside, distributions.hl_gauss(torch.tensor([-2.0, 2.0]), EDGES, 0.1))


def test_what_is_refused():
    net = mlp(outputs=5)
    x = torch.ones(3, 3)
    optimizer = unstale.CorrectedSGD(net, lr=0.1)
    for bad, message in [
        (dict(target=torch.ones(3)), r"shapes \[3, 5\] and \[3\]"),
        (dict(target=torch.ones(2, 5)), "as many rows"),
        (dict(target=torch.ones(3, 4)), "of the same shape"),
        (dict(target=torch.ones(3, 5), weight=torch.ones(3, 5)), r"shape \[3\], one per row"),
    ]:
        with pytest.raises(ValueError, match=message):
            optimizer.backward(net(x), loss=losses.cross_entropy, **bad)
    with pytest.raises(TypeError, match="that are tensors"):
        optimizer.backward(net(x), 1.0, loss=losses.cross_entropy)
    with pytest.raises(TypeError, match="must be floating point"):
        optimizer.backward(net(x), torch.ones(3, 5).long(), loss=losses.cross_entropy)
    with pytest.raises(ValueError, match="levels must have shape"):
        optimizer.backward(net(x), net(x), loss=losses.quantile_huber(torch.ones(4)))
    with pytest.raises(ValueError, match="kappa must be positive"):
        losses.quantile_huber(kappa=0.0)
    with pytest.raises(TypeError, match="use CorrectedAdam"):
        unstale.CorrectedTDprop(net).backward(net(x), net(x), loss=losses.quantile_huber())
    with pytest.raises(ValueError, match="evenly spaced"):
        distributions.c51(torch.ones(1), torch.ones(1, 3), torch.zeros(1), 0.9, torch.tensor([0.0, 1.0, 3.0]))
    with pytest.raises(ValueError, match=r"next_probs must have shape \[1, 3\]"):
        distributions.c51(torch.ones(1), torch.ones(1, 2), torch.zeros(1), 0.9, torch.tensor([0.0, 1.0, 2.0]))
    with pytest.raises(ValueError, match="sigma must be positive"):
        distributions.hl_gauss(torch.ones(1), EDGES, 0.0)
    with pytest.raises(ValueError, match="ascending"):
        distributions.hl_gauss(torch.ones(1), EDGES.flip(0), 1.0)


@pytest.mark.parametrize("kind", CASES)
def test_warnings_look_at_the_given_target(kind):
    """The slopes always depend on the parameters; whether the target does is another question."""
    case = CASES[kind]
    torch.manual_seed(0)
    net, other = mlp(outputs=ACTIONS * 5), mlp(outputs=ACTIONS * 5)
    batch = next(case.stream())
    for warning, target in [
        (unstale.ConstantTargetWarning, batch(net, net)[1].detach()),
        (unstale.UnfollowedTargetWarning, batch(net, other)[1]),
    ]:
        optimizer = unstale.CorrectedSGD(net, lr=0.1)
        with pytest.warns(unstale.ConstantTargetWarning) as caught:
            optimizer.backward(batch(net, net)[0], target, loss=case.loss)
        assert [each.category for each in caught] == [warning]
    with pytest.raises(ValueError, match="look swapped"):
        unstale.CorrectedSGD(net, lr=0.1).backward(batch(other, other)[0], batch(net, net)[1], loss=case.loss)


@pytest.mark.parametrize("way", ["index", "index behind", "gather", "take_along_dim"])
def test_rows_of_an_action_are_told_apart(way):
    """However the row of an action is picked, each column has factored gradients (slow ones would warn here)."""
    torch.manual_seed(0)
    net, x, action = mlp(outputs=ACTIONS * 5), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])

    def rows(x):
        table = net(x).view(4, ACTIONS, 5)
        place = action[:, None, None].expand(-1, 1, 5)
        return {
            "index": lambda: table[torch.arange(4), action],
            "index behind": lambda: net(x)[:, torch.tensor([7, 2, 5, 1])],
            "gather": lambda: table.gather(1, place).squeeze(1),
            "take_along_dim": lambda: table.take_along_dim(place, 1).squeeze(1),
        }[way]()

    prediction, target = rows(x), rows(-x).softmax(-1)
    evaluated = BackwardCall(None, losses.cross_entropy, 1.0).evaluate(prediction, target)
    parameters = list(net.parameters())
    traced = trace_batch(evaluated.prediction, evaluated.target, evaluated.columns)
    found = linearize(traced, [FlatParams(parameters)])
    assert not found.irregular
    v, u = Linearization(found.gradients[0], evaluated.slope, evaluated.curvature).matrices()
    slope = losses.cross_entropy.slope(prediction, target)
    torch.testing.assert_close(v, per_sample(prediction.flatten(), parameters))
    torch.testing.assert_close(u, per_sample(slope.flatten(), parameters))


def test_a_monitor_reads_the_drift_of_the_given_target():
    case = CASES["c51"]
    torch.manual_seed(0)
    net = mlp(outputs=ACTIONS * 5)
    optimizer = unstale.CorrectedSGD(net, lr=0.5, correction="window")
    monitor = unstale.diagnostics.DriftMonitor(optimizer)
    batch = next(case.stream())
    before = batch(net, net)[1].detach()
    optimizer.backward(lambda: batch(net, net), loss=case.loss)
    optimizer.step()
    reading = monitor.read()
    torch.testing.assert_close(torch.tensor(reading.drift), (batch(net, net)[1] - before).square().mean().detach())
    assert reading.agreement > reading.stale_agreement


@pytest.mark.parametrize("name", CASES)
def test_a_monitor_beside_adam_takes_losses_of_whole_rows(name):
    case = CASES[name]
    torch.manual_seed(0)
    net = mlp(outputs=ACTIONS * 5)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    monitor = unstale.Monitor(net, optimizer)
    for _, batch in zip(range(5), case.stream(), strict=False):
        prediction, target = monitor.observe(lambda batch=batch: batch(net, net), loss=case.loss)
        case.loss.value(prediction, target.detach()).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    reading = monitor.read()
    assert 0 < reading["staleness"] < 1 and reading["gradient_match"] == pytest.approx(1)
    assert reading["drift"] > 0 and math.isnan(reading["relative_drift"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_targets_are_distributions(dtype):
    """Atoms are not rounded to the precision of the probabilities."""
    atoms = torch.linspace(-300, 300, 601)
    probabilities = torch.rand(8, 601, generator=torch.Generator().manual_seed(0)).softmax(-1)
    reward, flags = torch.linspace(-1, 1, 8), torch.zeros(8, dtype=torch.bool)
    found = unstale.distributions.c51(reward.to(dtype), probabilities.to(dtype), flags, 0.99, atoms)
    exact = unstale.distributions.c51(reward.to(dtype).double(), probabilities.to(dtype).double(), flags, 0.99, atoms)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
