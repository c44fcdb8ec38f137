"""Optimizers, the monitor and diagnostics, with arguments of every kind: as with plain torch, or a clear refusal."""

import copy
import math
import warnings

import pytest
import torch
from fuzz_inputs import ANY_NUMBER, NO_TENSORS, REFUSED, any_tensor, attempt, fuzzed, spoiled, tensors
from hypothesis import given
from hypothesis import strategies as st
from problems import mlp, parameters_of
from torch import nn

import unstale

FLOATING = dict(dtypes=(torch.float64,))
WORDS = st.sampled_from(["auto", "dense", "Dense", "window", "none", "reservoir", "literal", "skip", "raise", "", "x"])
ODD = st.one_of(ANY_NUMBER, WORDS, any_tensor)
PLAIN = dict(lr=0.1)
OPTIONS = {
    "lr": ODD,
    "beta": ODD,
    "betas": st.one_of(ODD, st.tuples(ODD, ODD), st.lists(ODD, max_size=3)),
    "eps": ODD,
    "alpha": ODD,
    "correction": ODD,
    "trust": ODD,
    "slots": ODD,
    "budget": ODD,
    "horizon": ODD,
    "weight_decay": ODD,
    "block_size": ODD,
    "refresh": st.one_of(ODD, st.lists(ODD, max_size=3), st.just(range(1, 10**12)), st.just(iter((1, 2)))),
    "recursion": ODD,
    "second_order": ODD,
    "seed": ODD,
    "memory_limit": ODD,
    "on_nonfinite": ODD,
    "process_group": ODD,
    "momentum": ODD,
}
OPTIMIZERS = [unstale.CorrectedSGD, unstale.CorrectedAdam, unstale.CorrectedRMSprop, unstale.CorrectedTDprop]


def step(model, optimizer, m=3):
    s, s_next = torch.randn(m, 3), torch.randn(m, 3)
    optimizer.backward(lambda: (model(s).squeeze(-1), 1 + 0.5 * model(s_next).squeeze(-1)))
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture(autouse=True)
def quiet():
    warnings.simplefilter("ignore")


@fuzzed(150)
@given(st.sampled_from(OPTIMIZERS), spoiled(st.just(PLAIN), **OPTIONS))
def test_options(kind, options):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = attempt(lambda: kind(model, **options))
    if optimizer is REFUSED:
        return
    for _ in range(2):  # an accepted option trains, with finite numbers, or is refused at the first batch
        before = parameters_of(model)
        if attempt(lambda: step(model, optimizer), MemoryError, FloatingPointError) is REFUSED:
            assert torch.equal(parameters_of(model), before)
            return
        assert parameters_of(model).isfinite().all() or float(options["lr"]) > 1e100


@fuzzed(60)
@given(
    st.one_of(
        NO_TENSORS,
        shapes_of_parameters := st.lists(
            st.one_of(any_tensor, st.just(nn.Linear(2, 1)), st.just(nn.Parameter(torch.ones(2)))), max_size=3
        ),
        st.dictionaries(st.sampled_from(["params", "lr", "slots"]), st.one_of(ODD, shapes_of_parameters), max_size=2),
    )
)
def test_parameters_and_groups(params):
    attempt(lambda: unstale.CorrectedSGD(params, lr=0.1))
    model = nn.Linear(3, 1)
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    before = len(optimizer.param_groups)
    if attempt(lambda: optimizer.add_param_group(params)) is REFUSED:
        assert len(optimizer.param_groups) == before
    attempt(lambda: optimizer.follow(params))


@st.composite
def batches(draw):
    shape = draw(st.sampled_from([(1,), (3,), (2, 2)]))
    return dict(target=draw(tensors(shape, **FLOATING)), weight=draw(tensors(shape, **FLOATING)), shape=shape)


