"""Figure 7: the runs of figure 6, errors over the drift of target values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from ..analysis.curves import MSE, series_with_band
from ..analysis.formatting import describe_iqm, label
from ..analysis.panels import Panel, Series
from ..analysis.run_table import select, tabulate
from ..analysis.statistics import iqm
from ..analysis.trends import by_level, rank_correlations
from ..claims.judging import make_verdict, trends
from ..claims.verdict import Verdict
from ..figures.figure import Figure
from ..records import Record
from .fig6 import SETTINGS
from .shared.grids import RBF_GRID

JUDGED_METHODS = ["momentum", "full", "diagonal"]


def panels(records: Sequence[Record]) -> list[Panel]:
    """Return one panel per grid and learning rate, with one line per method over σ²."""
    grids, rates = (sorted({getattr(record.run, field) for record in records}) for field in ("rbf_grid", "alpha"))
    return [
        Panel(
            f"{grid} x {grid} grid, α = {rate:g}",
            "mean drift of target values",
            MSE,
            _lines(select(records, rbf_grid=grid, alpha=rate)),
            log_x=True,
            log_y=True,
        )
        for grid, rate in product(grids, rates)
    ]


def _lines(records: Sequence[Record]) -> list[Series]:
    table = tabulate(records)
    errors, drifts = table.final(), table.mean_over("drift")
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


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge all runs together, as the paper does, and each learning rate."""
    selected = select(records, method=JUDGED_METHODS)
    alphas = sorted({record.run.alpha for record in selected}, reverse=True)
    return [_verdict(selected, ""), *(_verdict(select(selected, alpha=alpha), f"α = {alpha:g}") for alpha in alphas)]


def _verdict(records: Sequence[Record], reading: str) -> Verdict:
    """Judge rank correlations; diverged runs have no finite drift and are not ranked, which the note says."""
    table = tabulate(records)
    errors, drifts = table.final(), table.mean_over("drift")
    correlations = {
        f"Error of {label(method)} over its drift": rank_correlations(
            by_level(table, drifts[method], "rbf_width"), by_level(table, errors[method], "rbf_width")
        )
        for method in JUDGED_METHODS
    }
    diverged = sum(record.diverged_at is not None for record in records)
    unranked = f"{diverged} of {len(records)} runs diverged and are not ranked. " if diverged else ""
    note = f"{unranked}{describe_iqm(drifts, 'Mean drift (IQM)')}"
    return make_verdict(8, trends(correlations), records, note, reading)


FIGURE = Figure(
    name="fig7",
    title="Error over the drift of target values",
    claims=(8,),
    settings=SETTINGS,
    runs=RBF_GRID,
    panels=panels,
    judge=judge,
)
