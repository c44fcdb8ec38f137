"""Figure 7: the runs of figure 6, errors over the drift of target values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from ..analysis.curves import MSE, series_with_band
from ..analysis.formatting import describe_iqm, format_estimate, format_number, label
from ..analysis.panels import Panel, Series
from ..analysis.run_table import RunTable, select, tabulate
from ..analysis.statistics import Array, iqm
from ..analysis.trends import by_level, rank_correlations
from ..claims.judging import confidence_interval, decide, make_verdict
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
        _panel(titled("Figure 7", reading), select(group, method=METHODS), reading) for reading, group in groups.items()
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
    """Judge the correlation of drift and error over all settings, on logarithmic scales.

    Diverged runs have no finite drift and are left out, which the notes say. The notes also have the rank correlation
    over σ² within each setting and seed, which says something else.
    """
    selected = select(records, method=METHODS)
    table = tabulate(selected)
    errors, drifts = table.final(ERROR_CURVES[reading]), table.mean_over("drift")
    parts = [_correlation(method, drifts[method], errors[method]) for method in METHODS]
    diverged = sum(record.diverged_at is not None for record in selected)
    left_out = f"{diverged} of {len(selected)} runs diverged and are left out. " if diverged else ""
    notes = f"{left_out}{_describe_within(table, drifts, errors)} {describe_iqm(drifts, 'Mean drift (IQM)')}"
    return make_verdict(8, parts, selected, notes, reading)


def _correlation(method: str, drift: Array, error: Array) -> Part:
    """Judge whether drift and error correlate: the interval of Pearson's correlation of their logarithms is above 0."""
    tiny = np.finfo(float).tiny
    both = np.stack([np.log(np.maximum(values, tiny)) for values in (drift, error)])  # [2, settings, seeds]
    value, interval = float(pearson(both)), confidence_interval(pearson, both)
    quantity = f"log-log correlation of {label(method)}"
    answer = "undecided" if interval[0] <= 0 <= interval[1] else decide(value > 0, drift.shape[1])
    statement = f"drift and error of {label(method)} correlate"
    found = f"{quantity} {format_estimate(value, interval)}"
    effect = Effect(quantity, value, interval, is_ratio=False)
    return Part(statement, answer, found, effect=effect, brief=f"correlation {format_number(value)}")


def pearson(both: Array) -> Array:
    """Return Pearson's correlation over ``[..., 2, settings, seeds]``, without pairs that are not finite."""
    x, y = np.moveaxis(both.reshape(*both.shape[:-2], -1), -2, 0)
    keep = np.isfinite(x) & np.isfinite(y)
    count = np.maximum(keep.sum(-1, keepdims=True), 1)
    x, y = (np.where(keep, z - np.where(keep, z, 0).sum(-1, keepdims=True) / count, 0) for z in (x, y))
    spread = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    return np.divide((x * y).sum(-1), spread, out=np.zeros_like(spread), where=spread > 0)


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
