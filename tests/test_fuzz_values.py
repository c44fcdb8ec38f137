"""Targets, losses and distributions of returns, with arguments of every kind: right numbers, or a clear refusal."""

import itertools
import math

import pytest
import torch
from fuzz_inputs import ANY_NUMBER, DTYPES, REFUSED, any_tensor, attempt, fuzzed, shapes, spoiled, tensors
from hypothesis import given
from hypothesis import strategies as st

import unstale
from unstale import distributions, losses, targets

REAL = tuple(dtype for dtype in DTYPES if not dtype.is_complex and dtype != torch.bool)
FLAGS = (torch.bool, torch.float32, torch.int64)


def near(found, expected):
    """Equal up to the rounding of the result's dtype."""
    assert found.is_floating_point()
    eps = torch.finfo(found.dtype).eps
    expected = torch.as_tensor(expected, dtype=torch.float64).reshape(found.shape)
    scale = expected.abs().max().clamp(min=1.0) if expected.numel() else 1.0
    assert ((found.double() - expected).abs() <= 64 * eps * scale).all(), (found, expected)


def flat(x):
    return [float(entry) for entry in x.reshape(-1).double()]


@st.composite
def discounts(draw, shape):
    if draw(st.booleans()):
        return draw(st.sampled_from([0, 0.25, 0.5, 1, 1.0]))
    quarters = draw(tensors(shape, (torch.float32, torch.float64), 0, 4))
    return quarters / 4


@st.composite
def transitions(draw):
    shape = draw(shapes)
    actions = draw(st.integers(1, 3))
    return dict(
        reward=draw(tensors(shape, (*REAL, torch.bool))),
        next_value=draw(tensors(shape, REAL)),
        next_q=draw(tensors((*shape, actions), REAL)),
        next_action=draw(tensors(shape, (torch.int64, torch.uint8), 0, 0)) % actions,
        policy=draw(tensors((*shape, actions), (torch.float32, torch.int64), 0, 1)),
        select=draw(tensors((*shape, actions), REAL)),
        terminated=draw(tensors(shape, (torch.bool,))).to(draw(st.sampled_from(FLAGS))),
        gamma=draw(discounts(shape)),
    )


ODD = dict.fromkeys(("reward", "next_value", "next_q", "next_action", "policy", "select", "terminated"), any_tensor)


def expected_td(reward, value, terminated, gamma):
    """``r + γ (1 - terminated) v``, one by one."""
    each = [flat(x) for x in (reward, value, terminated)]
    gammas = flat(gamma) if isinstance(gamma, torch.Tensor) and gamma.ndim else [float(gamma)] * len(each[0])
    return [r + g * (1 - d) * v for r, v, d, g in zip(*each, gammas, strict=True)]


def rows(x):
    return x.reshape(-1, x.shape[-1]).double().tolist()


def is_finite(*values):
    return all(torch.as_tensor(v).isfinite().all() for v in values)


@fuzzed(60)
@given(spoiled(transitions(), gamma=st.one_of(ANY_NUMBER, any_tensor), **ODD))
def test_one_step_targets(case):
    reward, terminated, gamma = case["reward"], case["terminated"], case["gamma"]
    value, q, action, policy, select = (case[n] for n in ("next_value", "next_q", "next_action", "policy", "select"))
    common = terminated, gamma
    found = attempt(lambda: targets.td(reward, value, *common))
    if found is not REFUSED:
        near(found, expected_td(reward, value, *common))
    found = attempt(lambda: targets.sarsa(reward, q, action, *common))
    if found is not REFUSED:
        ended = flat(terminated)
        chosen = [0.0 if done == 1 else row[int(a)] for row, a, done in zip(rows(q), flat(action), ended, strict=True)]
        near(found, expected_td(reward, torch.tensor(chosen, dtype=torch.float64), *common))
    found = attempt(lambda: targets.expected_sarsa(reward, q, policy, *common))
    if found is not REFUSED:
        means = [sum(p * v for p, v in zip(*pair, strict=True)) for pair in zip(rows(policy), rows(q), strict=True)]
        near(found, expected_td(reward, torch.tensor(means, dtype=torch.float64), *common))
    found = attempt(lambda: targets.q_learning(reward, q, *common))
    if found is not REFUSED:
        best = [max(row) for row in rows(q)]
        near(found, expected_td(reward, torch.tensor(best, dtype=torch.float64), *common))
    found = attempt(lambda: targets.q_learning(reward, q, *common, select=select))
    if found is not REFUSED and select is not None:
        best = [row[by.index(max(by))] for row, by in zip(rows(q), rows(select), strict=True)]
        near(found, expected_td(reward, torch.tensor(best, dtype=torch.float64), *common))


