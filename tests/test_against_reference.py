"""Every correction under every base optimizer follows the literal double sum, step for step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import ConvNet, Stream, image, linear, mlp, parameters_of, twins, vector
from reference import Reference, block_mask, diagonal_mask

import unstale

# Some options are given to all corrections, although not all of them use them.
pytestmark = pytest.mark.filterwarnings("ignore::unstale.UnusedOptionWarning")

OPTIMIZERS = {
    "sgd": lambda p, beta, **o: unstale.CorrectedSGD(p, lr=0.1, beta=beta, **o),
    "adam": lambda p, beta, **o: unstale.CorrectedAdam(p, lr=0.1, betas=(beta, 0.99), eps=1e-3, **o),
    "rmsprop": lambda p, beta, **o: unstale.CorrectedRMSprop(p, lr=0.1, beta=beta, alpha=0.9, eps=1e-2, **o),
    "tdprop": lambda p, beta, **o: unstale.CorrectedTDprop(p, lr=0.1, betas=(beta, 0.99), eps=1e-2, **o),
}
REFERENCES = {
    "sgd": dict(base="sgd"),
    "adam": dict(base="adam", beta2=0.99, eps=1e-3),
    "rmsprop": dict(base="rmsprop", alpha=0.9, eps=1e-2),
    "tdprop": dict(base="tdprop", beta2=0.99, eps=1e-2),
}
CORRECTIONS = ["none", "diagonal", "blocks", "blocks of 7", "dense", "window", "reservoir", "oracle", "auto"]


def options_for(correction):
    if correction == "blocks of 7":
        return dict(correction="blocks", block_size=7)
    # With room for all, nothing is left out.
    return dict(correction=correction, slots=4000) if correction == "reservoir" else dict(correction=correction)


def mask_for(correction, parameters):
    parameters = list(parameters)
    lengths = [p.numel() for p in parameters]
    n = sum(lengths)
    return {
        "none": lambda: torch.zeros(n, n),
        "diagonal": lambda: diagonal_mask(parameters),
        "blocks": lambda: block_mask(lengths),
        "blocks of 7": lambda: block_mask([7] * (n // 7) + ([n % 7] if n % 7 else [])),
    }.get(correction, lambda: torch.ones(n, n))()


def compare(model, twin, optimizer, reference, stream, steps, lrs=None, tolerance=1e-10):
    other = Stream(stream.m, stream.gamma, 0, stream.draw, stream.done)
    other.generator.set_state(stream.generator.get_state())
    start = parameters_of(model)
    for step in range(steps):
        if lrs is not None:
            optimizer.param_groups[0]["lr"] = lrs[step]
        optimizer.backward(stream.batch(model))
        optimizer.step()
        optimizer.zero_grad()
        reference.step(other.batch(twin), None if lrs is None else lrs[step])
        torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=tolerance, atol=tolerance)
    assert (parameters_of(model) - start).abs().max() > 1000 * tolerance  # it went somewhere


@pytest.mark.parametrize("trust", [None, 0.3], ids=["free", "bounded"])
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("base", OPTIMIZERS)
def test_follows_the_double_sum(base, correction, trust, path):
    model, twin = twins(mlp)
    beta, oracle = 0.8, correction == "oracle"
    optimizer = OPTIMIZERS[base](model, beta, trust=trust, horizon=100, **options_for(correction))
    reference = Reference(
        twin.parameters(), 0.1, beta, mask=mask_for(correction, twin.parameters()), trust=trust, oracle=oracle,
        **REFERENCES[base],
    )  # fmt: skip
    compare(model, twin, optimizer, reference, Stream(), steps=8)


@given(
    base=st.sampled_from(sorted(OPTIMIZERS)),
    correction=st.sampled_from(CORRECTIONS),
    beta=st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    m=st.integers(1, 6),
    width=st.integers(1, 6),
    done=st.sampled_from([0.0, 0.3, 1.0]),
    gamma=st.sampled_from([0.0, 0.5, 0.99]),
    seed=st.integers(0, 1000),
    weight_decay=st.sampled_from([0.0, 0.1]),
)
def test_follows_the_double_sum_for_any_shape(base, correction, beta, m, width, done, gamma, seed, weight_decay):
    model, twin = twins(lambda: mlp(width), seed)
    horizon = 3 if correction in ("window", "oracle") else None
    optimizer = OPTIMIZERS[base](
        model, beta, trust=None, horizon=horizon, weight_decay=weight_decay, **options_for(correction)
    )
    reference = Reference(
        twin.parameters(), 0.1, beta, mask=mask_for(correction, twin.parameters()), oracle=correction == "oracle",
        horizon=horizon, weight_decay=weight_decay, **REFERENCES[base],
    )  # fmt: skip
    compare(model, twin, optimizer, reference, Stream(m, gamma, seed, done=done), steps=5, tolerance=1e-9)


@pytest.mark.parametrize("correction", ["dense", "window", "reservoir", "auto"])
@pytest.mark.parametrize("base", OPTIMIZERS)
@pytest.mark.parametrize("schedule", ["constant", "changing"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
def test_linear_value_function_gives_the_oracle(correction, base, schedule, weight_decay):
    """On a linear value function nothing is approximated: μ̂ = μ*, and so are the paths."""
    model, twin = twins(linear)
    optimizer = OPTIMIZERS[base](
        model, 0.9, **options_for(correction), trust=None, horizon=50, weight_decay=weight_decay
    )
    reference = Reference(twin.parameters(), 0.1, 0.9, oracle=True, weight_decay=weight_decay, **REFERENCES[base])
    lrs = [0.1] * 25 if schedule == "constant" else [0.3 / (1 + t % 7) for t in range(25)]
    compare(model, twin, optimizer, reference, Stream(), steps=25, lrs=lrs, tolerance=1e-12)


def test_literal_recursion_is_the_papers_and_differs_under_adam():
    paths = {}
    for recursion in ("displacement", "literal"):
        model, twin = twins(mlp)
        optimizer = OPTIMIZERS["adam"](model, 0.9, correction="dense", trust=None, recursion=recursion)
        reference = Reference(twin.parameters(), 0.1, 0.9, literal=recursion == "literal", **REFERENCES["adam"])
        compare(model, twin, optimizer, reference, Stream(), steps=8)
        paths[recursion] = parameters_of(model)
    assert (paths["displacement"] - paths["literal"]).abs().max() > 1e-3


@pytest.mark.parametrize("correction", ["diagonal", "blocks", "dense", "window"])
def test_literal_recursion_equals_displacement_under_plain_sgd(correction):
    paths = []
    for recursion in ("displacement", "literal"):
        model, _ = twins(mlp)
        optimizer = unstale.CorrectedSGD(model, lr=0.2, correction=correction, recursion=recursion, horizon=50)
        stream = Stream()
        for _ in range(10):
            optimizer.backward(*stream.batch(model)())
            optimizer.step()
            optimizer.zero_grad()
        paths.append(parameters_of(model))
    torch.testing.assert_close(*paths, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("trust", [None, 1.0])
@pytest.mark.parametrize("problem", ["mlp", "conv"])
def test_dense_and_window_agree_over_200_steps(problem, trust):
    make, draw = (lambda: mlp(8), vector) if problem == "mlp" else (ConvNet, image)
    model, twin = twins(make)
    first = unstale.CorrectedAdam(model, lr=3e-3, betas=(0.9, 0.999), correction="dense", trust=trust)
    second = unstale.CorrectedAdam(twin, lr=3e-3, betas=(0.9, 0.999), correction="window", trust=trust, horizon=200)
    one, two = Stream(draw=draw), Stream(draw=draw)
    for _ in range(200):
        for optimizer, net, stream in ((first, model, one), (second, twin, two)):
            optimizer.backward(*stream.batch(net)())
            optimizer.step()
            optimizer.zero_grad()
    assert (
        first.state["group 0"]["plan"]["correction"] == "dense"
        and second.state["group 0"]["plan"]["correction"] == "window"
    )
    torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-10, atol=1e-10)


def huber(residual, delta=1.0):
    size = residual.abs()
    return torch.where(size <= delta, residual**2 / 2, delta * (size - delta / 2))


def log_cosh(residual):
    return residual.cosh().log()


LOSSES = {
    "squared": ("squared", lambda r: r**2),
    "mse": ("mse", lambda r: r**2),
    "huber": ("huber", huber),
    "smooth_l1": ("smooth_l1", huber),
    "a narrower smooth_l1": (lambda r: unstale.losses.smooth_l1(r, beta=0.5), lambda r: huber(r, 0.5) / 0.5),
    "a wider huber": (lambda r: unstale.losses.huber(r, delta=2.0), lambda r: huber(r, 2.0)),
    "a user's own": (log_cosh, log_cosh),
    "linear": (lambda r: 3 * r, lambda r: 3 * r),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("correction", ["diagonal", "dense", "window", "oracle"])
def test_follows_the_double_sum_of_other_losses(correction, name):
    """A loss bends both the gradient and the Taylor term, by its first and its second derivative."""
    given, literal = LOSSES[name]
    model, twin = twins(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.1, correction=correction, trust=None, horizon=50)
    mask = mask_for(correction, twin.parameters())
    reference = Reference(twin.parameters(), 0.1, 0.9, mask=mask, oracle=correction == "oracle", loss=literal)
    one, two = Stream(), Stream()
    for _ in range(8):
        optimizer.backward(one.batch(model), loss=given)
        optimizer.step()
        optimizer.zero_grad()
        reference.step(two.batch(twin))
    torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-10, atol=1e-10)


class Classification(Reference):
    """``f`` is the log-likelihood of the right class: ``g = -mean ∇f`` and ``Z = mean ∇f ∇fᵀ``, as in the paper."""

    def evaluate(self, batch):
        log_prob = batch()
        ones = torch.ones(len(log_prob))
        return log_prob, torch.zeros(len(log_prob)), -ones, ones


@pytest.mark.parametrize("correction", ["none", "diagonal", "dense", "window", "oracle"])
def test_follows_the_double_sum_in_classification(correction):
    model, twin = twins(lambda: mlp(outputs=3))
    optimizer = unstale.CorrectedSGD(model, lr=0.3, correction=correction, trust=None, horizon=50)
    mask = mask_for(correction, twin.parameters())
    reference = Classification(twin.parameters(), 0.3, 0.9, mask=mask, oracle=correction == "oracle")
    g = torch.Generator().manual_seed(0)
    for _ in range(8):
        x, y = torch.randn(5, 3, generator=g), torch.randint(3, (5,), generator=g)

        def likelihood(net, x=x, y=y):
            return lambda: net(x).log_softmax(1)[torch.arange(5), y]

        loss = optimizer.backward_log_likelihood(likelihood(model))
        torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(model(x), y).detach())
        optimizer.step()
        optimizer.zero_grad()
        reference.step(likelihood(twin))
    torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-10, atol=1e-10)


def test_trust_bound_acts_and_is_counted():
    model, _ = twins(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.5, correction="dense", trust=0.01)
    stream = Stream()
    for _ in range(20):
        optimizer.backward(*stream.batch(model)())
        optimizer.step()
        optimizer.zero_grad()
    (group,) = unstale.diagnostics.groups(optimizer)
    assert 0.5 < group.bounded_share < 1.0  # the first step has nothing to bound
    assert group.steps == 20
