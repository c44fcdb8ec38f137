"""Returns, n-step samples, intervals and ratios against literal references; estimates against exact values."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
import torch
from evaluation_problems import GAMMA, STATES, log_walk, register, walk_values

import unstale
from unstale.evaluation import EvaluationError, interval, values
from unstale.evaluation.belief import MAX_MOVE, MIN_UPDATES, judge
from unstale.evaluation.files import read
from unstale.evaluation.policies import load_policy
from unstale.evaluation.spaces import Discrete
from unstale.evaluation.training import History, Settings, make_networks
from unstale.evaluation.transitions import Transitions

register()
TINY = dict(gamma=GAMMA, episodes=40, steps=150, batch=16, networks=3, width=8)


def episodes(lengths: list[int], truncated: list[bool], seed: int = 0) -> Transitions:
    generator, rows = np.random.default_rng(seed), sum(lengths)
    last, cut = np.zeros(rows, bool), np.zeros(rows, bool)
    last[np.cumsum(lengths) - 1] = True
    cut[np.cumsum(lengths) - 1] = truncated
    states = generator.normal(size=(rows, 2))
    following = generator.normal(size=(rows, 2))
    return Transitions(
        states, generator.integers(2, size=rows), generator.normal(size=rows), following, last & ~cut, cut, Discrete(2)
    )


def test_returns_bootstrap_where_episodes_are_cut_off():
    data = episodes([3, 1, 4], [False, True, True])
    found = data.returns(0.8, np.array([10.0, 20.0, 30.0]))
    for start, end, tail in ((0, 3, 0.0), (3, 4, 20.0), (4, 8, 30.0)):
        for t in range(start, end):
            literal = sum(0.8 ** (j - t) * data.rewards[j] for j in range(t, end)) + 0.8 ** (end - t) * tail
            assert found[t] == pytest.approx(literal, rel=1e-12)
    np.testing.assert_allclose(data.tail_weights(0.8), [0.0, 0.8, 0.8**4])


@pytest.mark.parametrize("n", [1, 2, 5])
def test_n_step_samples_equal_n_step_targets(n):
    data = episodes([3, 1, 4], [False, True, False])
    rewards, until, discounts = data.n_step(0.8, n)
    next_values = torch.as_tensor(np.random.default_rng(1).normal(size=len(data)))
    flags = (torch.as_tensor(data.terminated), torch.as_tensor(data.truncated))
    expected = unstale.targets.n_step(torch.as_tensor(data.rewards), next_values, *flags, gamma=0.8, n=n)
    torch.testing.assert_close(rewards + discounts * next_values[until], expected)


@pytest.mark.parametrize(
    ("freedom", "table"), [(1, 12.706), (2, 4.303), (5, 2.571), (9, 2.262), (30, 2.042), (100, 1.984)]
)
def test_student_quantile(freedom, table):
    assert interval.student_quantile(0.975, freedom) == pytest.approx(table, rel=0.01)


def test_scaled_rewards_and_normalized_values_give_the_same_bellman_error():
    data = episodes([30, 20], [False, True])
    samples = values.state_samples(data, 0.8, 2)
    (network, _) = make_networks(2, 1, Settings(networks=2))
    torch.nn.init.normal_(network.head.weight)
    values.fit_scales(network, samples, data, np.arange(len(data)), 0.8)
    assert float(network.scale) != 1
    from unstale.evaluation.training import _scaled_rewards

    rows = torch.arange(len(data))
    scaled = _scaled_rewards(network, samples) + samples.discounts * samples.next_value(network, rows)
    error = float(network.scale) * (scaled - samples.prediction(network, rows)).detach()
    plain = samples.rewards + samples.discounts * samples.next_values(network) - samples.values(network)
    torch.testing.assert_close(error.double(), plain, rtol=1e-4, atol=1e-4)


def wrong_networks(count: int) -> list[values.ValueNetwork]:
    """Random values, far from any true ones."""
    networks = make_networks(2, 1, Settings(networks=count))
    for network in networks:
        torch.nn.init.normal_(network.head.weight, std=3.0)
    return networks


def test_on_policy_intervals_cover_whatever_the_networks_predict():
    """The estimate is unbiased, and its interval right, also with networks that know nothing."""
    true, covered, runs = walk_values(0.5).mean(), 0, 200
    networks = wrong_networks(4)
    grid = np.stack([2 * np.arange(STATES) / (STATES - 1) - 1, np.ones(STATES)], 1)
    starts = values.start_states(torch.as_tensor(np.tile(grid, (100, 1)), dtype=torch.float32))
    found = []
    for seed in range(runs):
        data = read(log_walk(0.5, 40, seed))
        samples = values.state_samples(data, GAMMA, 1)
        estimates = interval.on_policy(data, samples, networks, starts, GAMMA, 0.9)
        covered += true in estimates.estimate
        found.append(estimates.estimate.value)
    assert abs(np.mean(found) - true) < 4 * np.std(found) / math.sqrt(runs)
    assert abs(covered / runs - 0.9) < 4 * math.sqrt(0.09 / runs) + 0.02


def test_values_narrow_the_interval():
    """Start states explain all returns of a deterministic policy."""
    found = unstale.evaluate("test/Walk-v0", lambda observation: int(observation[0] > -0.75), **TINY | dict(steps=300))
    assert found.estimates.variance_ratio < 0.2
    width = found.monte_carlo.high - found.monte_carlo.low
    assert found.interval[1] - found.interval[0] < width / 2
    assert found.verdict.explained > 0.9


def test_visit_ratios_are_a_fixed_point():
    """``mean w (φ - γ φ')`` is the mean of ``φ`` at the start, for every feature ``φ``."""
    data = read(log_walk(0.4, 200, 0))
    policy = load_policy(lambda observation: 1)
    policy.check(None, Discrete(2))
    samples = values.action_samples(data, policy, GAMMA)
    first = data.features[torch.as_tensor(data.starts)]
    starts = values.start_actions(first, data.observations[data.starts], policy)
    (network, _) = make_networks(2, 2, Settings(networks=2, width=4))
    everything = np.arange(len(data)), np.arange(data.episodes)
    old, interval.RIDGE = interval.RIDGE, 0.0
    try:
        ratios = interval.visit_ratios(network, samples, starts, *everything)
    finally:
        interval.RIDGE = old
    with torch.no_grad():
        hidden, after, at_start = (
            network.hidden(x.float()).double().numpy()
            for x in (data.features, data.next_features, data.features[torch.as_tensor(data.starts)])
        )
    right = (data.actions == 1)[:, None]  # the policy's action
    change = right * hidden - GAMMA * (~data.terminated)[:, None] * after
    np.testing.assert_allclose((ratios[:, None] * change).mean(0), at_start.mean(0), rtol=1e-4, atol=1e-5)


def test_bellman_bias_is_the_worst_sign_of_regional_errors():
    """Errors of opposite sign in two regions cancel in the mean, and not in the bound."""
    predicted = np.linspace(0, 1, 100)
    errors = np.where(predicted < 0.5, 1.0, -1.0)
    assert interval.bellman_bias(predicted, errors, 7.0) == pytest.approx(7.0)
    alternating = np.where(np.arange(100) % 2, 1.0, -1.0)
    assert interval.bellman_bias(predicted, alternating, 7.0) == pytest.approx(0.0)


@pytest.mark.parametrize("options", [dict(), dict(mode="stream", episodes=150), dict(n_step=3)], ids=str)
def test_value_of_the_random_walk(options):
    found = unstale.evaluate("test/Walk-v0", "random", **TINY | options)
    true = walk_values(0.5).mean()
    low, high = found.interval
    assert abs(found.value - true) < 3 * (high - low)
    assert found.kind == "V" and found.verdict.belief in ("high", "medium")
    assert np.mean(found.estimates.networks) == pytest.approx(true, abs=0.15)
    assert len(found.history.estimates) == len(found.history.steps)


def test_value_of_another_policy():
    found = unstale.evaluate(log_walk(0.5, 150, 0), lambda observation: 1, **TINY | dict(steps=300, networks=2))
    true = walk_values(1.0).mean()
    assert found.kind == "Q" and math.isnan(found.monte_carlo.value)
    assert found.value == pytest.approx(true, abs=0.15) and true in found.estimates.estimate
    assert found.estimates.overlap == pytest.approx(0.5, abs=0.1)
    logged = unstale.evaluate(log_walk(0.5, 150, 0), "logged", **TINY)
    assert logged.value == pytest.approx(walk_values(0.5).mean(), abs=0.1)


def test_continuous_actions():
    options = TINY | dict(gamma=0.8, networks=2, episodes=10)
    found = unstale.evaluate(
        "test/Slide-v0", lambda observation: np.float32([-2.0]) * np.sign(observation[0]), **options
    )
    assert found.value < 0 and found.value in found.estimates.estimate
    generator, rows = np.random.default_rng(0), 300
    states = generator.uniform(-1, 1, (rows, 3)).astype(np.float32)
    actions = generator.uniform(-2, 2, (rows, 1)).astype(np.float32)
    following = np.clip(states + np.array([0.1, 0, 0]) * actions, -2, 2)
    columns = dict(observations=states, actions=actions, rewards=-np.abs(following[:, 0]), next_observations=following)
    columns |= dict(terminated=np.zeros(rows, bool), truncated=np.arange(rows) % 10 == 9)
    other = unstale.evaluate(columns, "random", env="test/Slide-v0", **options)
    assert other.kind == "Q" and other.monte_carlo.value < 0


def test_time_limits_bootstrap():
    """A walk that is cut off early has the value of the whole walk."""
    options = TINY | dict(episodes=300, steps=400, networks=2)
    found = unstale.evaluate("test/Walk-v0", "random", time_limit=2, **options)
    true = walk_values(0.5).mean()
    assert found.value == pytest.approx(true, abs=0.08)
    assert found.estimates.realised.size < found.transitions


def test_value_of_the_next_reward():
    """Without bootstrapping the value is the mean reward of the first step."""
    found = unstale.evaluate("test/Walk-v0", lambda observation: 1, **TINY | dict(gamma=0.0, episodes=200))
    assert 1 / STATES in found.estimates.estimate


@pytest.mark.parametrize("action", [1, 1.0, np.float64(1)], ids=repr)
def test_discrete_actions_of_any_type(action):
    found = unstale.evaluate("test/Walk-v0", lambda observation: action, **TINY | dict(steps=10))
    assert found.value == pytest.approx(walk_values(1.0).mean(), abs=0.1)


def test_continuous_actions_in_double_precision():
    found = unstale.evaluate("test/Slide-v0", lambda observation: np.array([0.5]), **TINY | dict(steps=10))
    assert found.value < 0


def test_stream_of_fewer_transitions_than_a_batch():
    """The networks leave out episodes of different lengths, and have batches of one size."""
    data = episodes([2, 3, 4, 1], [False] * 4)
    columns = {name: getattr(data, name) for name in ("observations", "actions", "rewards", "next_observations")}
    columns |= dict(terminated=data.terminated)
    found = unstale.evaluate(columns, "logged", gamma=GAMMA, mode="stream", batch=16, networks=2, width=4)
    assert found.history.steps == [1] and found.history.samples == [4]
    assert math.isnan(found.verdict.moved) and not found.verdict.converged


def test_short_stream_has_not_converged():
    """The estimate is flat after few updates, because the learning rate is annealed."""
    found = unstale.evaluate("test/Walk-v0", "random", **TINY | dict(mode="stream", batch=64))
    updates = found.history.steps[-1]
    assert updates < MIN_UPDATES and not found.verdict.converged
    assert f"converged                   no ({updates} updates, fewer than 200)" in found.summary()
    (reason,) = (reason for reason in found.verdict.reasons if "converged" in reason)
    assert reason.endswith("raise --episodes, lower --batch or use --mode replay") and "--steps" not in reason


FLAT, NOISE = np.ones(40), np.random.default_rng(0).normal(0, 0.005, 40)


@pytest.mark.parametrize(
    ("curve", "updates", "lr", "evidence"),
    [
        (FLAT, 2000, 0.01, True),
        (FLAT + NOISE, 2000, 0.01, True),
        (FLAT - 0.5 ** np.arange(1, 41), 2000, 0.01, True),
        (FLAT, 199, 0.1, "199 updates, fewer than 200"),
        (FLAT, 2000, 1e-5, "learning rates sum to 0.01, less than 1"),
        (np.linspace(0.9, 1, 40), 2000, 0.01, "moved by 5.1% in the last three quarters of training"),
        # A constant speed per learning rate: the last two quarters alone differ by less than the bound.
        (1 - 0.12 * (1 - np.linspace(0.025, 1, 40)) ** 2, 2000, 0.01, "moved by 4."),
    ],
)
def test_convergence_needs_updates_and_a_flat_curve(curve, updates, lr, evidence):
    estimate = interval.Interval(1.0, 0.9, 1.1)
    nan, returns = math.nan, np.ones(2)
    found = interval.Estimates(estimate, estimate, [1.0, 1.0], 1.0, returns, returns, nan, nan, nan, 0.0)
    history = History(steps=[updates], estimates=[[value, value] for value in curve])
    settings = Settings(networks=2, steps=updates, lr=lr)
    verdict = judge(episodes([3] * 40, [False] * 40), found, estimate, history, settings, GAMMA, False)
    if evidence is True:
        assert verdict.converged and verdict.moved < MAX_MOVE
    else:
        assert not verdict.converged and verdict.evidence.startswith(evidence)
        assert any("raise --" in reason for reason in verdict.reasons)


class Corridor(gymnasium.Env):
    """Numbered states in a row; 1 moves right and 0 left, from the middle. The right end pays 1."""

    observation_space, action_space = gymnasium.spaces.Discrete(5), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._state = 2
        return self._state, {}

    def step(self, action):
        self._state += 1 if action else -1
        return self._state, float(self._state == 4), self._state in (0, 4), False, {}


def test_monte_carlo_beside_data_that_misses_the_policy():
    """The data never goes right; states that it does not have are known from the environment."""
    states = np.array([2, 1] * 20)
    columns = dict(observations=states, next_observations=states - 1, actions=np.zeros(40, int), rewards=np.zeros(40))
    columns |= dict(terminated=states == 1)
    found = unstale.evaluate(columns, lambda observation: 1, env=Corridor, **TINY)
    assert found.monte_carlo.value == pytest.approx(GAMMA) and found.monte_carlo.value not in found.estimates.estimate
    assert found.networks[0].mean.shape == (5,)
    assert found.verdict.belief == "low" and found.verdict.bias == pytest.approx(-GAMMA, abs=0.2)
    assert any("Monte Carlo gives 0.9" in reason for reason in found.verdict.reasons)
    assert any("probability of 0%" in reason for reason in found.verdict.reasons)


def test_undiscounted_values_need_terminations():
    assert unstale.evaluate("test/Walk-v0", "random", **TINY | dict(gamma=1.0)).value == pytest.approx(0.5, abs=0.3)
    with pytest.raises(EvaluationError, match="--gamma below 1"):
        unstale.evaluate("test/Slide-v0", "random", **TINY | dict(gamma=1.0))


def test_same_seed_same_result():
    first, second = (unstale.evaluate("test/Walk-v0", "random", **TINY | dict(seed=3, steps=20)) for _ in range(2))
    assert first.value == second.value and first.estimates.networks == second.estimates.networks
    assert unstale.evaluate("test/Walk-v0", "random", **TINY | dict(seed=4, steps=20)).value != first.value