@st.composite
def trajectories(draw):
    shape = (draw(st.integers(1, 4)), *draw(st.lists(st.integers(1, 2), max_size=1)))
    flags = [draw(tensors(shape, (torch.bool,))).to(draw(st.sampled_from(FLAGS))) for _ in range(2)]
    return dict(
        rewards=draw(tensors(shape, REAL)),
        next_values=draw(tensors(shape, REAL)),
        terminated=flags[0],
        truncated=flags[1],
        gamma=draw(discounts(shape)),
        n=draw(st.integers(1, 6)),
        lam=draw(st.sampled_from([0, 0.5, 1.0])),
    )


def literal_n_step(reward, value, terminated, truncated, gamma, n):
    """The definition, for one trajectory of numbers."""
    found = []
    for t in range(len(reward)):
        total, discount = 0.0, 1.0
        for k in range(t, len(reward)):
            total += discount * reward[k]
            discount *= gamma[k]
            if terminated[k]:
                break
            if truncated[k] or k - t + 1 == n or k == len(reward) - 1:
                total += discount * value[k]
                break
        found.append(total)
    return found


def columns(case):
    """Every batch entry of a trajectory as lists of numbers over time."""
    shape = case["rewards"].shape
    gamma = case["gamma"]
    gamma = gamma if isinstance(gamma, torch.Tensor) and gamma.ndim else torch.full(shape, float(gamma))
    parts = [case["rewards"], case["next_values"], case["terminated"], case["truncated"], gamma]
    parts = [part.double().reshape(shape[0], -1) for part in parts]
    return [[part[:, column].tolist() for part in parts] for column in range(parts[0].shape[1])]


@fuzzed(60)
@given(
    spoiled(
        trajectories(),
        gamma=st.one_of(ANY_NUMBER, any_tensor),
        n=ANY_NUMBER,
        lam=ANY_NUMBER,
        **dict.fromkeys(("rewards", "next_values", "terminated", "truncated"), any_tensor),
    )
)
def test_targets_of_trajectories(case):
    common = [case[name] for name in ("rewards", "next_values", "terminated", "truncated", "gamma")]
    found = attempt(lambda: targets.n_step(*common, case["n"]))
    if found is not REFUSED:
        each = [literal_n_step(*column, int(case["n"])) for column in columns(case)]
        near(found, torch.tensor(each, dtype=torch.float64).T.reshape(found.shape))
    found = attempt(lambda: targets.td_lambda(*common, case["lam"]))
    if found is not REFUSED:
        lam, steps = float(case["lam"]), len(case["rewards"])
        each = []
        for column in columns(case):
            by_n = [literal_n_step(*column, n) for n in range(1, steps + 1)]
            # The longest return has the weight of all that would be longer.
            weights = [(1 - lam) * lam**n for n in range(steps - 1)] + [lam ** (steps - 1)]
            each.append([sum(w * by_n[n][t] for n, w in enumerate(weights)) for t in range(steps)])
        near(found, torch.tensor(each, dtype=torch.float64).T.reshape(found.shape))


def test_discounts_of_integer_values_are_not_rounded():
    """They were cast to the dtype of the values: γ = 0."""
    whole, gamma = torch.tensor([8, 8]), torch.tensor([0.5, 0.25])
    flags, reward = torch.tensor([False, False]), torch.tensor([1, 1])
    assert targets.td(reward, whole, flags, gamma).tolist() == [5.0, 3.0]
    assert targets.td(reward.float(), whole, flags, gamma.float()).dtype == torch.float32
    assert targets.n_step(reward, whole, flags, flags, gamma, 2).tolist() == [2.5, 3.0]
    assert targets.td_lambda(reward, whole, flags, flags, gamma, 0.0).tolist() == [5.0, 3.0]
    assert targets.q_learning(reward, whole.unsqueeze(-1), flags, gamma).tolist() == [5.0, 3.0]
    with pytest.raises(TypeError, match="values, not flags"):
        targets.td(reward, flags, flags, gamma)


# --------------------------------------------------------------------------------------------------------------- losses


NAMED = {
    losses.half_squared: lambda r: r**2 / 2,
    losses.squared: lambda r: r**2,
    losses.huber: lambda r: r**2 / 2 if abs(r) <= 1 else abs(r) - 0.5,
    losses.smooth_l1: lambda r: r**2 / 2 if abs(r) <= 1 else abs(r) - 0.5,
    losses.negative_log_likelihood: lambda r: -r,
}


@fuzzed(60)
@given(any_tensor, st.sampled_from(list(NAMED)))
def test_losses_of_residuals(residual, loss):
    found = attempt(lambda: loss(residual))
    if found is not REFUSED:
        near(found.value, [NAMED[loss](r) for r in flat(residual)])
        assert {part.shape for part in found} == {residual.shape}


