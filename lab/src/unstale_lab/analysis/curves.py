"""Panels from records: learning curves, errors over a hyper-parameter, divergence rates.

The paper plots means. In a mean, errors are clipped at ``RunTable.worst_error``, which is also what a diverged run
counts as: diverged runs are never dropped, and huge errors on the way to divergence do not hide the rest. The
interquartile mean (IQM) is not clipped: it is infinite, and its line ends, once more than a quarter of the runs have
diverged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..analysis.panels import Panel, Series
from ..records import Record
from .run_table import Fields, Line, RunTable, tabulate
from .statistics import Array, bootstrap, clip_errors, divergence_rate, iqm

RESAMPLES = 400  # for a band in a plot; intervals in verdicts use more
MSE = "mean squared error"  # axis label
AXIS_LABELS = {
    "alpha": "learning rate α",
    "beta": "momentum β",
    "batch": "batch size",
    "rbf_width": "RBF width σ²",
}
LOG_FIELDS = ("alpha", "batch")

Statistic = Callable[[Any], Any]  # [..., settings, seeds] → [...]


def mean(errors: Any) -> Any:
    """Return the mean over ``[..., settings, seeds]``."""
    return np.asarray(errors, dtype=float).mean(axis=(-2, -1))


STATISTIC_NAMES: dict[Statistic, str] = {mean: "mean", iqm: "IQM"}


def series_with_band(label: str, x: ArrayLike, values: Array, statistic: Statistic, **more: Any) -> Series:
    """Return a line through ``values [x, settings, seeds]`` with its 95 % confidence band."""
    low, high = bootstrap(statistic, values, resamples=RESAMPLES)
    return Series(label, _floats(x), _floats(statistic(values)), _floats(low), _floats(high), **more)


def learning_curves(
    records: Sequence[Record],
    statistic: Statistic = mean,
    curve: str = "evaluation",
    by: Fields = ("method",),
    first: int = 0,
    worst_error: float | None = None,
) -> list[Series]:
    """Return a learning curve for each method, from the ``first`` measurement on.

    Args:
        records: runs to average over.
        statistic: how to average over settings and seeds.
        curve: name of the curve in the records.
        by: fields that distinguish lines.
        first: index of the first measurement to show.
        worst_error: where to clip errors for a mean; by default ``RunTable.worst_error``.
    """
    table = tabulate(records, by)
    curves = {line: values[first:] for line, values in table.curves(curve).items()}
    if statistic is mean:
        curves = _clip(curves, table.worst_error(curve) if worst_error is None else worst_error)
    at = table.at[first:]
    return [
        series_with_band(str(line), at, curves[line], statistic, **_series_fields(table, line, by)) for line in curves
    ]


def learning_panels(records: Sequence[Record], prefix: str = "") -> list[Panel]:
    """Return the paper's panel, with means, and the same with interquartile means."""
    return [
        Panel(_title(prefix, STATISTIC_NAMES[statistic]), "steps", MSE, learning_curves(records, statistic), log_y=True)
        for statistic in (mean, iqm)
    ]


def sensitivity_curves(
    records: Sequence[Record],
    field: str,
    statistic: Statistic = iqm,
    by: Fields = ("method",),
    curve: str = "evaluation",
    **more: Any,
) -> list[Series]:
    """Return the final error of each method over a hyper-parameter, averaged over all other settings."""
    table = tabulate(records, by)
    of = np.array(table.values(field))
    values = np.unique(of)
    ends = {line: errors[-1] for line, errors in table.curves(curve).items()}
    levels = {line: np.stack([errors[of == value] for value in values]) for line, errors in ends.items()}
    if statistic is mean:
        levels = _clip(levels, table.worst_error(curve))
    return [
        series_with_band(str(line), values, levels[line], statistic, **_series_fields(table, line, by), **more)
        for line in levels
    ]


def sensitivity_panel(records: Sequence[Record], field: str, statistic: Statistic = iqm, prefix: str = "") -> Panel:
    """Return a panel of ``sensitivity_curves``."""
    title = _title(prefix, f"final error, {STATISTIC_NAMES[statistic]}")
    return Panel(
        title, AXIS_LABELS[field], MSE, sensitivity_curves(records, field, statistic), field in LOG_FIELDS, log_y=True
    )


def divergence_panels(records: Sequence[Record], field: str, prefix: str = "") -> list[Panel]:
    """Return a panel with the divergence rate of each method that diverged; no panel if none did."""
    table = tabulate(records)
    of = np.array(table.values(field))
    values = np.unique(of)
    series = []
    for method, errors in table.final().items():
        if np.isinf(errors).any():
            shares, ends = zip(*(divergence_rate(errors[of == value]) for value in values), strict=True)
            low, high = zip(*ends, strict=True)
            series.append(
                Series(method, _floats(values), shares, low, high, **_series_fields(table, method, ("method",)))
            )
    panel = Panel(
        _title(prefix, "divergence rate"),
        AXIS_LABELS[field],
        "share of diverged runs",
        series,
        log_x=field in LOG_FIELDS,
    )
    return [panel] if series else []


def overview_panels(records: Sequence[Record], field: str = "alpha") -> list[Panel]:
    """Return learning curves, sensitivity to a hyper-parameter and divergence rates."""
    return [*learning_panels(records), sensitivity_panel(records, field), *divergence_panels(records, field)]


def _clip(curves: dict[Line, Array], worst_error: float) -> dict[Line, Array]:
    return {line: clip_errors(values, worst_error) for line, values in curves.items()}


def _series_fields(table: RunTable, line: Line, by: Fields) -> dict[str, Any]:
    records = [record for row in table.records[line] for record in row]
    return {
        "method": str(line) if by == ("method",) else "",
        "runs": len(records),
        "diverged": sum(record.diverged_at is not None for record in records),
    }


def _title(prefix: str, title: str) -> str:
    return f"{prefix}: {title}" if prefix else title


def _floats(values: Any) -> list[float]:
    return [float(value) for value in np.atleast_1d(values)]