@fuzzed(100)
@given(
    st.data(),
    spoiled(batches(), target=st.one_of(ANY_NUMBER, any_tensor), weight=st.one_of(ANY_NUMBER, any_tensor)),
    st.sampled_from(["none", "dense", "window"]),
)
def test_backward(data, case, correction):
    """``.grad`` is that of plain torch, or nothing has changed."""
    torch.manual_seed(0)
    model = nn.Linear(3, math.prod(case["shape"][1:]))
    inputs = torch.randn(case["shape"][0], 3)
    prediction = data.draw(
        st.one_of(st.just(model(inputs).reshape(case["shape"])), any_tensor) if data.draw(st.booleans()) else
        st.just(model(inputs).reshape(case["shape"]))
    )  # fmt: skip
    optimizer = unstale.CorrectedSGD(model, lr=0.1, correction=correction)
    target, weight = case["target"], case["weight"]
    found = attempt(lambda: optimizer.backward(prediction, target, weight=weight), FloatingPointError)
    if found is REFUSED:
        assert all(p.grad is None for p in model.parameters())
        return
    expected = copy.deepcopy(model)
    expected.zero_grad()
    output = expected(inputs).reshape(case["shape"])
    level = torch.as_tensor(target, dtype=torch.float64).detach()
    factor = torch.as_tensor(weight, dtype=torch.float64).detach()
    if factor.ndim and factor.ndim < output.ndim:
        factor = factor.unsqueeze(-1)
    loss = (output - level) ** 2 / 2
    (loss * factor).mean().backward()
    torch.testing.assert_close(found.double(), loss.mean().detach())
    if not all(p.grad.isfinite().all() for p in expected.parameters()):  # weights that overflow
        if not all(p.grad.isfinite().all() for p in model.parameters()):
            assert attempt(optimizer.step, FloatingPointError) is REFUSED
        return
    for own, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


@fuzzed(60)
@given(ANY_NUMBER, ANY_NUMBER)
def test_scaling_and_clipping(number, kind):
    torch.manual_seed(0)
    model, other = nn.Linear(3, 1), nn.Linear(3, 1)
    other.load_state_dict(model.state_dict())
    optimizer = unstale.CorrectedSGD(model, lr=0.1, correction="dense")
    inputs = torch.randn(4, 3)

    def fill():
        optimizer.zero_grad()
        optimizer.backward(model(inputs).squeeze(-1), 1.0)
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    before = fill()
    if attempt(lambda: optimizer.scale_grad_(number)) is not REFUSED:
        after = torch.cat([p.grad.flatten() for p in model.parameters()])
        torch.testing.assert_close(after, before * float(number), equal_nan=True)
    before = whole = fill()
    norm = attempt(lambda: optimizer.clip_grad_norm_(number, kind))
    after = torch.cat([p.grad.flatten() for p in model.parameters()])
    if norm is REFUSED:
        assert torch.equal(after, before)
        return
    for own, copied in zip(model.parameters(), other.parameters(), strict=True):
        copied.grad = before[: own.numel()].view_as(own).clone()
        before = before[own.numel() :]
    expected = torch.nn.utils.clip_grad_norm_(other.parameters(), float(number), float(kind))
    torch.testing.assert_close(norm, expected)
    if float(number) == math.inf:  # torch makes NaN of it if the norm is infinite too
        assert torch.equal(after, whole)
        return
    torch.testing.assert_close(after, torch.cat([p.grad.flatten() for p in other.parameters()]))


@pytest.mark.parametrize("max_norm", [-1.0, -math.inf, math.nan, "1", True, None])
def test_a_norm_that_is_none_is_refused(max_norm):
    """A negative one turned the gradient around."""
    model = nn.Linear(3, 1)
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    optimizer.backward(model(torch.ones(2, 3)).squeeze(-1), model(torch.zeros(2, 3)).squeeze(-1))
    before = copy.deepcopy([p.grad for p in model.parameters()])
    with pytest.raises(ValueError, match="max_norm must be a number of at least 0"):
        optimizer.clip_grad_norm_(max_norm)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))


@fuzzed(60)
@given(ODD, ODD, ODD)
def test_measurements(horizon, every, anything):
    model = mlp()
    adam = torch.optim.Adam(model.parameters())
    own = unstale.CorrectedSGD(model, lr=0.1)
    for call in (
        lambda: unstale.Monitor(model, adam, horizon),
        lambda: unstale.Monitor(anything, adam),
        lambda: unstale.Monitor(model, anything),
        lambda: unstale.Monitor(model, adam).measure_cost(horizon, every),
        lambda: unstale.Monitor(model, adam).observe(anything, every),
        lambda: unstale.diagnostics.DriftMonitor(own, horizon, every),
        lambda: unstale.diagnostics.DriftMonitor(anything),
        lambda: unstale.diagnostics.read(anything),
        lambda: unstale.diagnostics.groups(anything),
        lambda: unstale.diagnostics.skipped_steps(anything),
        lambda: own.backward_log_likelihood(anything, weight=every),
        lambda: own.backward(anything, every),
        lambda: own.load_state_dict(anything),
    ):
        attempt(call, FloatingPointError)


def test_empty_tensors_among_parameters():
    model = nn.Linear(3, 1)
    nothing = nn.Parameter(torch.empty(0))
    for correction in ("diagonal", "blocks", "dense", "window"):
        optimizer = unstale.CorrectedSGD([model, nothing], lr=0.1, beta=0.9, correction=correction)
        step(model, optimizer)
        step(model, optimizer)
        optimizer.load_state_dict(optimizer.state_dict())
