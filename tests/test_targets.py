"""Targets against literal sums over their definitions, in plain floats."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unstale import targets

NUMBERS = st.floats(-10, 10)
UNIT = st.floats(0, 1)


def close(found: Tensor, expected: list) -> None:
    torch.testing.assert_close(found.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)


def leaf(numbers: list) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


def jacobian(target: Tensor, of: Tensor) -> Tensor:
    """``d target_i / d of_j``, one backward pass per row."""
    rows = [torch.autograd.grad(y, of, retain_graph=True)[0] for y in target]
    return torch.stack(rows)


# ------------------------------------------------------------------- transitions


class Transitions(NamedTuple):
    reward: list[float]
    next_q: list[list[float]]
    select: list[list[float]]
    policy: list[list[float]]
    next_action: list[int]
    terminated: list[bool]
    gammas: list[float]
    is_one_gamma: bool

    @property
    def gamma(self) -> float | Tensor:
        """As a number, or one per transition."""
        return self.gammas[0] if self.is_one_gamma else torch.tensor(self.gammas, dtype=torch.float64)


@st.composite
def transitions(draw: st.DrawFn) -> Transitions:
    m, actions = draw(st.integers(1, 4)), draw(st.integers(1, 4))

    def each(one: st.SearchStrategy) -> list:
        return draw(st.lists(one, min_size=m, max_size=m))

    # A permutation has no ties, so that the best action is one action.
    order = st.permutations([float(a) for a in range(actions)])
    is_one_gamma = draw(st.booleans())
    return Transitions(
        each(NUMBERS), each(order), each(order), each(st.lists(UNIT, min_size=actions, max_size=actions)),
        each(st.integers(0, actions - 1)), each(st.booleans()), [draw(UNIT)] * m if is_one_gamma else each(UNIT),
        is_one_gamma,
    )  # fmt: skip


def oracle(case: Transitions, weights: list[list[float]]) -> tuple[list[float], list[list[float]]]:
    """Targets that bootstrap from ``Σ_a weights[a] q[a]``, and their derivatives by ``q``."""
    values, slopes = [], []
    for k, reward in enumerate(case.reward):
        value, slope = reward, [0.0] * len(weights[k])
        if not case.terminated[k]:
            for a, weight in enumerate(weights[k]):
                value += case.gammas[k] * weight * case.next_q[k][a]
                slope[a] = case.gammas[k] * weight
        values.append(value)
        slopes.append(slope)
    return values, slopes


def one_hot(index: int, size: int) -> list[float]:
    return [float(a == index) for a in range(size)]


def check(target: Tensor, q: Tensor, expected: tuple[list[float], list[list[float]]]) -> None:
    values, slopes = expected
    close(target, values)
    (slope,) = torch.autograd.grad(target.sum(), q)
    close(slope, slopes)


@pytest.mark.parametrize("flag", [torch.bool, torch.float32, torch.float64, torch.int64])
@settings(deadline=None, max_examples=50)
@given(case=transitions())
def test_transitions_match_the_definitions(flag: torch.dtype, case: Transitions) -> None:
    reward, terminated = leaf(case.reward), torch.tensor(case.terminated).to(flag)
    policy, select = leaf(case.policy), leaf(case.select)
    size = len(case.next_q[0])

    q = leaf(case.next_q)
    weights = [one_hot(a, size) for a in case.next_action]
    check(targets.sarsa(reward, q, torch.tensor(case.next_action), terminated, case.gamma), q, oracle(case, weights))
    value = leaf([row[0] for row in case.next_q])
    first = oracle(case, [one_hot(0, size)] * len(case.reward))
    target = targets.td(reward, value, terminated, case.gamma)
    check(target, value, (first[0], [row[0] for row in first[1]]))
    check(targets.expected_sarsa(reward, q, policy, terminated, case.gamma), q, oracle(case, case.policy))
    weights = [one_hot(row.index(max(row)), size) for row in case.next_q]
    check(targets.q_learning(reward, q, terminated, case.gamma), q, oracle(case, weights))
    weights = [one_hot(row.index(max(row)), size) for row in case.select]
    target = targets.q_learning(reward, q, terminated, case.gamma, select=select)
    check(target, q, oracle(case, weights))
    assert torch.autograd.grad(target.sum(), select, allow_unused=True) == (None,)


@pytest.mark.parametrize("gamma", [torch.tensor(0.5), torch.full((2,), 0.5, dtype=torch.float64)])
def test_discounts_do_not_change_the_precision(gamma: Tensor) -> None:
    target = targets.td(torch.ones(2).float(), torch.ones(2).float(), torch.tensor([False, True]), gamma)
    assert target.dtype == torch.float32 and target.tolist() == [1.5, 1.0]


def test_expected_sarsa_is_live_in_the_policy() -> None:
    q, policy = leaf([[2.0, 4.0], [6.0, 8.0]]), leaf([[0.25, 0.75], [1.0, 0.0]])
    target = targets.expected_sarsa(torch.zeros(2), q, policy, torch.tensor([False, True]), 0.5)
    close(torch.autograd.grad(target.sum(), policy)[0], [[1.0, 2.0], [0.0, 0.0]])


def test_q_learning_at_a_tie_follows_one_action() -> None:
    q = leaf([[3.0, 3.0, 1.0]])
    target = targets.q_learning(torch.zeros(1), q, torch.tensor([False]), 0.5)
    close(torch.autograd.grad(target.sum(), q)[0], [[0.5, 0.0, 0.0]])


def test_targets_keep_batch_axes() -> None:
    generator = torch.Generator().manual_seed(0)
    reward, q = torch.randn(2, 3, generator=generator), torch.randn(2, 3, 4, generator=generator)
    terminated, action = torch.tensor([[0, 1, 0], [0, 0, 1]]), torch.tensor([[0, 1, 2], [3, 2, 1]])
    policy = q.softmax(-1)
    for whole, flat in (
        (targets.sarsa(reward, q, action, terminated, 0.9), targets.sarsa(
            reward.flatten(), q.flatten(0, 1), action.flatten(), terminated.flatten(), 0.9)),
        (targets.expected_sarsa(reward, q, policy, terminated, 0.9), targets.expected_sarsa(
            reward.flatten(), q.flatten(0, 1), policy.flatten(0, 1), terminated.flatten(), 0.9)),
        (targets.q_learning(reward, q, terminated, 0.9), targets.q_learning(
            reward.flatten(), q.flatten(0, 1), terminated.flatten(), 0.9)),
    ):  # fmt: skip
        assert whole.shape == (2, 3)
        torch.testing.assert_close(whole.flatten(), flat, rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------ trajectories


class Trajectory(NamedTuple):
    rewards: list[float]
    next_values: list[float]
    terminated: list[bool]
    truncated: list[bool]
    gammas: list[float]
    is_one_gamma: bool

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, float | Tensor]:
        flags = torch.tensor(self.terminated), torch.tensor(self.truncated)
        gamma = self.gammas[0] if self.is_one_gamma else torch.tensor(self.gammas, dtype=torch.float64)
        return leaf(self.rewards), leaf(self.next_values), *flags, gamma

    def discount(self, t: int, k: int) -> float:
        """That of what comes ``k`` steps after ``t``."""
        return math.prod(self.gammas[t : t + k])


@st.composite
def trajectories(draw: st.DrawFn, length: int | None = None) -> Trajectory:
    length = draw(st.integers(1, 8)) if length is None else length
    # Ends are rare enough for long episodes to be drawn, and both kinds may fall on one step.
    rare = st.sampled_from([False, False, False, True])
    each = [draw(st.lists(one, min_size=length, max_size=length)) for one in (NUMBERS, NUMBERS, rare, rare)]
    if draw(st.booleans()):
        return Trajectory(*each, [draw(UNIT)] * length, True)
    return Trajectory(*each, draw(st.lists(UNIT, min_size=length, max_size=length)), False)


class Weights(NamedTuple):
    """A target as a linear function of rewards and values."""

    of_rewards: list[float]
    of_values: list[float]

    def value(self, case: Trajectory) -> float:
        return sum(w * x for w, x in zip(self.of_rewards, case.rewards, strict=True)) + sum(
            w * x for w, x in zip(self.of_values, case.next_values, strict=True)
        )


def steps_left(case: Trajectory, t: int) -> int:
    """How many steps, this one included, to the end of the episode or of the trajectory."""
    for k in range(t, len(case.rewards)):
        if case.terminated[k] or case.truncated[k]:
            return k - t + 1
    return len(case.rewards) - t


def n_step_weights(case: Trajectory, t: int, n: int) -> Weights:
    found = Weights([0.0] * len(case.rewards), [0.0] * len(case.rewards))
    steps = min(n, steps_left(case, t))
    for k in range(steps):
        found.of_rewards[t + k] = case.discount(t, k)
    if not case.terminated[t + steps - 1]:
        found.of_values[t + steps - 1] = case.discount(t, steps)
    return found


def lambda_weights(case: Trajectory, t: int, lam: float) -> Weights:
    found = Weights([0.0] * len(case.rewards), [0.0] * len(case.rewards))
    longest = steps_left(case, t)
    for n in range(1, longest + 1):
        share = lam ** (longest - 1) if n == longest else (1 - lam) * lam ** (n - 1)
        part = n_step_weights(case, t, n)
        for total, more in zip(found, part, strict=True):
            for j, weight in enumerate(more):
                total[j] += share * weight
    return found


def check_trajectory(target: Tensor, rewards: Tensor, next_values: Tensor, case: Trajectory, weights: list) -> None:
    close(target, [w.value(case) for w in weights])
    close(jacobian(target, next_values), [w.of_values for w in weights])
    close(jacobian(target, rewards), [w.of_rewards for w in weights])


@settings(deadline=None)
@given(case=trajectories(), n=st.integers(1, 10))
def test_n_step_is_the_sum_it_says(case: Trajectory, n: int) -> None:
    rewards, next_values, *rest = case.tensors()
    target = targets.n_step(rewards, next_values, *rest, n)
    weights = [n_step_weights(case, t, n) for t in range(len(case.rewards))]
    check_trajectory(target, rewards, next_values, case, weights)


@settings(deadline=None)
@given(case=trajectories(), lam=UNIT)
def test_td_lambda_is_the_mean_of_n_step_targets(case: Trajectory, lam: float) -> None:
    rewards, next_values, *rest = case.tensors()
    target = targets.td_lambda(rewards, next_values, *rest, lam)
    weights = [lambda_weights(case, t, lam) for t in range(len(case.rewards))]
    check_trajectory(target, rewards, next_values, case, weights)


@settings(deadline=None)
@given(case=trajectories())
def test_the_ends_of_the_range(case: Trajectory) -> None:
    rewards, next_values, terminated, truncated, gamma = case.tensors()
    one = targets.td(rewards, next_values, terminated, gamma)
    trajectory = rewards, next_values, terminated, truncated, gamma
    torch.testing.assert_close(targets.n_step(*trajectory, n=1), one, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(targets.td_lambda(*trajectory, lam=0.0), one, rtol=1e-12, atol=1e-12)
    # λ = 1 is Monte Carlo: all rewards of the episode, and a bootstrap where it was cut.
    returns, later = [], 0.0
    for t in reversed(range(len(case.rewards))):
        if case.terminated[t]:
            later = 0.0
        elif case.truncated[t] or t == len(case.rewards) - 1:
            later = case.next_values[t]
        later = case.rewards[t] + case.gammas[t] * later
        returns.insert(0, later)
    close(targets.td_lambda(*trajectory, lam=1.0), returns)
    close(targets.n_step(*trajectory, n=len(returns)), returns)


@settings(deadline=None, max_examples=25)
@given(cases=st.lists(trajectories(length=5), min_size=6, max_size=6), n=st.integers(1, 6), lam=UNIT)
def test_trajectories_side_by_side_equal_each_alone(cases: list[Trajectory], n: int, lam: float) -> None:
    alone = [case._replace(is_one_gamma=False).tensors() for case in cases]
    together = [torch.stack(column, 1).unflatten(1, (2, 3)) for column in zip(*alone, strict=True)]
    for function, last in ((targets.n_step, n), (targets.td_lambda, lam)):
        whole = function(*together, last)
        assert whole.shape == (5, 2, 3)
        each = torch.stack([function(*one, last) for one in alone], 1)
        torch.testing.assert_close(whole.flatten(1), each, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize(("function", "last"), [(targets.n_step, 4), (targets.td_lambda, 0.5)])
def test_an_episode_never_sees_the_next(function, last, end: str) -> None:  # type: ignore[no-untyped-def]
    flags = {"terminated": torch.zeros(4), "truncated": torch.zeros(4)}
    flags[end][1] = 1
    rewards = torch.tensor([1.0, 1.0, float("inf"), float("nan")])
    target = function(rewards, torch.ones(4), **flags, gamma=0.5, **{"n" if last == 4 else "lam": last})
    assert target[:2].isfinite().all() and not target[2:].isfinite().any()


# ------------------------------------------------------------------------ errors

M, A, NAN = torch.zeros(3), torch.zeros(3, 2), float("nan")
ACTION = torch.zeros(3, dtype=torch.long)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, r"next_value must .*\[3\], but has shape \[3, 1\].*next_value\.squeeze\(-1\)",
         lambda: targets.td(M, M[:, None], M, 0.9)),
        (ValueError, r"terminated must .*reward\.squeeze\(-1\)", lambda: targets.td(M[:, None], M[:, None], M, 0.9)),
        (ValueError, r"terminated must .*but has shape \[2\]", lambda: targets.td(M, M, M[:2], 0.9)),
        (TypeError, r"terminated must be a tensor, not bool.*as_tensor\(terminated\)",
         lambda: targets.td(M, M, False, 0.9)),
        (TypeError, r"reward must be a tensor, not list", lambda: targets.td([0.0], M, M, 0.9)),
        (ValueError, r"gamma must be in \[0, 1\], got 1.5", lambda: targets.td(M, M, M, 1.5)),
        (ValueError, r"gamma must be in \[0, 1\], got discounts from 0 to 1.5",
         lambda: targets.td(M, M, M, torch.tensor([0.0, 1.5, 1.0]))),
        (ValueError, r"gamma must be in \[0, 1\]", lambda: targets.td(M, M, M, torch.tensor([0.0, NAN, 1.0]))),
        (ValueError, r"gamma must have the shape of reward, \[3\], but has shape \[2\]",
         lambda: targets.td(M, M, M, torch.ones(2))),
        (ValueError, r"gamma must have the shape of reward, \[3\], but has shape \[3, 1\].*gamma\.squeeze",
         lambda: targets.q_learning(M, A, M, torch.ones(3, 1))),
        (ValueError, r"gamma must have the shape of rewards", lambda: targets.n_step(M, M, M, M, torch.ones(2), 2)),
        (ValueError, r"gamma must have the shape of rewards", lambda: targets.td_lambda(M, M, M, M, torch.ones(2), 1)),
        (TypeError, r"gamma must be a number or a tensor, not NoneType", lambda: targets.td(M, M, M, None)),
        (TypeError, r"gamma must .*not torch.bool; gamma and terminated look swapped",
         lambda: targets.td(M, M, 0.9, M.bool())),
        (TypeError, r"terminated must .*not the number 0.9; gamma and terminated look swapped",
         lambda: targets.expected_sarsa(M, A, A, 0.9, M)),
        (ValueError, r"terminated must hold zeros and ones; gamma and terminated look swapped",
         lambda: targets.sarsa(M, A, ACTION, torch.full((3,), 0.9), M)),
        (ValueError, r"terminated must hold zeros and ones, or probabilities", lambda: targets.td(M, M, M + 2, 0.9)),
        (ValueError, r"next_action must be from 0 to 1", lambda: targets.sarsa(M, A, ACTION + 7, M, 0.9)),
        (TypeError, r"gamma .*look swapped", lambda: targets.n_step(M, M, 0.9, M, M.long(), 2)),
        (TypeError, r"gamma .*look swapped", lambda: targets.td_lambda(M, M, M, 0.9, M.bool(), 0.5)),
        (ValueError, r"next_q must .*axis of actions", lambda: targets.q_learning(M, M, M, 0.9)),
        (ValueError, r"next_q must .*axis of actions", lambda: targets.q_learning(M, torch.zeros(3, 0), M, 0.9)),
        (ValueError, r"next_q must .*reward\.squeeze\(-1\)", lambda: targets.q_learning(M[:, None], A, M, 0.9)),
        (ValueError, r"select has 1 actions but next_q has 2",
         lambda: targets.q_learning(M, A, M, 0.9, select=A[:, :1])),
        (ValueError, r"policy must .*axis of actions", lambda: targets.expected_sarsa(M, A, M, M, 0.9)),
        (ValueError, r"policy has 1 actions", lambda: targets.expected_sarsa(M, A, A[:, :1], M, 0.9)),
        (ValueError, r"next_action must .*next_action\.squeeze\(-1\)",
         lambda: targets.sarsa(M, A, ACTION[:, None], M, 0.9)),
        (TypeError, r"next_action must hold whole numbers.*\.long\(\)", lambda: targets.sarsa(M, A, M, M, 0.9)),
        (ValueError, r"truncated must have the shape of rewards", lambda: targets.n_step(M, M, M, M[:2], 0.9, 2)),
        (ValueError, r"n must be a whole number", lambda: targets.n_step(M, M, M, M, 0.9, 0)),
        (ValueError, r"n must be a whole number", lambda: targets.n_step(M, M, M, M, 0.9, 1.5)),
        (ValueError, r"rewards must have shape \[T", lambda: targets.n_step(*[M[:0]] * 4, 0.9, 2)),
        (ValueError, r"rewards must have shape \[T", lambda: targets.td_lambda(*[M[0]] * 4, 0.9, 0.5)),
        (ValueError, r"lam must be in", lambda: targets.td_lambda(M, M, M, M, 0.9, 2)),
        (ValueError, r"gamma must be in", lambda: targets.td_lambda(M, M, M, M, -1, 0.5)),
    ],
)  # fmt: skip
def test_errors_name_the_argument_and_the_fix(error: type[Exception], message: str, call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        call()


def test_probabilities_of_termination_scale_the_bootstrap() -> None:
    target = targets.td(torch.ones(2), torch.full((2,), 8.0), torch.tensor([0.25, 1.0]), gamma=0.5)
    torch.testing.assert_close(target, torch.tensor([4.0, 1.0]))


def test_targets_can_be_batched_and_compiled() -> None:
    """Checks of values are left out where values cannot be read."""
    q, action, flags = torch.rand(4, 3, 2), torch.zeros(4, 3, dtype=torch.long), torch.zeros(4, 3)
    expected = torch.stack([targets.sarsa(torch.ones(3), *each, 0.9) for each in zip(q, action, flags, strict=True)])
    batched = torch.vmap(lambda *each: targets.sarsa(torch.ones(3), *each, 0.9))(q, action, flags)
    torch.testing.assert_close(batched, expected)
    compiled = torch.compile(targets.td, fullgraph=True, backend="eager")
    reward, value = torch.rand(3), torch.rand(3)
    torch.testing.assert_close(compiled(reward, value, flags[0], 0.9), targets.td(reward, value, flags[0], 0.9))
    assert targets.td(*[torch.zeros(3, device="meta")] * 3, 0.9).shape == (3,)
