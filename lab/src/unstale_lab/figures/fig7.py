"""Figure 7: the runs of figure 6, errors over the drift of target values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..analysis.curves import MSE, series_with_band
from ..analysis.formatting import describe_iqm, format_briefly, format_estimate, format_number, label, listed
from ..analysis.panels import Panel, Series
from ..analysis.run_table import RunTable, select, tabulate
from ..analysis.statistics import Array, iqm
from ..analysis.trends import MIN_LEVELS, by_level, rank_correlations
from ..claims.judging import confidence_interval, decide, make_verdict
from ..claims.sentences import two_decimals
from ..claims.verdict import Effect, Part, Reading, Verdict
from ..records import Record
from .fig6 import FIGURE as FIGURE_6
from .fig6 import METHODS, SETTINGS
from .figure import Figure
from .shared.readings import ERROR_CURVES, by_reading, each_reading, titled


def panels(records: Sequence[Record]) -> list[Panel]:
    """Return, for each reading, all settings together, as in the paper; then one panel per grid and learning rate."""
    groups = by_reading(records)
    first = [
        _panel(titled("Figure 7 (IQM)", reading), select(group, method=METHODS), reading)
        for reading, group in groups.items()
    ]
    grids, rates = (sorted({getattr(record.run, field) for record in records}) for field in ("rbf_grid", "alpha"))
    further = [
        _panel(titled(f"{grid} x {grid} grid, α = {rate:g}", reading), some, reading)
        for reading, group in groups.items()
        for grid, rate in product(grids, rates)
        if (some := select(group, rbf_grid=grid, alpha=rate))
    ]
    return [*first, *further]


def _panel(title: str, records: Sequence[Record], reading: Reading) -> Panel:
    lines = _lines(records, ERROR_CURVES[reading])
    return Panel(title, "mean drift of target values", MSE, lines, log_x=True, log_y=True)


def _lines(records: Sequence[Record], curve: str) -> list[Series]:
    """Return one line per method over σ²."""
    table = tabulate(records)
    errors, drifts = table.final(curve), table.mean_over("drift")
    lines = []
    for method in errors:
        drift, error = (by_level(table, values[method], "rbf_width") for values in (drifts, errors))
        x = iqm(drift)
        is_finite = np.isfinite(x)  # infinite if too many runs diverged
        counts: dict[str, Any] = {"method": method, "runs": error.size, "diverged": int(np.isinf(error).sum())}
        if is_finite.any():
            lines.append(series_with_band(method, x[is_finite], error[is_finite], iqm, **counts))
        else:  # an empty line, so that the legend shows the divergences
            lines.append(Series(method, [], [], **counts))
    return lines


def _verdict(records: Sequence[Record], reading: Reading) -> Verdict:
    """Judge the correlation over σ² of drift and error, each averaged over grids, learning rates and seeds, as drawn.

    Values of σ² at which too many runs diverged have no finite average and are left out. The notes have the rank
    correlation within each setting and seed, which says something else.
    """
    selected = select(records, method=METHODS)
    table = tabulate(selected)
    errors, drifts = table.final(ERROR_CURVES[reading]), table.mean_over("drift")
    parts, correlations = [], []
    for method in METHODS:
        both = np.stack([by_level(table, values[method], "rbf_width") for values in (drifts, errors)])
        parts.append(_correlation(method, both))
        correlations.append(_describe_correlation(method, parts[-1].effect, np.isfinite(iqm(both)).all(axis=0)))
    diverged = sum(record.diverged_at is not None for record in selected)
    notes = [
        f"{diverged} of {len(selected):,} runs diverged." if diverged else "",
        _describe_within(table, drifts, errors),
        describe_iqm(drifts, "Mean drift (IQM)"),
    ]
    why = f"Over kernel widths, the correlation of drift and error is {listed(correlations)}."
    return make_verdict(8, why, parts, selected, " ".join(filter(None, notes)), reading)


def _describe_correlation(method: str, effect: Effect | None, is_finite: NDArray[np.bool_]) -> str:
    """Describe a correlation, and over how many of the widths it is if some are left out."""
    if effect is None:
        return f"undefined ({label(method)})"
    widths = "" if is_finite.all() else f", {is_finite.sum()} of {len(is_finite)} widths"
    return f"{two_decimals(effect.value)} ({label(method)}{widths})"


def _correlation(method: str, both: Array) -> Part:
    """Judge whether drift and error ``[2, levels, settings, seeds]`` rise together: the interval is above 0."""
    statement = f"drift and error of {label(method)} rise together"
    value, interval = float(line_correlation(both)), confidence_interval(line_correlation, both)
    if np.isnan(value):
        return Part(statement, "undecided", "too few values of σ² at which errors are finite and differ")
    quantity = f"log-log correlation over σ² of {label(method)}"
    answer = "undecided" if interval[0] <= 0 <= interval[1] else decide(value > 0, both.shape[-1])
    found = f"{quantity} {format_estimate(value, interval)}"
    effect = Effect(quantity, value, interval, is_ratio=False)
    return Part(statement, answer, found, effect=effect, brief=f"correlation {format_briefly(value, interval)}")


def line_correlation(both: Array) -> Array:
    """Return Pearson's correlation over levels of the logarithms of interquartile means.

    Levels at which one of the two is infinite are left out. The correlation is NaN if fewer than 3 are left, or if one
    of the two is constant.

    Args:
        both: ``[..., 2, levels, settings, seeds]``.

    Returns:
        ``[...]``
    """
    means = iqm(both)
    is_finite = np.isfinite(means).all(axis=-2, keepdims=True)
    count = is_finite.sum(-1, keepdims=True)
    logs = np.log(np.maximum(np.where(is_finite, means, 1.0), np.finfo(float).tiny))
    centred = np.where(is_finite, logs - logs.sum(-1, keepdims=True) / np.maximum(count, 1), 0.0)
    x, y = np.moveaxis(centred, -2, 0)
    spread = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    is_defined = (spread > 0) & (count[..., 0, 0] >= MIN_LEVELS)
    return np.divide((x * y).sum(-1), spread, out=np.full_like(spread, np.nan), where=is_defined)


def _describe_within(table: RunTable, drifts: dict[str, Array], errors: dict[str, Array]) -> str:
    texts = []
    for method in METHODS:
        drift, error = (by_level(table, values[method], "rbf_width") for values in (drifts, errors))
        texts.append(f"{label(method)} {format_number(float(rank_correlations(drift, error).mean()))}")
    return f"Mean rank correlation over σ² within each setting and seed: {', '.join(texts)}."


FIGURE = Figure(
    name="fig7",
    title="Error over the drift of target values",
    claims=(8,),
    settings=SETTINGS,
    runs=FIGURE_6.runs,
    panels=panels,
    judge=each_reading(_verdict),
)
