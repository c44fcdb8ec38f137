"""Comparisons of two methods, at the learning rates at which neither diverges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ..analysis import statistics
from ..analysis.formatting import label, listed
from ..analysis.run_table import RunTable
from ..analysis.statistics import (
    MAX_LOG_RATIO,
    Array,
    Comparison,
    clip_errors,
    compare,
    holm,
    one_sample_t_test,
    seed_log_ratios,
)

RESAMPLES = statistics.RESAMPLES
TINY = np.finfo(float).tiny
SIGNIFICANCE_LEVEL = 0.05
EQUIVALENCE_MARGIN = 1.15  # a factor; see ``judging``
MAX_DIVERGENCE_RATE = 0.25  # of each method, where errors are compared
MOSTLY_DIVERGED = 0.75  # the share of runs that diverge in a setting in which a method is said to diverge
MUCH = 1.5  # the smallest ratio that "much better" or "much slower" may mean


@dataclass(frozen=True)
class Instability:
    """Learning rates at which a method diverges."""

    line: str
    where: str  # "α = 0.5"; empty if there is one learning rate only
    diverged: int
    runs: int
    levels: tuple[float, ...]  # the learning rates


@dataclass(frozen=True)
class Exceptions:
    """Settings in which two methods differ by a factor of ``MUCH`` or more, which the typical ratio can hide.

    If one of the two diverges in more than ``MOSTLY_DIVERGED`` of its runs in a setting, and the other one in at most
    ``MAX_DIVERGENCE_RATE``, the ratio is infinite.
    """

    lower: int = 0  # settings in which ``a`` has an error that is much lower
    higher: int = 0
    lowest: float = 1.0  # ratio in a setting
    highest: float = 1.0
    of: int = 0  # settings

    def inverted(self) -> Exceptions:
        lowest, highest = (1 / ratio if ratio else float("inf") for ratio in (self.highest, self.lowest))
        return Exceptions(self.higher, self.lower, lowest, highest, self.of)


@dataclass(frozen=True)
class Contrast:
    """Two methods, compared at the learning rates at which neither diverges."""

    a: str
    b: str
    comparison: Comparison | None  # None if there is no such learning rate
    direction: float  # mean over seeds of the log ratio that is tested
    seeds: int
    where: str  # these learning rates, "α ≤ 0.1"; empty if all are
    instabilities: tuple[Instability, ...] = ()
    exceptions: Exceptions = Exceptions()

    def diverges(self, line: str) -> bool:
        """Return whether this one of the two methods diverges at some learning rate."""
        return any(each.line == line for each in self.instabilities)

    @property
    def less_stable(self) -> str:
        """The method that diverges wherever the other one does, and at further learning rates; empty if neither."""
        a, b = self._unstable_levels(self.a), self._unstable_levels(self.b)
        return self.a if a > b else self.b if b > a else ""

    @property
    def is_equally_stable(self) -> bool:
        """Whether both methods diverge at the same learning rates, if at all."""
        return self._unstable_levels(self.a) == self._unstable_levels(self.b)

    def _unstable_levels(self, line: str) -> set[float]:
        return {level for each in self.instabilities if each.line == line for level in each.levels}

    @property
    def ratio(self) -> float:
        """The typical ratio of the errors of ``a`` to those of ``b``."""
        assert self.comparison is not None
        return self.comparison.ratio

    @property
    def is_found(self) -> bool:
        """Whether the test finds a difference of the sign of the typical ratio."""
        c = self.comparison
        return c is not None and c.p_holm < SIGNIFICANCE_LEVEL and self.direction * np.log(c.ratio) > 0

    def is_equivalent(self, margin: float = EQUIVALENCE_MARGIN) -> bool:
        """Return whether the interval of the ratio lies within the margin, a factor."""
        if self.comparison is None:
            return False
        low, high = self.comparison.interval
        return low >= 1 / margin and high <= margin

    @property
    def is_uniform(self) -> bool:
        """Whether the methods differ much in no setting, and diverge at the same learning rates, if at all."""
        return not self.exceptions.lower and not self.exceptions.higher and self.is_equally_stable

    def inverted(self) -> Contrast:
        """Return the comparison of ``b`` with ``a``."""
        c = self.comparison
        if c is not None:
            low, high = c.interval
            c = replace(
                c,
                a=c.b,
                b=c.a,
                ratio=1 / c.ratio,
                interval=(1 / high, 1 / low),
                improvement=1 - c.improvement,
                iqm_a=c.iqm_b,
                iqm_b=c.iqm_a,
                diverged_a=c.diverged_b,
                diverged_b=c.diverged_a,
            )
        exceptions = self.exceptions.inverted()
        return replace(self, a=self.b, b=self.a, comparison=c, direction=-self.direction, exceptions=exceptions)


def compare_pairs(
    errors: Mapping[str, Array],
    pairs: Iterable[tuple[str, str]],
    worst_error: float,
    levels: Sequence[Any] | None = None,
    symbol: str = "α",
) -> list[Contrast]:
    """Compare each pair of lines, with Holm's correction over all of them: of errors, and of shares of diverged runs.

    Args:
        errors: ``[settings, seeds]`` per line; ``inf`` for diverged runs.
        pairs: keys of ``errors``.
        worst_error: what a diverged run counts as, at learning rates at which errors are compared.
        levels: the learning rate of each setting; if not given, all settings are one level.
        symbol: of the levels.
    """
    pairs = list(pairs)
    if not pairs:
        return []
    settings = len(errors[pairs[0][0]])
    of = np.zeros(settings) if levels is None else np.asarray(levels, dtype=float)
    unstable = _unstable_lines(errors, pairs, of)
    found = [
        _contrast(errors, *pair, worst_error, of, symbol, lines) for pair, lines in zip(pairs, unstable, strict=True)
    ]
    return holm_corrected(found)[0]


def compare_quantity(
    quantity: str,
    values: Mapping[str, Array],
    pairs: Iterable[tuple[str, str]],
    worst: float,
    levels: Sequence[Any] | None = None,
) -> list[Contrast]:
    """Compare pairs of methods as ``compare_pairs`` does, by names such as "drift of μ̂"."""
    names = {method: f"{quantity} of {label(method)}" for method in values}
    named_values = {names[method]: array for method, array in values.items()}
    return compare_pairs(named_values, [(names[a], names[b]) for a, b in pairs], worst, levels)


def compare_methods(table: RunTable, pairs: Iterable[tuple[str, str]], curve: str = "evaluation") -> list[Contrast]:
    """Compare the final errors of pairs of methods; learning rates at which one diverges are judged apart."""
    return compare_pairs(table.final(curve), pairs, table.worst_error(curve), *learning_rates(table))


def learning_rates(table: RunTable) -> tuple[list[float], str]:
    """Return the learning rate of each setting and its symbol: ``α / (1-β)`` for undamped momentum."""
    is_damped = all(setting.damped for setting in table.settings)
    rates = [s.alpha if s.damped else float(f"{s.alpha / (1 - s.beta):.6g}") for s in table.settings]
    return rates, "α" if is_damped else "α / (1-β)"


def _contrast(
    errors: Mapping[str, Array],
    a: str,
    b: str,
    worst_error: float,
    of: NDArray[np.float64],
    symbol: str,
    unstable: Mapping[float, Sequence[str]],
) -> Contrast:
    """Compare two lines, given the level of each setting and what diverges at each level."""
    values = np.unique(of).tolist()
    seeds = np.asarray(errors[a]).shape[1]
    is_stable = np.ones(len(of), dtype=bool)
    instabilities = []
    diverged_runs = {line: np.isinf(np.asarray(errors[line], dtype=float)) for line in (a, b)}
    for line in (a, b):
        is_diverged = diverged_runs[line]
        bad = [value for value in values if line in unstable[value]]
        is_bad = np.isin(of, bad)
        is_stable &= ~is_bad
        if bad:
            where = format_levels(symbol, bad, values)
            diverged, runs = int(is_diverged[is_bad].sum()), int(is_bad.sum()) * seeds
            instabilities.append(Instability(line, where, diverged, runs, tuple(bad)))
    if not is_stable.any():
        return Contrast(a, b, None, 0.0, seeds, "", tuple(instabilities))
    kept = {line: clip_errors(np.asarray(errors[line], dtype=float)[is_stable], worst_error) for line in (a, b)}
    comparison = compare(
        a, np.asarray(errors[a])[is_stable], b, np.asarray(errors[b])[is_stable], worst_error, RESAMPLES
    )
    direction = float(seed_log_ratios(kept[a], kept[b]).mean())
    where = "" if is_stable.all() else format_levels(symbol, np.unique(of[is_stable]).tolist(), values)
    exceptions = _exceptions(kept[a], kept[b], *(diverged_runs[line][is_stable].mean(axis=1) for line in (a, b)))
    return Contrast(a, b, comparison, direction, seeds, where, tuple(instabilities), exceptions)


def _unstable_lines(
    errors: Mapping[str, Array], pairs: Sequence[tuple[str, str]], of: NDArray[np.float64]
) -> list[dict[float, list[str]]]:
    """Return, for each pair and each level, which of the two diverge: in more than ``MAX_DIVERGENCE_RATE`` of runs.

    One alone does only if it does so significantly more often than the other one: by a t-test over seeds, with Holm's
    correction over all pairs and levels at which a run diverged.
    """
    diverged = {line: np.isinf(np.asarray(errors[line], dtype=float)) for pair in pairs for line in pair}
    levels = {value: of == value for value in np.unique(of).tolist()}
    unstable = [
        {
            value: [line for line in pair if diverged[line][is_level].mean() > MAX_DIVERGENCE_RATE]
            for value, is_level in levels.items()
        }
        for pair in pairs
    ]
    tested, ps = [], []
    for i, pair in enumerate(pairs):
        for value, is_level in levels.items():
            a, b = (diverged[line][is_level] for line in pair)
            if (a | b).any():  # this does not depend on which of the two diverges more often
                tested.append((i, value))
                ps.append(one_sample_t_test(a.mean(axis=0) - b.mean(axis=0)))
    for (i, value), p in zip(tested, holm(ps), strict=True):
        if len(unstable[i][value]) == 1 and p >= SIGNIFICANCE_LEVEL:
            unstable[i][value] = []
    return unstable


def _exceptions(a: Array, b: Array, a_diverged: Array, b_diverged: Array) -> Exceptions:
    """Return the settings in which one of the two diverges, or whose ratio is certainly (95 %) beyond ``MUCH``.

    The ratio is the geometric mean over seeds. With many settings, one in twenty of those with a ratio of about
    ``MUCH`` is counted by chance.

    Args:
        a: errors ``[settings, seeds]``.
        b: the same.
        a_diverged: the share of diverged runs of ``a``, ``[settings]``.
        b_diverged: the same of ``b``.
    """
    settings, seeds = a.shape
    if settings < 2 or seeds < 2:
        return Exceptions()
    ratios = np.log(np.maximum(a, TINY)) - np.log(np.maximum(b, TINY))
    means = np.clip(ratios.mean(axis=1), -MAX_LOG_RATIO, MAX_LOG_RATIO)
    half_width = stats.t.ppf(0.5 + statistics.CONFIDENCE / 2, seeds - 1) * ratios.std(axis=1, ddof=1) / np.sqrt(seeds)
    means = np.where((a_diverged > MOSTLY_DIVERGED) & (b_diverged <= MAX_DIVERGENCE_RATE), np.inf, means)
    means = np.where((b_diverged > MOSTLY_DIVERGED) & (a_diverged <= MAX_DIVERGENCE_RATE), -np.inf, means)
    lower, higher = means[means + half_width < -np.log(MUCH)], means[means - half_width > np.log(MUCH)]
    lowest, highest = float(np.exp(lower.min(initial=0))), float(np.exp(higher.max(initial=0)))
    return Exceptions(len(lower), len(higher), lowest, highest, settings)


def format_levels(symbol: str, chosen: Sequence[float], values: Sequence[float]) -> str:
    """Describe some of the values of a hyper-parameter.

    >>> format_levels("α", [0.05, 0.1], [0.05, 0.1, 0.5]), format_levels("α", [0.05], [0.05, 0.1])
    ('α ≤ 0.1', 'α = 0.05')
    >>> format_levels("α", [0.1, 0.5], [0.05, 0.1, 0.5]), format_levels("α", [0.05, 0.5], [0.05, 0.1, 0.5])
    ('α ≥ 0.1', 'α = 0.05 and 0.5')
    >>> format_levels("α", [0.1, 0.5], [0.1, 0.5])
    'every α'
    """
    chosen, values = sorted(chosen), sorted(values)
    if chosen == values:
        return f"every {symbol}" if len(values) > 1 else ""
    if len(chosen) > 1 and chosen == values[: len(chosen)]:
        return f"{symbol} ≤ {chosen[-1]:g}"
    if len(chosen) > 1 and chosen == values[-len(chosen) :]:
        return f"{symbol} ≥ {chosen[0]:g}"
    return f"{symbol} = {listed(f'{value:g}' for value in chosen)}"


def at(where: str) -> str:
    """Return where errors are compared, or where a method diverges, as the end of a clause."""
    return f" at {where}" if where else ""


def holm_corrected(contrasts: Sequence[Contrast], *other_ps: float) -> tuple[list[Contrast], list[float]]:
    """Apply Holm's correction over all tests of a verdict: separate comparisons and p-values of other tests."""
    compared = [contrast for contrast in contrasts if contrast.comparison is not None]
    ps = holm([*(c.comparison.p_paired for c in compared if c.comparison), *other_ps])
    corrected = dict(zip(map(id, compared), ps, strict=False))
    return [
        replace(c, comparison=replace(c.comparison, p_holm=corrected[id(c)])) if c.comparison else c for c in contrasts
    ], ps[len(compared) :]
