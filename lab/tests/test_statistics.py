"""Statistics against results by hand, by simulation, or from scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unstale_lab.analysis import statistics
from unstale_lab.analysis.statistics import (
    best_setting,
    bootstrap,
    clip_errors,
    compare,
    divergence_rate,
    holm,
    iqm,
    one_sample_t_test,
    paired_t_test,
    probability_of_improvement,
    seed_log_ratios,
    typical_ratio,
    welch_t_test,
)

inf = math.inf
# Mean 16.625, median 6.5, interquartile mean (2 + 6 + 7 + 8) / 4.
SKEWED = np.array([[7.0, 0, 100, 1], [2, 9, 6, 8]])


def paired_samples(seed, settings=6, seeds=10):
    """Return errors of two methods without a difference, paired by a common factor per setting and seed."""
    draw = np.random.default_rng(seed)
    scale = 10.0 ** np.arange(settings)[:, None]
    common = np.exp(draw.normal(size=(settings, seeds)))
    return (scale * common * np.exp(0.2 * draw.normal(size=(settings, seeds))) for _ in range(2))


# Interquartile mean.


def test_iqm_is_neither_mean_nor_median():
    assert iqm(SKEWED) == 5.75
    assert SKEWED.mean() == 16.625 and np.median(SKEWED) == 6.5


@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 99))
def test_iqm_matches_scipy_trim_mean(settings, seeds, seed):
    errors = np.random.default_rng(seed).exponential(size=(3, settings, seeds))
    expected = [stats.trim_mean(step.ravel(), 0.25) for step in errors]
    np.testing.assert_allclose(iqm(errors), expected, rtol=1e-12)


def test_iqm_is_infinite_beyond_a_quarter_of_diverged_runs():
    assert iqm([[1, 2, 3, 4, 5, 6, inf, inf]]) == 4.5
    assert iqm([[1, 2, 3, 4, 5, inf, inf, inf]]) == inf


# Diverged runs.


def test_clip_errors():
    np.testing.assert_array_equal(clip_errors([[1.0, inf], [2.0, 9.0]], worst_error=5.0), [[1, 5], [2, 5]])


def test_diverged_run_counts_as_worst_error_in_every_comparison():
    diverging = np.array([[0.1, inf, inf, inf, inf, inf]])
    for others in (np.full((1, 6), 0.1), np.full((1, 6), 0.2)):
        comparison = compare("a", diverging, "b", others, worst_error=4.0)
        assert comparison.ratio == pytest.approx(4.0 / others[0, 0])


@pytest.mark.parametrize("use", [welch_t_test, paired_t_test, typical_ratio, lambda a, b: compare("a", a, "b", b)])
def test_diverged_runs_require_worst_error(use):
    with pytest.raises(ValueError, match="some runs diverged: set ``worst_error``"):
        use(np.array([[1.0, inf]]), np.array([[1.0, 2.0]]))


def test_all_runs_diverged():
    a = np.full((2, 3), inf)
    comparison = compare("a", a, "b", a, worst_error=4.0)
    assert (comparison.ratio, comparison.interval) == (1, (1, 1))
    assert (comparison.p_welch, comparison.p_paired, comparison.improvement) == (1, 1, 0.5)
    assert (comparison.iqm_a, comparison.diverged_a, comparison.diverged_b) == (inf, 6, 6)


@pytest.mark.parametrize(
    "diverged, runs, low, high", [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (1, 10, 0.0179, 0.4042)]
)
def test_divergence_rate_has_wilson_interval(diverged, runs, low, high):
    errors = np.ones((2, runs // 2))
    errors.flat[:diverged] = inf
    rate, interval = divergence_rate(errors)
    assert rate == diverged / runs
    assert interval == pytest.approx((low, high), abs=1e-4)


# Effects.


def test_typical_ratio_uses_ratios_within_pairs():
    b = np.array([[1.0, 2, 3, 4], [1000, 2000, 3000, 4000]])
    ratios = np.array([[0.5, 0.5, 0.5, 2], [0.5, 0.5, 2, 2]])  # the middle half: 0.5, 0.5, 0.5, 2
    assert typical_ratio(ratios * b, b) == pytest.approx(0.5**0.75 * 2**0.25)
    assert typical_ratio(b, ratios * b) == pytest.approx(1 / (0.5**0.75 * 2**0.25))
    # Larger in one setting, smaller in the other, and that whatever the scale of the setting.
    opposite = np.array([[2.0] * 4, [0.5] * 4])
    assert typical_ratio(opposite * b, b) == pytest.approx(1)


def test_effect_includes_diverged_runs():
    a, b = np.array([[1.0, inf, inf, inf]]), np.array([[1.0, 2.0, 2.0, 8.0]])
    # The ratios are 1, 8 / 2, 8 / 2 and 8 / 8, of which the middle two are 1 and 4.
    assert compare("a", a, "b", b, worst_error=8.0).ratio == pytest.approx(2)


def test_errors_of_zero():
    assert typical_ratio([[0.0, 0.0]], [[0.0, 0.0]]) == 1
    assert typical_ratio([[0.0, 0.0]], [[1.0, 1.0]]) == pytest.approx(0)


def test_probability_of_improvement_uses_pairs():
    a, b = [[1.0, 10.0, 100.0, 7.0]], [[2.0, 20.0, 200.0, 7.0]]
    assert probability_of_improvement(a, b) == 3.5 / 4
    assert probability_of_improvement(b, a) == 0.5 / 4
    assert probability_of_improvement([[inf, inf, 1.0]], [[inf, 1.0, inf]]) == 0.5


# Tests.


@given(st.integers(0, 99))
def test_welch_matches_scipy(seed):
    a, b = paired_samples(seed)
    assert welch_t_test(a, b) == pytest.approx(stats.ttest_ind(a.ravel(), b.ravel(), equal_var=False).pvalue)


def test_welch_by_hand():
    # Means 2 and 5, both variances 1, three each: t = 3 / √(2/3), and 4 degrees of freedom.
    assert welch_t_test([[1, 2, 3]], [[4, 5, 6]]) == pytest.approx(2 * stats.t.sf(3 / math.sqrt(2 / 3), 4))
    assert compare("a", [[1, 2, 3]], "b", [[4, 5, inf]], worst_error=6.0).p_welch == welch_t_test(
        [[1, 2, 3]], [[4, 5, 6]]
    )


def test_welch_without_variance():
    assert welch_t_test([[1, 1]], [[1, 1]]) == 1
    assert welch_t_test([[1, 1]], [[2, 2]]) == 0
    assert 0 < welch_t_test([[1, 1]], [[1, 2]]) < 1
    assert welch_t_test([[1]], [[2]]) == 1


@pytest.mark.parametrize(
    "a, b, ratios",
    [
        ([[1, 1, 16], [1, 1, 1]], [[2, 4, 1], [4, 4, 4]], [1.5, 2, -1]),
        ([[1, 2, 4]], [[1, 1, 1]], [0, -1, -2]),
        ([[inf, 1, inf], [1, 1, 4]], [[4, 2, inf], [1, 8, 1]], [-0.5, 2, -1]),
        ([[1, 1], [1024, 512]], [[2, 2], [512, 512]], [0, 0.5]),
        ([[1, inf], [1, 1], [1, 1], [1, 1]], [[8, 1], [2, 4], [2, 4], [1, 16]], [1, 2]),
    ],
    ids=["a seed apart", "one setting", "diverged", "settings of different scales", "of four settings the middle two"],
)
def test_paired_is_a_t_test_of_seed_log_ratios(a, b, ratios):
    """``ratios`` are log₂ b / a by hand; a diverged run counts as the largest error."""
    worst_error = max(error for error in np.ravel([a, b]) if error < inf)
    assert compare("a", a, "b", b, worst_error).p_paired == pytest.approx(stats.ttest_1samp(ratios, 0).pvalue)


@given(st.integers(0, 99))
def test_paired_test_matches_reported_effect(seed):
    """The typical pair is lower, but one setting of eight is so much higher that the mean log ratio is positive."""
    a, b = paired_samples(seed, settings=8)
    a = 0.7 * a
    a[0] = 1e6 * b[0]
    comparison = compare("a", a, "b", b, resamples=1)
    assert comparison.ratio < 1 and seed_log_ratios(a, b).mean() < 0 and comparison.p_paired < 0.01
    assert np.log(a / b).mean() > 0


def test_one_sample_t_test_matches_scipy():
    values = np.random.default_rng(0).normal(size=9)
    assert one_sample_t_test(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    assert one_sample_t_test([0.0, 0.0]) == one_sample_t_test([1.0]) == 1


def test_paired_without_differences():
    assert paired_t_test(SKEWED, SKEWED) == 1
    assert compare("a", [[inf, 1.0]], "b", [[inf, 1.0]], worst_error=2.0).p_paired == 1
    assert paired_t_test([[1.0, 2.0], [2.0, 1.0]], [[2.0, 1.0], [1.0, 2.0]]) == 1  # they cancel within each seed


def test_paired_with_one_seed():
    assert paired_t_test([[1.0], [1.0], [1.0]], [[2.0], [3.0], [4.0]]) == 1


def test_paired_with_identical_seeds():
    a, _ = paired_samples(2)
    assert paired_t_test([[1.0, 1.0]], [[2.0, 2.0]]) == 0
    assert paired_t_test([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [[2.0, 4.0, 8.0], [8.0, 4.0, 2.0]]) < 1e-12
    assert paired_t_test(0.8 * a, a) < 1e-12  # all the same but for rounding, and no warning


def test_paired_test_has_more_power_than_welch():
    a, b = paired_samples(1)
    a = 0.8 * a  # six standard errors of the mean log ratio, but little beside the spread between settings
    assert paired_t_test(a, b) < 0.002
    assert welch_t_test(a, b) > 0.05


@pytest.mark.parametrize("test", [welch_t_test, paired_t_test])
def test_p_is_uniform_under_the_null_hypothesis(test):
    # In one setting: pooled over settings of different scales, Welch's test is of the largest alone.
    ps = np.array([test(*paired_samples(seed, settings=1, seeds=20)) for seed in range(300)])
    for level in (0.05, 0.25, 0.5):
        error = 4 * math.sqrt(level * (1 - level) / ps.size)
        # Welch's is of independent samples. These are pairs, so that it finds fewer.
        assert (ps <= level).mean() < level + error
        assert test is welch_t_test or (ps <= level).mean() > level - error


def test_holm_by_hand():
    # Sorted .005, .01, .03, .04 times 4, 3, 2, 1: .02, .03, .06, .04; the last is raised to the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


# Intervals.


def mean(errors):
    return errors.mean(axis=(-2, -1))


def test_bootstrap_keeps_the_weight_of_settings():
    errors = np.array([[1.0] * 5, [100.0] * 5])  # the same whatever seeds are drawn
    assert bootstrap(mean, errors, resamples=50) == (50.5, 50.5)


def test_bootstrap_resamples_whole_seeds():
    seeds = np.random.default_rng(0).normal(size=8)
    assert bootstrap(mean, [seeds, -seeds]) == pytest.approx((0, 0))  # each seed's runs cancel, however often drawn
    assert bootstrap(mean, [seeds, seeds]) == pytest.approx(
        bootstrap(mean, [seeds])
    )  # and a setting more tells nothing new


def test_bootstrap_matches_a_loop(monkeypatch):
    errors = np.random.default_rng(0).exponential(size=(2, 3, 4, 5))
    at_once = bootstrap(iqm, errors, resamples=100, seed=3)
    monkeypatch.setattr(statistics, "MAX_RESAMPLED_ELEMENTS", 7 * errors.size)  # 100 is no multiple of 7
    np.testing.assert_allclose(bootstrap(iqm, errors, resamples=100, seed=3), at_once, rtol=1e-12)
    drawn = np.random.default_rng(3).integers(5, size=(100, 5))
    values = np.sort([iqm(errors[..., columns]) for columns in drawn], axis=0)
    np.testing.assert_allclose(at_once, (values[2], values[97]))


def test_bootstrap_uses_the_same_seeds_for_all_arrays():
    a, b = paired_samples(3)
    ratio = 3.0 * a
    low, high = bootstrap(typical_ratio, ratio, a, resamples=50)
    assert (low, high) == pytest.approx((3, 3))
    low, high = bootstrap(typical_ratio, 3.0 * b, a, resamples=50)
    assert high - low > 0.1


def test_bootstrap_of_a_curve():
    curve = np.random.default_rng(0).exponential(size=(3, 4, 5))
    low, high = bootstrap(iqm, curve, resamples=100, seed=7)
    for step in range(3):
        assert (low[step], high[step]) == pytest.approx(bootstrap(iqm, curve[step], resamples=100, seed=7), rel=1e-12)


def test_bootstrap_is_deterministic():
    errors = np.random.default_rng(0).exponential(size=(2, 8))
    assert bootstrap(iqm, errors, seed=1) == bootstrap(iqm, errors, seed=1) != bootstrap(iqm, errors, seed=2)


def test_bootstrap_of_infinite_values():
    low, high = bootstrap(iqm, [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, inf, inf]], resamples=200)
    assert 1 < low < 4.5 and high == inf


def test_bootstrap_coverage():
    draw = np.random.default_rng(0)
    scale, truth = np.array([[1.0], [10.0], [0.1]]), 3.7  # the mean of the settings' means
    covered = 0
    for trial in range(300):
        errors = scale * draw.exponential(size=(3, 25))
        low, high = bootstrap(mean, errors, resamples=200, seed=trial)
        covered += low <= truth <= high
    # Percentile intervals of 25 skewed draws are a little short of their 95 %.
    assert 0.86 < covered / 300 < 0.97


@pytest.mark.parametrize(("settings", "seeds", "coverage"), [(1, 5, 0.89), (6, 5, 0.84), (6, 10, 0.91)])
def test_coverage_of_ratios_with_few_seeds(settings, seeds, coverage):
    """Intervals of few seeds are too narrow, as docs/laboratory.md says."""
    draw = np.random.default_rng(0)
    covered = 0
    for trial in range(400):
        a, b = np.exp(0.3 * draw.normal(size=(2, settings, seeds)))
        low, high = bootstrap(typical_ratio, a, b, resamples=200, seed=trial)
        covered += low <= 1 <= high
    assert abs(covered / 400 - coverage) < 0.05


def test_bootstrap_requires_paired_arrays():
    with pytest.raises(ValueError, match="different shapes"):
        bootstrap(typical_ratio, np.ones((2, 3)), np.ones((2, 4)))


def test_bootstrap_requires_a_statistic_that_keeps_axes():
    with pytest.raises(ValueError, match="keep the axes"):
        bootstrap(np.mean, SKEWED)


def test_correlated_settings_do_not_inflate_evidence():
    settings, seeds, correlation, trials = 50, 10, 0.1, 300
    found = found_if_independent = covered = 0
    draw = np.random.default_rng(0)
    for trial in range(trials):
        shared, own = draw.normal(size=seeds), draw.normal(size=(settings, seeds))
        ratio = math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own
        a, b = np.exp(ratio), np.ones_like(ratio)
        low, high = bootstrap(typical_ratio, a, b, resamples=200, seed=trial)
        covered += low <= 1 <= high
        found += paired_t_test(a, b) <= 0.05
        found_if_independent += stats.ttest_1samp(ratio.ravel(), 0).pvalue <= 0.05
    assert 0.02 < found / trials < 0.09
    assert found_if_independent / trials == pytest.approx(0.4, abs=0.06)  # as the docstring of ``paired_t_test`` says
    # Percentile intervals of 10 draws are a little short of their 95 %; drawn in each setting alone, they cover 60 %.
    assert 0.85 < covered / trials < 0.97


# Settings.


def test_best_setting_is_evaluated_on_other_seeds():
    errors = np.array([[1.0, 1, 8, 9], [3, 4, 2, 2], [5, 5, 5, 5]])
    chosen, held_out = best_setting(errors)
    assert chosen == (0, 1)
    np.testing.assert_array_equal(held_out, [3, 4, 8, 9])


def test_best_setting_has_no_selection_bias():
    errors = np.random.default_rng(0).exponential(size=(400, 4, 10))
    held_out = np.mean([best_setting(few)[1].mean() for few in errors[:, :, :]])
    chosen_on_all = np.mean([few.mean(axis=1).min() for few in errors])
    assert held_out == pytest.approx(1, abs=0.05)
    assert chosen_on_all < 0.8


def test_best_setting_avoids_divergence():
    errors = np.array([[0.1, inf, 0.1, inf], [2, 2, 2, 2]])
    assert best_setting(errors)[0] == (1, 1)


def test_best_setting_needs_two_seeds():
    with pytest.raises(ValueError, match="2 seeds"):
        best_setting([[1.0], [2.0]])


# All together.


def test_planted_effect_is_found():
    a, b = paired_samples(5, settings=6, seeds=30)
    comparison = compare("less", 0.8 * a, "more", b)
    assert comparison.ratio == pytest.approx(0.8, abs=0.05)
    assert comparison.interval[0] < 0.8 < comparison.interval[1] < 1
    assert comparison.p_paired == paired_t_test(0.8 * a, b) < 1e-6
    assert comparison.p_welch == welch_t_test(0.8 * a, b)
    # The log ratio is normal, of mean log 0.8 and deviation 0.2 √2.
    assert comparison.improvement == pytest.approx(stats.norm.cdf(-math.log(0.8) / (0.2 * math.sqrt(2))), abs=0.08)
    assert (comparison.a, comparison.b, comparison.pairs) == ("less", "more", 180)
    assert (comparison.iqm_a, comparison.iqm_b) == (iqm(0.8 * a), iqm(b))
    assert (comparison.diverged_a, comparison.diverged_b) == (0, 0)
    assert comparison.p_holm == comparison.p_paired


def test_divergences_increase_the_effect():
    a, b = paired_samples(6)
    a = 0.9 * a
    sound = compare("a", a, "b", b)
    a[:, :3] = inf
    diverging = compare("a", a, "b", b, worst_error=a[a < inf].max())
    assert diverging.diverged_a == 18
    assert diverging.improvement < sound.improvement
    assert diverging.ratio > 1 > sound.ratio


@pytest.mark.parametrize(
    "a, b",
    [
        (np.ones((2, 3)), np.ones((3, 2))),
        (np.ones(3), np.ones(3)),
        (np.ones((0, 3)), np.ones((0, 3))),
        ([[math.nan]], [[1.0]]),
        ([[1.0]], [[-1.0]]),
    ],
)
def test_compare_rejects_unpaired_errors(a, b):
    with pytest.raises(ValueError, match="errors must be"):
        statistics.compare("a", a, "b", b)
