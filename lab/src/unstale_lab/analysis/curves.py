"""Panels from records: learning curves, errors over a hyper-parameter, divergence rates.

The paper plots means. A mean is over the runs that did not diverge: no number is made up for a diverged run. Over
steps, the share of those that did is written beside the line; over a hyper-parameter, the line ends where it is a half
or more. The interquartile mean (IQM) counts a diverged run as worse than any other: it is infinite, and its line ends,
once more than a quarter of the runs have diverged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..analysis.panels import Panel, Series
from ..records import Record
from .run_table import Fields, Line, RunTable, select, tabulate
from .statistics import Array, bootstrap, divergence_rate, iqm

BAND_RESAMPLES = 400  # for a band in a plot; intervals in verdicts use more
MSE = "mean squared error"  # axis label
MIN_DIVERGED_TO_END = 0.5  # the share of diverged runs from which on a mean over the others is not drawn
AXIS_LABELS = {
    "alpha": "learning rate α",
    "beta": "momentum β",
    "batch": "batch size",
    "rbf_width": "RBF width σ²",
}
LOG_FIELDS = ("alpha", "batch")

Statistic = Callable[[Any], Any]  # [..., settings, seeds] → [...]


def mean(errors: Any) -> Any:
    """Return the mean over ``[..., settings, seeds]``, without runs that are NaN; NaN if all are."""
    errors = np.asarray(errors, dtype=float)
    is_number = ~np.isnan(errors)
    total, count = np.where(is_number, errors, 0.0).sum(axis=(-2, -1)), is_number.sum(axis=(-2, -1))
    return np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)


STATISTIC_NAMES: dict[Statistic, str] = {mean: "mean", iqm: "IQM"}


def series_with_band(label: str, x: ArrayLike, values: Array, statistic: Statistic, **more: Any) -> Series:
    """Return a line through ``values [x, settings, seeds]`` with its 95 % confidence band."""
    low, high = bootstrap(statistic, values, resamples=BAND_RESAMPLES)
    return Series(label, _floats(x), _floats(statistic(values)), _floats(low), _floats(high), **more)


def learning_curves(
    records: Sequence[Record],
    statistic: Statistic = mean,
    curve: str = "evaluation",
    by: Fields = ("method",),
    first: int = 0,
) -> list[Series]:
    """Return a learning curve for each method, from the ``first`` measurement on.

    Args:
        records: runs to average over.
        statistic: how to average over settings and seeds.
        curve: name of the curve in the records.
        by: fields that distinguish lines.
        first: index of the first measurement to show.
    """
    table = tabulate(records, by)
    curves = {line: values[first:] for line, values in table.curves(curve).items()}
    if statistic is mean:
        curves = {line: _surviving_curves(values) for line, values in curves.items()}
    at = table.at[first:]
    return [
        series_with_band(str(line), at, curves[line], statistic, **_series_fields(table, line, by)) for line in curves
    ]


def paper_panel(records: Sequence[Record], title: str, methods: Sequence[str], curve: str = "evaluation") -> Panel:
    """Return a panel like the paper's: mean errors of its methods over steps."""
    selected = select(records, method=list(methods))
    return Panel(title, "steps", MSE, learning_curves(selected, mean, curve), log_y=True)


def iqm_panel(records: Sequence[Record], curve: str = "evaluation", prefix: str = "") -> Panel:
    """Return interquartile means of all methods over steps."""
    return Panel(
        with_prefix(prefix, "interquartile mean (IQM) of all methods"),
        "steps",
        MSE,
        learning_curves(records, iqm, curve),
        log_y=True,
    )


def sensitivity_curves(
    records: Sequence[Record],
    field: str,
    statistic: Statistic = iqm,
    by: Fields = ("method",),
    curve: str = "evaluation",
    **more: Any,
) -> list[Series]:
    """Return the final error of each method over a hyper-parameter, averaged over all other settings.

    A line of means ends where half of the runs or more diverged: a mean over the others is one over the easier
    settings, and cannot be compared with other points.
    """
    table = tabulate(records, by)
    of = np.array(table.values(field))
    values = np.unique(of)
    ends = {line: errors[-1] for line, errors in table.curves(curve).items()}
    kept = survivors if statistic is mean else np.asarray
    lines = []
    for line, errors in ends.items():
        # One by one, because values can have different numbers of settings.
        points = [series_with_band("", [value], kept(errors[of == value])[None], statistic) for value in values]
        x, y, low, high = ([v for p in points for v in getattr(p, name)] for name in ("x", "y", "low", "high"))
        lines.append(Series(str(line), x, y, low, high, **_series_fields(table, line, by), **more))
    return lines


def sensitivity_panel(
    records: Sequence[Record], field: str, statistic: Statistic = iqm, prefix: str = "", curve: str = "evaluation"
) -> Panel:
    """Return a panel of ``sensitivity_curves``."""
    title = with_prefix(prefix, f"final error, {STATISTIC_NAMES[statistic]}")
    lines = sensitivity_curves(records, field, statistic, curve=curve)
    return Panel(title, AXIS_LABELS[field], MSE, lines, field in LOG_FIELDS, log_y=True)


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
        with_prefix(prefix, "divergence rate"),
        AXIS_LABELS[field],
        "share of diverged runs",
        series,
        log_x=field in LOG_FIELDS,
    )
    return [panel] if series else []


def survivors(errors: Array) -> Array:
    """Return final errors ``[settings, seeds]`` with NaN for diverged runs; all infinite if too many diverged."""
    diverged = np.isinf(errors)
    if diverged.mean() >= MIN_DIVERGED_TO_END:
        return np.full_like(errors, np.inf)
    return np.where(diverged, np.nan, errors)


def _surviving_curves(curves: Array) -> Array:
    """Return curves ``[steps, settings, seeds]`` with NaN for runs that diverged by the last step."""
    return np.where(np.isinf(curves[-1]), np.nan, curves)


def _series_fields(table: RunTable, line: Line, by: Fields) -> dict[str, Any]:
    records = [record for row in table.records[line] for record in row]
    return {
        "method": str(line) if by == ("method",) else "",
        "runs": len(records),
        "diverged": sum(record.diverged_at is not None for record in records),
    }


def with_prefix(prefix: str, title: str) -> str:
    """Return a title that begins with a prefix, if there is one."""
    return f"{prefix}: {title}" if prefix else title


def _floats(values: Any) -> list[float]:
    return [float(value) for value in np.atleast_1d(values)]
