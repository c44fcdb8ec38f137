"""From records to panels: learning curves, errors against a hyper-parameter, shares of diverged runs.

Means are the paper's. No error counts in them for more than ``Layout.worst``, as which verdicts count a diverged run:
it is never dropped, and what it blew up to on its way does not hide the rest. The interquartile mean needs no such
number: it is infinite, and its line ends, once more than a quarter have diverged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..records import Record
from ..statistics import Array, bootstrap, counted, divergence_rate, iqm
from .base import Panel, Series
from .layout import Fields, Layout, Line, lay_out

RESAMPLES = 400  # for a band; an interval that decides something has more
ERROR = "mean squared error"
AXES = {
    "alpha": "learning rate α",
    "beta": "momentum β",
    "batch": "batch size",
    "rbf_width": "width of the kernels σ²",
}
LOG_FIELDS = ("alpha", "batch")

Statistic = Callable[[Any], Any]  # of ``[..., settings, seeds]``


def mean(errors: Any) -> Any:
    return np.asarray(errors, dtype=float).mean(axis=(-2, -1))


NAMES: dict[Statistic, str] = {mean: "mean", iqm: "interquartile mean"}


def banded(label: str, x: ArrayLike, values: Array, statistic: Statistic, **more: Any) -> Series:
    """One line through ``values [x, settings, seeds]``, with its 95 % band."""
    low, high = bootstrap(statistic, values, resamples=RESAMPLES)
    return Series(label, _floats(x), _floats(statistic(values)), _floats(low), _floats(high), **more)


def learning(
    records: Sequence[Record],
    statistic: Statistic = mean,
    curve: str = "evaluation",
    by: Fields = ("method",),
    first: int = 0,
    worst: float | None = None,
) -> list[Series]:
    """A line for each method along training, from the ``first`` measurement on."""
    layout = lay_out(records, by)
    curves = {line: own[first:] for line, own in layout.curves(curve).items()}
    if statistic is mean:
        curves = _bounded(curves, layout.worst(curve) if worst is None else worst)
    at = layout.at[first:]
    return [banded(str(line), at, curves[line], statistic, **_about(layout, line, by)) for line in curves]


def learning_panels(records: Sequence[Record], about: str = "") -> list[Panel]:
    """The paper's panel, of means, and beside it the same of interquartile means."""
    return [
        Panel(_titled(about, NAMES[statistic]), "steps", ERROR, learning(records, statistic), log_y=True)
        for statistic in (mean, iqm)
    ]


def against(
    records: Sequence[Record],
    field: str,
    statistic: Statistic = iqm,
    by: Fields = ("method",),
    curve: str = "evaluation",
    **more: Any,
) -> list[Series]:
    """A line for each method along the values of a hyper-parameter, whatever the other settings are."""
    layout = lay_out(records, by)
    of = np.array(layout.values(field))
    values = np.unique(of)
    ends = {line: errors[-1] for line, errors in layout.curves(curve).items()}
    levels = {line: np.stack([errors[of == value] for value in values]) for line, errors in ends.items()}
    if statistic is mean:
        levels = _bounded(levels, layout.worst(curve))
    return [banded(str(line), values, levels[line], statistic, **_about(layout, line, by), **more) for line in levels]


def against_panel(records: Sequence[Record], field: str, statistic: Statistic = iqm, about: str = "") -> Panel:
    """Final errors along the values of a hyper-parameter."""
    title = _titled(about, f"final error, {NAMES[statistic]}")
    return Panel(title, AXES[field], ERROR, against(records, field, statistic), field in LOG_FIELDS, log_y=True)


def divergence_panels(records: Sequence[Record], field: str, about: str = "") -> list[Panel]:
    """The share of diverged runs along a hyper-parameter, of the methods that diverged at all; nothing if none did."""
    layout = lay_out(records)
    of = np.array(layout.values(field))
    values = np.unique(of)
    series = []
    for method, errors in layout.final().items():
        if np.isinf(errors).any():
            shares, ends = zip(*(divergence_rate(errors[of == value]) for value in values), strict=True)
            low, high = zip(*ends, strict=True)
            series.append(Series(method, _floats(values), shares, low, high, **_about(layout, method, ("method",))))
    panel = Panel(_titled(about, "diverged"), AXES[field], "share of runs", series, log_x=field in LOG_FIELDS)
    return [panel] if series else []


def overview(records: Sequence[Record], field: str = "alpha") -> list[Panel]:
    """What is drawn of methods compared over a grid: curves, sensitivity to a hyper-parameter, divergences."""
    return [*learning_panels(records), against_panel(records, field), *divergence_panels(records, field)]


def _bounded(curves: dict[Line, Array], worst: float) -> dict[Line, Array]:
    return {line: counted(own, worst) for line, own in curves.items()}


def _about(layout: Layout, line: Line, by: Fields) -> dict[str, Any]:
    records = [record for row in layout.places[line] for record in row]
    return {
        "method": str(line) if by == ("method",) else "",
        "runs": len(records),
        "diverged": sum(record.diverged_at is not None for record in records),
    }


def _titled(about: str, what: str) -> str:
    return f"{about}: {what}" if about else what


def _floats(values: Any) -> list[float]:
    return [float(value) for value in np.atleast_1d(values)]
