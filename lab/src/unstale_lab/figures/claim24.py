"""Claim 24: in a linear function the Taylor term is exact, so that the correction is the oracle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..records import Record
from .base import Figure, Outcome, Panel, Series, Verdict
from .curves import learning_panels
from .grids import CELLS, KERNELS, seeds
from .judging import Part, conclude
from .layout import lay_out
from .words import final_errors

ROUNDING = 1e-6  # relative, after 300 steps in float64
APART = 1e-3

GRID = KERNELS.varied(
    paper={
        "method": ["full", "oracle"],
        "rbf_width": 1.0,
        "rbf_grid": 10,
        "alpha": 0.1,
        "beta": [0.9, 0.99],
        "steps": 300,
        "horizon": 300,  # everything, as the correction has it
        "seed": seeds(3),
        "precision": "float64",
        "measure": (),
    },
    smoke={"rbf_grid": 4, "steps": 50, "seed": seeds(2)},
)


def panels(records: Sequence[Record]) -> list[Panel]:
    apart, at = _apart(records)
    worst = Series("largest of all runs", [*map(float, at[1:])], [*map(float, apart[1:].max(axis=(1, 2)))])
    return [
        learning_panels(records)[0],
        Panel("relative difference of μ̂ and μ*", "steps", "relative difference of errors", [worst]),
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    largest = float(_apart(records)[0].max())
    outcome: Outcome = "holds" if largest <= ROUNDING else "does not hold" if largest > APART else "inconclusive"
    says = f"the errors of μ̂ and of an oracle that forgets nothing differ by {largest:.1e} at most, relatively"
    return [conclude(24, [Part(says, outcome, effect=largest)], records, final_errors(records))]


def _apart(records: Sequence[Record]) -> tuple[np.ndarray, np.ndarray]:
    """Relative differences ``[steps, settings, seeds]``; infinite where one diverged and the other did not."""
    layout = lay_out(records)
    full, oracle = (layout.curves()[method] for method in ("full", "oracle"))
    both = np.isinf(full) & np.isinf(oracle)
    with np.errstate(invalid="ignore"):
        apart = np.abs(full - oracle) / np.where(np.isinf(oracle), 1.0, np.maximum(oracle, np.finfo(float).tiny))
    return np.where(both, 0.0, apart), layout.at


FIGURE = Figure(
    name="claim24",
    title="A linear value function: the correction is the oracle",
    claims=(24,),
    settings="Mountain Car from replay; linear in RBF features on a grid of 10 by 10, σ² 1; α 0.1; β 0.9 and 0.99; "
    f"batches of 16; 3 seeds; 300 steps in float64, the oracle remembering all of them. {CELLS}",
    runs=GRID,
    panels=panels,
    judge=judge,
)
