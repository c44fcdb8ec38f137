"""Predictions of shape ``[m, k]``, ``[T, B]`` and ``[T, B, k]``: every entry is a sample; the loss is their mean."""

from __future__ import annotations

import copy
import warnings
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import mlp, parameters_of, twins
from reference import Reference, block_mask, diagonal_mask
from torch import nn

import unstale
from unstale._flat_params import FlatParams
from unstale.per_sample.linearize import linearize, trace_batch

# Flattened by the user, several heads need vector-Jacobian products, and so does a parameter outside of layers.
pytestmark = pytest.mark.filterwarnings("ignore::unstale.SlowGradientsWarning", "ignore::unstale.FewSlotsWarning")

CORRECTIONS = ["none", "diagonal", "blocks", "dense", "window", "reservoir", "oracle", "auto"]
every_correction = pytest.mark.parametrize("correction", CORRECTIONS)


class Ensemble(nn.Module):
    """Networks of their own, stacked: ``[..., k]``."""

    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.members = nn.ModuleList(mlp(4) for _ in range(count))

    def forward(self, x):
        return torch.stack([member(x).squeeze(-1) for member in self.members], -1)


class Columns(nn.Module):
    """One value per row in several columns, each with a scale that is a parameter outside of any layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = mlp(4), nn.Parameter(torch.tensor([1.0, -0.5, 2.0]))

    def forward(self, x):
        return self.body(x) * self.scale


def draw(*shape, generator):
    return torch.randn(*shape, generator=generator)


def heads(model, g, shape=(4,)):
    """Several heads on one trunk, each with its own target."""
    x, y = draw(*shape, 3, generator=g), draw(*shape, 3, generator=g)
    reward = draw(*shape, 3, generator=g)
    return lambda: (model(x), reward + 0.9 * model(y))


def twin_critics(model, g, shape=(4,)):
    """One target for all columns, from the smaller of the next values."""
    x, y, reward = draw(*shape, 3, generator=g), draw(*shape, 3, generator=g), draw(*shape, generator=g)

    def evaluate():
        target = unstale.targets.td(reward, model(y).min(-1).values, torch.zeros_like(reward), 0.9)
        prediction = model(x)
        return prediction, target.unsqueeze(-1).expand_as(prediction)

    return evaluate


def rollout(model, g, lam=None, transposed=False):
    """``[T, B]`` values with n-step targets or λ-returns along time."""
    x, y, reward = (draw(4, 2, n, generator=g) for n in (3, 3, 1))
    ended, cut = (torch.rand(4, 2, generator=g) < 0.2 for _ in range(2))

    def evaluate():
        value, following = model(x).squeeze(-1), model(y).squeeze(-1)
        if lam is None:
            target = unstale.targets.n_step(reward.squeeze(-1), following, ended, cut, 0.9, n=2)
        else:
            target = unstale.targets.td_lambda(reward.squeeze(-1), following, ended, cut, 0.9, lam)
        return (value.T, target.T) if transposed else (value, target)

    return evaluate


CASES = {
    "heads [m, k]": (lambda: mlp(4, outputs=3), heads),
    "heads [T, B, k]": (lambda: mlp(4, outputs=3), lambda model, g: heads(model, g, (3, 2))),
    "heads [1, k]": (lambda: mlp(4, outputs=3), lambda model, g: heads(model, g, (1,))),
    "twins [m, k]": (Ensemble, twin_critics),
    "twins [T, B, k]": (Ensemble, lambda model, g: twin_critics(model, g, (3, 2))),
    "columns of one value": (Columns, heads),
    "n-step [T, B]": (lambda: mlp(4), rollout),
    "n-step [B, T], not contiguous": (lambda: mlp(4), lambda model, g: rollout(model, g, transposed=True)),
    "λ-returns [T, B]": (lambda: mlp(4), lambda model, g: rollout(model, g, lam=0.8)),
    "[m, 1]": (lambda: mlp(4), lambda model, g: twin_critics(model, g, (4,))),
}
every_case = pytest.mark.parametrize("case", CASES)


def flattened(batch):
    return lambda: tuple(x.reshape(-1) for x in batch())


def options_for(correction):
    options = dict(correction=correction, trust=None)
    if correction == "reservoir":
        options["slots"] = 4000  # nothing is left out
    return options | (dict(horizon=50) if correction in ("window", "oracle") else {})


def mask_for(correction, parameters):
    n = sum(p.numel() for p in parameters)
    masks = {
        "none": lambda: torch.zeros(n, n),
        "diagonal": lambda: diagonal_mask(parameters),
        "blocks": lambda: block_mask([p.numel() for p in parameters]),
    }
    return masks.get(correction, lambda: None)()


def step(optimizer, batch, as_function=True, **arguments):
    loss = optimizer.backward(batch, **arguments) if as_function else optimizer.backward(*batch(), **arguments)
    optimizer.step()
    optimizer.zero_grad()
    return loss


# -------------------------------------------------------------------------------------------------------- references


@every_correction
@every_case
def test_follows_the_double_sum(case, correction, path):
    make, batches = CASES[case]
    model, twin = twins(make)
    parameters = list(twin.parameters())
    optimizer = unstale.CorrectedSGD(model, lr=0.1, beta=0.8, **options_for(correction))
    mask = mask_for(correction, parameters)
    reference = Reference(parameters, 0.1, 0.8, mask=mask, oracle=correction == "oracle")
    one, two = (torch.Generator().manual_seed(0) for _ in range(2))
    start = parameters_of(model)
    for number in range(5):
        step(optimizer, batches(model, one), as_function=correction == "oracle" or number % 2)
        reference.step(flattened(batches(twin, two)))
        torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-10, atol=1e-10)
    assert (parameters_of(model) - start).abs().max() > 1e-3


@pytest.mark.parametrize("case", ["heads [T, B, k]", "twins [m, k]", "columns of one value", "λ-returns [T, B]"])
@pytest.mark.parametrize("base", ["adam", "rmsprop", "tdprop"])
def test_follows_the_double_sum_with_other_denominators(case, base):
    make, batches = CASES[case]
    model, twin = twins(make)
    kind = {"adam": unstale.CorrectedAdam, "rmsprop": unstale.CorrectedRMSprop, "tdprop": unstale.CorrectedTDprop}[base]
    betas = dict(beta=0.8) if base == "rmsprop" else dict(betas=(0.8, 0.99))
    optimizer = kind(model, lr=0.05, eps=1e-2, correction="dense", trust=1.0, **betas)
    reference = Reference(twin.parameters(), 0.05, 0.8, trust=1.0, base=base, beta2=0.99, eps=1e-2)
    one, two = (torch.Generator().manual_seed(0) for _ in range(2))
    for _ in range(5):
        step(optimizer, batches(model, one))
        reference.step(flattened(batches(twin, two)))
    torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-9, atol=1e-9)


@every_case
@pytest.mark.parametrize(
    "options",
    [dict(correction="window", refresh=(1, 2)), dict(correction="dense", second_order=True),
     dict(correction="reservoir", slots=30, seed=2), dict(correction="blocks", block_size=7), dict()],
    ids=["refresh", "second order", "few slots", "blocks of 7", "default"],
)  # fmt: skip
def test_it_is_the_flattened_batch(case, options):
    """To rounding, also where samples are chosen at random: the same entries of the same batches."""
    make, batches = CASES[case]
    model, twin = twins(make)
    optimizer, other = (unstale.CorrectedSGD(m, lr=0.1, **options) for m in (model, twin))
    one, two = (torch.Generator().manual_seed(0) for _ in range(2))
    for _ in range(6):
        loss = step(optimizer, batches(model, one))
        torch.testing.assert_close(loss, step(other, flattened(batches(twin, two))), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-11, atol=1e-11)


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    layout=st.sampled_from(["heads", "twins", "reversed", "shared target"]),
    constant=st.booleans(),
)
def test_per_sample_gradients_of_any_shape(shape, layout, constant):
    """``v`` and ``u`` are the rows of the Jacobians, in the order of the flattened prediction."""
    torch.manual_seed(sum(shape))
    *rows, k = shape
    model = Ensemble(k) if layout == "twins" else mlp(4, outputs=k)
    parameters = list(model.parameters())
    prediction, target = (model(torch.randn(*rows, 3)) for _ in range(2))
    if layout == "reversed":
        axes = list(range(prediction.ndim))[::-1]
        prediction, target = prediction.permute(axes), target.permute(axes)
    if layout == "shared target":
        target = target.amax(-1, keepdim=True).expand_as(prediction)
    columns = prediction.shape[-1]
    flat, flat_target = prediction.reshape(-1), None if constant else 0.9 * target.reshape(-1)
    found = linearize(trace_batch(flat, flat_target, columns), [FlatParams(parameters)])
    v, u = (torch.cat(parts, -1) for parts in zip(*(piece.matrices() for piece in found.gradients[0]), strict=True))

    def rows_of(values):
        found = [torch.autograd.grad(x, parameters, retain_graph=True, allow_unused=True) for x in values]
        zeros = [torch.zeros_like(p) for p in parameters]
        return torch.stack(
            [torch.cat([(z if g is None else g).flatten() for g, z in zip(r, zeros, strict=True)]) for r in found]
        )

    torch.testing.assert_close(v, rows_of(flat), rtol=1e-11, atol=1e-11)
    expected = rows_of(flat) if flat_target is None else rows_of(flat) - rows_of(flat_target)
    torch.testing.assert_close(u, expected, rtol=1e-11, atol=1e-11)
    assert layout == "reversed" or not found.irregular  # reversed: the last axis is not that of the heads


@pytest.mark.parametrize("weighted", ["a number", "of every entry", "of the leading axes"])
@every_correction
@every_case
def test_grad_is_autograds_and_the_loss_has_no_weights(case, correction, weighted):
    make, batches = CASES[case]
    model, twin = twins(make)
    one, two = (torch.Generator().manual_seed(0) for _ in range(2))
    batch, same = batches(model, one), batches(twin, two)
    prediction, target = same()
    shape = {"a number": (), "of every entry": prediction.shape, "of the leading axes": prediction.shape[:-1]}[weighted]
    weight = torch.rand(shape, generator=one)
    optimizer = unstale.CorrectedSGD(model, lr=0.1, **options_for(correction))
    loss = optimizer.backward(batch, weight=weight)
    values = (prediction - target.detach()).square() / 2
    wide = weight.unsqueeze(-1) if weighted == "of the leading axes" else weight
    (wide * values).mean().backward()
    torch.testing.assert_close(loss, values.mean().detach(), rtol=1e-12, atol=1e-12)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "weight", [0.3, torch.tensor(0.3), torch.arange(6.0).reshape(3, 2), torch.arange(18.0).reshape(3, 2, 3)]
)
def test_the_loss_has_weights_on_request(weight):
    make, batches = CASES["heads [T, B, k]"]
    model, _ = twins(make)
    prediction, target = batches(model, torch.Generator().manual_seed(0))()
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    loss = optimizer.backward(prediction, target, weight=weight, return_weighted=True)
    wide = weight.unsqueeze(-1) if isinstance(weight, torch.Tensor) and weight.ndim == 2 else weight
    expected = (wide * (prediction - target).square() / 2).mean().detach()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)


class Weighted(Reference):
    def evaluate(self, batch):
        prediction, target, slope, curvature = super().evaluate(batch)
        return prediction, target, slope * self.weight, curvature * self.weight


@pytest.mark.parametrize("correction", ["diagonal", "dense", "window", "oracle"])
def test_weights_of_leading_axes_weigh_the_taylor_term(correction):
    make, batches = CASES["heads [T, B, k]"]
    model, twin = twins(make)
    parameters = list(twin.parameters())
    optimizer = unstale.CorrectedSGD(model, lr=0.1, beta=0.8, **options_for(correction))
    reference = Weighted(
        parameters, 0.1, 0.8, mask=mask_for(correction, parameters), oracle=correction == "oracle"
    )  # fmt: skip
    weight = torch.rand(3, 2)
    reference.weight = weight.unsqueeze(-1).expand(3, 2, 3).flatten()
    one, two = (torch.Generator().manual_seed(0) for _ in range(2))
    for _ in range(5):
        step(optimizer, batches(model, one), weight=weight)
        reference.step(flattened(batches(twin, two)))
    torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("square", [(3, 3), (3, 3, 3)], ids=str)
def test_a_weight_that_fits_two_axes_is_refused(square):
    """Of a step or of an environment? Spelled out it is either; with one entry it is both."""
    model, twin = twins(lambda: mlp(4))
    x, weight = torch.randn(*square, 3), torch.rand(square[:-1])
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    with pytest.raises(ValueError, match=r"ambiguous for a prediction .*unsqueeze\(-1\).expand\(shape\)"):
        optimizer.backward(model(x).squeeze(-1), 0.9 * model(-x).squeeze(-1), weight=weight)
    assert all(p.grad is None for p in model.parameters())
    for wide in (weight.unsqueeze(-1).expand(square), weight.expand(square)):
        optimizer.zero_grad(), twin.zero_grad()
        optimizer.backward(model(x).squeeze(-1), 0.9 * model(-x).squeeze(-1), weight=wide)
        residual = twin(x).squeeze(-1) - 0.9 * twin(-x).squeeze(-1).detach()
        (wide * residual.square() / 2).mean().backward()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
    optimizer.zero_grad()
    optimizer.backward(model(x[:1, 0]), 0.9 * model(-x[:1, 0]), weight=torch.ones(1)) if len(square) == 2 else None


@pytest.mark.parametrize(
    ("shape", "bad", "message"),
    [
        ((4, 3), (3,), r"shape \[4, 3\] or \[4\], but has shape \[3\]"),
        ((4, 3), (4, 1), r"shape \[4, 3\] or \[4\], but has shape \[4, 1\].*squeeze"),
        ((4, 3), (1, 3), r"shape \[4, 3\] or \[4\], but has shape \[1, 3\]"),
        ((3, 2, 3), (3,), r"shape \[3, 2, 3\] or \[3, 2\], but has shape \[3\]"),
        ((4, 3), (4, 3, 1), r"shape \[4, 3\] or \[4\], but has shape \[4, 3, 1\].*squeeze"),
    ],
)
def test_weights_are_not_broadcast(shape, bad, message):
    model, _ = twins(lambda: mlp(4, outputs=3))
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    batch = heads(model, torch.Generator().manual_seed(0), shape[:-1])
    with pytest.raises(ValueError, match=f"weight must be a number or have {message}"):
        optimizer.backward(batch, weight=torch.ones(bad))
    assert all(p.grad is None for p in model.parameters())


# ------------------------------------------------------------------------------------------------------------- costs


@pytest.mark.parametrize(
    "case", ["heads [m, k]", "heads [T, B, k]", "twins [m, k]", "twins [T, B, k]", "n-step [T, B]", "λ-returns [T, B]"]
)
def test_no_entry_has_a_backward_pass_of_its_own(case):
    """Per-sample gradients are factored, in a few passes per column."""
    make, batches = CASES[case]
    model, _ = twins(make)
    optimizer = unstale.CorrectedSGD(model, lr=0.1, correction="window")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(optimizer, batches(model, torch.Generator().manual_seed(0)))


def test_a_target_shared_by_columns_is_one_position_per_sample():
    """Not one for every row of the batch."""
    torch.manual_seed(0)
    model = Ensemble(2)
    for member in model.members:
        member[2] = nn.Linear(5 - 1, 200)
        member[4] = nn.Linear(200, 1)
    model(torch.randn(2, 3))
    prediction, target = twin_critics(model, torch.Generator().manual_seed(0), (50,))()
    found = linearize(
        trace_batch(prediction.reshape(-1), target.reshape(-1), 2), [FlatParams(list(model.parameters()))]
    )
    large = [piece for piece in found.gradients[0] if piece.span.stop - piece.span.start == 800]
    assert len(large) == 2 and all(piece.kind == "outer" and sum(piece.positions) == 2 for piece in large)


# ----------------------------------------------------------------------------------------------------- other methods


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("correction", ["none", "diagonal", "dense", "window", "oracle"])
def test_log_likelihoods_of_sequences(correction, wide):
    """``[T, B]`` log-likelihoods, with weights ``[T, B]`` or ``[T]``, equal the flattened ones."""
    model, twin = twins(lambda: mlp(4, outputs=5))
    optimizer, other = (unstale.CorrectedSGD(m, lr=0.3, **options_for(correction)) for m in (model, twin))
    g = torch.Generator().manual_seed(0)
    for _ in range(5):
        x, label = torch.randn(4, 2, 3, generator=g), torch.randint(5, (4, 2, 1), generator=g)
        weight = torch.rand((4, 2) if wide else (4,), generator=g)

        def log_prob(net, x=x, label=label):
            return net(x).log_softmax(-1).gather(-1, label).squeeze(-1)

        loss = optimizer.backward_log_likelihood(partial(log_prob, model), weight=weight)
        expected = nn.functional.cross_entropy(model(x).flatten(0, 1), label.flatten()).detach()
        torch.testing.assert_close(loss, expected)
        flat_weight = (weight if wide else weight.unsqueeze(-1).expand(4, 2)).flatten()
        other.backward_log_likelihood(lambda f=log_prob: f(twin).flatten(), weight=flat_weight)
        for each in (optimizer, other):
            each.step()
            each.zero_grad()
    torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-11, atol=1e-11)


def test_the_monitor_measures_batches_of_any_shape():
    readings = []
    for flat in (False, True):
        model, _ = twins(lambda: mlp(4, outputs=3))
        optimizer = unstale.CorrectedSGD(model, lr=0.1, correction="dense")
        monitor = unstale.diagnostics.DriftMonitor(optimizer)
        g = torch.Generator().manual_seed(0)
        for _ in range(4):
            batch = heads(model, g, (3, 2))
            step(optimizer, flattened(batch) if flat else batch)
        readings.append(torch.tensor(monitor.read()))
    torch.testing.assert_close(*readings, rtol=1e-10, atol=1e-10)
    assert readings[0][0] > 0


def test_batches_of_different_shapes_in_one_step():
    model, twin = twins(lambda: mlp(4, outputs=3))
    optimizer, other = (unstale.CorrectedSGD(m, lr=0.1, correction="window", horizon=4) for m in (model, twin))
    one, two = (torch.Generator().manual_seed(0) for _ in range(2))
    for _ in range(4):
        for shape in ((4,), (2, 3)):
            optimizer.backward(heads(model, one, shape))
            other.backward(flattened(heads(twin, two, shape)))
        for each in (optimizer, other):
            each.step()
            each.zero_grad()
    torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-11, atol=1e-11)


def test_groups_that_share_no_columns():
    """One group per critic: each corrects its own column."""
    model, twin = twins(Ensemble)
    optimizer = unstale.CorrectedSGD([{"params": member} for member in model.members], lr=0.1, correction="dense")
    whole = unstale.CorrectedSGD(twin, lr=0.1, correction="none")
    one, two = (torch.Generator().manual_seed(0) for _ in range(2))
    batch, same = twin_critics(model, one), twin_critics(twin, two)
    optimizer.backward(batch)
    whole.backward(same)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-12, atol=1e-12)
    step(optimizer, batch)
    assert len(copy.deepcopy(optimizer).param_groups) == 2