@fuzzed(60)
@given(tensors((5,), (torch.float64,)), ANY_NUMBER, any_tensor)
def test_parameters_of_losses(residual, parameter, other):
    found = attempt(lambda: losses.huber(residual, parameter))
    if found is not REFUSED:
        delta = float(parameter)
        near(found.value, [r**2 / 2 if abs(r) <= delta else delta * (abs(r) - delta / 2) for r in flat(residual)])
    found = attempt(lambda: losses.smooth_l1(residual, parameter))
    if found is not REFUSED and 1e-3 < float(parameter) < 1e3:
        beta = float(parameter)
        near(found.value, [r**2 / 2 / beta if abs(r) <= beta else abs(r) - beta / 2 for r in flat(residual)])
    attempt(lambda: losses.clipped_value(other, parameter))
    clipped = attempt(lambda: losses.clipped_value(torch.zeros(5), parameter))
    if clipped is not REFUSED:
        target = torch.zeros(5)
        found = clipped(residual - target, target)
        clip = float(parameter)
        near(found.value, [max(v**2, min(max(v, -clip), clip) ** 2) / 2 for v in flat(residual)])
    attempt(lambda: losses.quantile_huber(other, parameter))
    found = attempt(lambda: losses.quantile_huber(None, parameter))
    if found is not REFUSED and 1e-3 < float(parameter) < 1e3:
        kappa, quantiles, level = float(parameter), flat(residual), residual[:2]
        expected = 0.0
        for a, f in enumerate(quantiles):
            for y in flat(level):
                error, tau = y - f, (a + 0.5) / len(quantiles)
                size = error**2 / 2 if abs(error) <= kappa else kappa * (abs(error) - kappa / 2)
                expected += abs(tau - (error < 0)) * size / kappa / len(level)
        near(found.value(residual.unsqueeze(0), level.unsqueeze(0)), [expected])


@fuzzed()
@given(st.one_of(ANY_NUMBER, st.text(max_size=8), st.sampled_from([len, lambda r: {}, lambda r: 3])), any_tensor)
def test_losses_by_name_or_function(loss, residual):
    found = attempt(lambda: losses.evaluate(loss, residual))
    assert found is REFUSED or loss in losses.NAMED


# -------------------------------------------------------------------------------------------------------- distributions


@st.composite
def categorical(draw):
    m, k = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    probs = draw(tensors((m, k), (torch.float32, torch.float64), 0, 2)) + 0.25
    return dict(
        reward=draw(tensors((m,), REAL)),
        next_probs=probs / probs.sum(-1, keepdim=True),
        terminated=draw(tensors((m,), (torch.bool,))),
        gamma=draw(discounts((m,))),
        atoms=torch.linspace(-2.0, draw(st.sampled_from([-1.0, 2.0, 4.0])), k),
    )


@fuzzed(60)
@given(
    spoiled(
        categorical(),
        gamma=ANY_NUMBER,
        **dict.fromkeys(("reward", "next_probs", "terminated", "atoms"), any_tensor),
    )
)
def test_c51(case):
    found = attempt(lambda: distributions.c51(**case))
    if found is REFUSED or not is_finite(case["next_probs"], case["atoms"]):
        return
    atoms, reward, ended = flat(case["atoms"]), flat(case["reward"]), flat(case["terminated"])
    gamma = case["gamma"]
    gamma = flat(gamma) if isinstance(gamma, torch.Tensor) and gamma.ndim else [float(gamma)] * len(reward)
    spacing = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    expected = torch.zeros(len(reward), len(atoms), dtype=torch.float64)
    for row, probs in enumerate(rows(case["next_probs"])):
        for atom, p in zip(atoms, probs, strict=True):
            moved = min(max(reward[row] + gamma[row] * (1 - ended[row]) * atom, atoms[0]), atoms[-1])
            place = (moved - atoms[0]) / spacing
            low = min(math.floor(place + 1e-9), len(atoms) - 1)
            expected[row, low] += p * (1 - (place - low))
            if low + 1 < len(atoms):
                expected[row, low + 1] += p * (place - low)
    near(found, expected)


@fuzzed(60)
@given(
    st.one_of(any_tensor, tensors((3,), (torch.float32, torch.float64, torch.float16))),
    st.one_of(any_tensor, st.sampled_from([torch.tensor([-2.0, -1.0, 1.5, 3.0]), torch.tensor([-1, 0, 1])])),
    st.one_of(ANY_NUMBER, st.floats(1e-3, 1e3)),
)
def test_hl_gauss(value, edges, sigma):
    found = attempt(lambda: distributions.hl_gauss(value, edges, sigma))
    if found is REFUSED:
        return
    at, sigma = flat(edges), float(sigma)
    expected = []
    for v in flat(value):
        v = min(max(v, at[0]), at[-1])
        below = [math.erf((e - v) / (sigma * math.sqrt(2))) for e in at]
        expected.append([(b - a) / (below[-1] - below[0]) for a, b in itertools.pairwise(below)])
    if expected:
        wanted = torch.tensor(expected, dtype=torch.float64)
        tolerance = 1e-2 if found.dtype.itemsize == 2 else 1e-4 if found.dtype == torch.float32 else 1e-6
        assert (found.double() - wanted).abs().max() < tolerance


@fuzzed(60)
@given(ANY_NUMBER)
def test_paper_horizon(beta):
    found = attempt(lambda: unstale.paper_horizon(beta))
    assert found is REFUSED or found == max(1, round(2 / (1 - float(beta))))
