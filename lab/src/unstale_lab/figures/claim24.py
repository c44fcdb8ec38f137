"""Claim 24: for a linear function the Taylor term is exact, so that the correction equals the oracle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..analysis.curves import paper_panel
from ..analysis.formatting import describe_final_errors, format_number
from ..analysis.panels import Panel, Series
from ..analysis.run_table import tabulate
from ..claims.judging import make_verdict
from ..claims.verdict import Answer, Effect, Part, Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import RBF_GRID, RBF_WIDTH_NOTE, seeds

MAX_ROUNDING_DIFFERENCE = 1e-6  # relative, after 300 steps in float64
MIN_REAL_DIFFERENCE = 1e-3  # relative

GRID = RBF_GRID.vary(
    paper={
        "method": ["full", "oracle"],
        "rbf_width": 1.0,
        "rbf_grid": 10,
        "alpha": 0.1,
        "beta": [0.9, 0.99],
        "steps": 300,
        "horizon": 300,  # all batches, like the correction
        "seed": seeds(3),
        "precision": "float64",
        "measure": (),
    },
    smoke={"rbf_grid": 4, "steps": 50, "seed": seeds(2)},
)


STATEMENT = "μ̂ equals μ* up to rounding"


def panels(records: Sequence[Record]) -> list[Panel]:
    difference, at = _relative_difference(records)
    worst = Series("maximum over runs", [*map(float, at[1:])], [*map(float, difference[1:].max(axis=(1, 2)))])
    return [
        paper_panel(records, "Errors", ["full", "oracle"]),
        Panel("relative difference of μ̂ and μ*", "steps", "relative difference of errors", [worst]),
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    largest = float(_relative_difference(records)[0].max())
    if all(record.diverged_at is not None for record in records):
        part = Part(STATEMENT, "undecided", "all runs diverged")
        return [make_verdict(24, "All runs diverged.", [part], records)]
    answer: Answer = (
        "holds"
        if largest <= MAX_ROUNDING_DIFFERENCE
        else "does not hold"
        if largest > MIN_REAL_DIFFERENCE
        else "undecided"
    )
    quantity = "largest relative difference between the errors of μ̂ and of an oracle with full history"
    effect = Effect(quantity, largest, is_ratio=False)
    part = Part(STATEMENT, answer, f"{quantity}: {format_number(largest)}", effect=effect)
    why = (
        f"The largest relative difference between the errors of μ̂ and of an oracle with full history is "
        f"{format_number(largest)}."
        if np.isfinite(largest)
        else "In some runs only one of the two diverges."
    )
    return [make_verdict(24, why, [part], records, describe_final_errors(records))]


def _relative_difference(records: Sequence[Record]) -> tuple[np.ndarray, np.ndarray]:
    """Return relative differences ``[steps, settings, seeds]``, infinite if only one diverged, and their steps."""
    table = tabulate(records)
    full, oracle = (table.curves()[method] for method in ("full", "oracle"))
    both_diverged = np.isinf(full) & np.isinf(oracle)
    with np.errstate(invalid="ignore"):
        difference = np.abs(full - oracle) / np.where(np.isinf(oracle), 1.0, np.maximum(oracle, np.finfo(float).tiny))
    return np.where(both_diverged, 0.0, difference), table.at


FIGURE = Figure(
    name="claim24",
    title="Linear value function: the correction equals the oracle",
    claims=(24,),
    settings="Mountain Car from replay; linear in RBF features on a grid of 10 by 10, σ² 1; α 0.1; β 0.9 and 0.99; "
    f"batches of 16; 3 seeds; 300 steps in float64, all of them in the oracle's horizon. {RBF_WIDTH_NOTE}",
    runs=GRID,
    panels=panels,
    judge=judge,
)
