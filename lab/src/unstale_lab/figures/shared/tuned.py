"""Comparison of tuned contestants: some seeds select the hyper-parameters, others are reported.

The *final error* of a run is the mean of its curve over the last tenth of training, ``inf`` if it diverged. Tuning
seeds select the setting (α and β) with the lowest mean final error. Test seeds then give errors without selection bias.

Ratios are geometric means over seeds of paired final errors, with t-intervals and t-tests on their logarithms; a
diverged run counts as ``worst_error``, the largest finite error of its problem, the one before the first step included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ...analysis.curves import mean
from ...analysis.run_table import tabulate
from ...analysis.statistics import CONFIDENCE, Array, bootstrap, clip_errors, paired_t_test, seed_log_ratios
from ...claims.contrast import SIGNIFICANCE_LEVEL
from ...claims.judging import MIN_SEEDS
from ...records import Record

CURVE = "evaluation"
FINAL_SHARE = 0.1  # of the training, over which the final error is averaged
TUNING_SEEDS = frozenset(range(5))

Setting = tuple[float, float]  # α, β


@dataclass(frozen=True)
class Sweep:
    """The runs of one contestant on one problem: errors by setting and seed."""

    settings: list[Setting]
    seeds: list[int]
    at: Array  # steps of the measurements
    curves: Array  # [points, settings, seeds]
    final: Array  # [settings, seeds]
    area: Array  # [settings, seeds]: the mean error over the whole training, without step 0

    @property
    def is_tuning(self) -> NDArray[np.bool_]:
        """Which seeds select the setting."""
        return np.array([seed in TUNING_SEEDS for seed in self.seeds], dtype=bool)

    @property
    def test_final(self) -> Array:
        """Final errors of the test seeds, ``[settings, seeds]``."""
        return self.final[:, ~self.is_tuning]


def sweep(records: Sequence[Record]) -> Sweep:
    """Arrange the runs of one contestant on one problem."""
    table = tabulate(records)
    ((line, rows),) = table.records.items()
    return Sweep(
        settings=[(setting.alpha, setting.beta) for setting in table.settings],
        seeds=[record.run.seed for record in rows[0]],
        at=table.at,
        curves=table.curves(CURVE)[line],
        final=table.mean_over(CURVE, start=1 - FINAL_SHARE)[line],
        area=table.mean_over(CURVE)[line],
    )


@dataclass(frozen=True)
class Tuned:
    """A contestant at its selected setting, on the test seeds."""

    alpha: float
    beta: float
    is_at_range_end: bool  # α is the smallest or largest that was tried
    at: Array  # steps of the measurements
    curves: Array  # [points, seeds]
    final: Array  # [seeds]
    area: Array  # [seeds]
    grid_runs: int  # in all settings
    grid_diverged: int

    @property
    def diverged(self) -> int:
        """Number of diverged test runs."""
        return int(np.isinf(self.final).sum())


def select_setting(errors: Array) -> int:
    """Return the index of the setting with the lowest mean of ``errors [settings, seeds]``.

    If every setting has diverged runs, the one with the fewest is best, and among those the lowest mean of the others.

    >>> select_setting(np.array([[1.0, 9.0], [2.0, 3.0], [0.1, np.inf]]))
    1
    """
    diverged = np.isinf(errors).sum(1)
    finite = np.where(np.isinf(errors), 0.0, errors).sum(1) / np.maximum(1, errors.shape[1] - diverged)
    return int(np.lexsort((finite, diverged))[0])


def tune(runs: Sweep) -> Tuned:
    """Select a setting on the tuning seeds, and return its runs on the test seeds.

    Raises:
        ValueError: if there are several settings but no tuning seeds, or no test seeds.
    """
    tuning, test = runs.is_tuning, ~runs.is_tuning
    if not test.any() or (len(runs.settings) > 1 and not tuning.any()):
        raise ValueError(f"seeds {runs.seeds}: some must be tuning seeds ({sorted(TUNING_SEEDS)}), others test seeds")
    chosen = select_setting(runs.final[:, tuning]) if len(runs.settings) > 1 else 0
    alpha, beta = runs.settings[chosen]
    rates = {rate for rate, _ in runs.settings}
    return Tuned(
        alpha=alpha,
        beta=beta,
        is_at_range_end=len(rates) > 1 and alpha in (min(rates), max(rates)),
        at=runs.at,
        curves=runs.curves[:, chosen, test],
        final=runs.final[chosen, test],
        area=runs.area[chosen, test],
        grid_runs=runs.final.size,
        grid_diverged=int(np.isinf(runs.final).sum()),
    )


def mean_interval(errors: Array) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean of ``errors [seeds]``."""
    low, high = bootstrap(mean, errors[None, :])
    return float(low), float(high)


@dataclass(frozen=True)
class Ratio:
    """Ratio of two contestants' final errors, paired by seed."""

    value: float  # geometric mean; below 1 if the first has the lower errors
    interval: tuple[float, float]
    p: float  # of the paired t-test on the log ratios
    seeds: int

    @property
    def is_significant(self) -> bool:
        """Whether the ratio differs from 1, with enough seeds."""
        return self.p < SIGNIFICANCE_LEVEL and self.seeds >= MIN_SEEDS


def ratio(a: Array, b: Array, worst_error: float) -> Ratio:
    """Compare the errors ``[seeds]`` of two contestants, paired by seed.

    >>> found = ratio(np.array([1.0, 2.0, 4.0]), np.array([2.0, 4.0, 8.0]), worst_error=10.0)
    >>> round(found.value, 12), found.seeds
    (0.5, 3)
    """
    clipped = [clip_errors(errors[None, :], worst_error) for errors in (a, b)]
    logs = seed_log_ratios(*clipped)
    return Ratio(float(np.exp(logs.mean())), _interval(logs), paired_t_test(*clipped), len(logs))


def _interval(logs: Array) -> tuple[float, float]:
    """Return the t-interval of the geometric mean; a point if there is one seed."""
    if len(logs) < 2:
        return float(np.exp(logs.mean())), float(np.exp(logs.mean()))
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    return float(np.exp(logs.mean() - half)), float(np.exp(logs.mean() + half))


def worst_error(sweeps: Sequence[Sweep]) -> float:
    """Return what a diverged run counts as: the largest finite final error, or error before the first step."""
    arrays = [array for runs in sweeps for array in (runs.curves[0], runs.final)]
    return max(float(array[np.isfinite(array)].max(initial=0.0)) for array in arrays)


@dataclass(frozen=True)
class Cell:
    """A corrected and an uncorrected optimizer at the same α and β, on the test seeds."""

    alpha: float
    beta: float
    ratio: Ratio

    @property
    def is_worse(self) -> bool:
        """Whether the corrected one has significantly larger errors, without correction for multiple tests."""
        return self.ratio.value > 1 and self.ratio.is_significant

    @property
    def is_better(self) -> bool:
        """Whether the corrected one has significantly smaller errors, without correction for multiple tests."""
        return self.ratio.value < 1 and self.ratio.is_significant


def matched_cells(corrected: Sweep, uncorrected: Sweep, worst_error: float) -> list[Cell]:
    """Compare at every setting that both have and at which no uncorrected test run diverged, by α and β."""
    ours, theirs = (dict(zip(runs.settings, runs.test_final, strict=True)) for runs in (corrected, uncorrected))
    shared = sorted(setting for setting in ours.keys() & theirs.keys() if np.isfinite(theirs[setting]).all())
    return [Cell(*setting, ratio(ours[setting], theirs[setting], worst_error)) for setting in shared]
