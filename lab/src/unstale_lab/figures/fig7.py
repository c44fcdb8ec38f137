"""Figure 7: the runs of figure 6, their errors against how far target values drifted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from ..records import Record
from ..statistics import iqm
from .base import Figure, Panel, Series, Verdict
from .curves import ERROR, banded
from .fig6 import SETTINGS
from .grids import KERNELS
from .judging import conclude
from .layout import lay_out, select
from .trends import along, rank_correlations, trends
from .words import name, typical

JUDGED = ["momentum", "full", "diagonal"]


def panels(records: Sequence[Record]) -> list[Panel]:
    """One for each grid and learning rate, a line for each method, along σ²."""
    grids, rates = (sorted({getattr(record.run, field) for record in records}) for field in ("rbf_grid", "alpha"))
    return [
        Panel(
            f"grid of {grid}, α = {rate:g}",
            "mean drift of target values",
            ERROR,
            _lines(select(records, rbf_grid=grid, alpha=rate)),
            log_x=True,
            log_y=True,
        )
        for grid, rate in product(grids, rates)
    ]


def _lines(records: Sequence[Record]) -> list[Series]:
    layout = lay_out(records)
    errors, drifts = layout.final(), layout.along("drift")
    lines = []
    for method in errors:
        drift, error = (along(layout, values[method], "rbf_width") for values in (drifts, errors))
        x = iqm(drift)
        has_place = np.isfinite(x)  # which it has not on this axis where too many diverged
        about: dict[str, Any] = {"method": method, "runs": error.size, "diverged": int(np.isinf(error).sum())}
        if has_place.any():
            lines.append(banded(method, x[has_place], error[has_place], iqm, **about))
        else:  # still named, with its divergences
            lines.append(Series(method, [], [], **about))
    return lines


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Over all runs, as the paper draws them, and for each learning rate."""
    own = select(records, method=JUDGED)
    alphas = sorted({record.run.alpha for record in own}, reverse=True)
    return [_verdict(own, ""), *(_verdict(select(own, alpha=alpha), f"α = {alpha:g}") for alpha in alphas)]


def _verdict(own: Sequence[Record], reading: str) -> Verdict:
    """Diverged runs have no drift to rank their errors by: they are left out of the ranking, and told."""
    layout = lay_out(own)
    errors, drifts = layout.final(), layout.along("drift")
    correlations = {
        f"error of {name(method)} against its drift": rank_correlations(
            along(layout, drifts[method], "rbf_width"), along(layout, errors[method], "rbf_width")
        )
        for method in JUDGED
    }
    diverged = sum(record.diverged_at is not None for record in own)
    unranked = f"{diverged} of {len(own)} runs diverged and are not ranked. " if diverged else ""
    note = f"{unranked}{typical(drifts, 'Mean drift')}"
    return conclude(8, trends(correlations), own, note, reading)


FIGURE = Figure(
    name="fig7",
    title="Error against the drift of target values",
    claims=(8,),
    settings=SETTINGS,
    runs=KERNELS,
    panels=panels,
    judge=judge,
)
