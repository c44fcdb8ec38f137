"""Figure 5: how far the values of successors drift while their gradients are remembered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..records import Record
from ..statistics import Array, iqm
from .base import Figure, Panel, Verdict
from .curves import learning
from .grids import CELLS, FOUR, KERNELS, REPLAY, seeds
from .judging import better, compared, conclude
from .layout import lay_out, select, without
from .words import name, typical

FIFTH = 0.8  # "very little" is less than a fifth of the other

RADIAL = KERNELS.varied(paper={"method": FOUR, "rbf_width": 1.0, "rbf_grid": 20, "alpha": 0.1}, smoke={"rbf_grid": 4})
NETWORK = REPLAY.varied(
    paper={"method": FOUR, "width": 16, "batch": 16, "alpha": 0.1, "beta": 0.99, "measure": ("drift",)},
    smoke={"width": 4, "batch": 4, "seed": seeds(2)},
)


def kinds(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The runs by what their values are a function of."""
    return {"RBF": without(records, rbf_grid=0), "MLP": select(records, rbf_grid=0)}


def panels(records: Sequence[Record]) -> list[Panel]:
    return [
        # Nothing has drifted before the first step, and 0 has no place on a logarithmic axis.
        Panel(kind, "steps", "drift of target values", learning(own, iqm, "drift", first=1), log_y=True)
        for kind, own in kinds(records).items()
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Of geometric means along training: in the first few hundred steps every value moves, and a plain mean would hear
    of little else. The note has both."""
    curves = {
        f"{kind}, {name(method)}": drift[1:]  # nothing has drifted before the first step
        for kind, own in kinds(records).items()
        for method, drift in lay_out(own).curves("drift").items()
    }
    typical_drifts = {line: _geometric_mean(drift) for line, drift in curves.items()}
    mean_drifts = {line: drift.mean(axis=0) for line, drift in curves.items()}
    pairs = [(f"RBF, {name(method)}", f"MLP, {name(method)}") for method in FOUR]
    worst = max(float(drift[np.isfinite(drift)].max(initial=0.0)) for drift in typical_drifts.values())
    parts = [better(evidence, least=FIFTH, relation="is below") for evidence in compared(typical_drifts, pairs, worst)]
    rests = "The verdict rests on the geometric mean, taken because the first steps would decide a plain one."
    notes = (rests, typical(typical_drifts, "Drift, geometric mean along training"), typical(mean_drifts, "Plain mean"))
    return [conclude(5, parts, records, " ".join(notes))]


def _geometric_mean(drift: Array) -> Array:
    return np.exp(np.log(np.maximum(drift, np.finfo(float).tiny)).mean(axis=0))


FIGURE = Figure(
    name="fig5",
    title="Drift of target values: RBF features and MLPs",
    claims=(5,),
    settings="Mountain Car from replay; RBF features on a grid of 20 by 20, σ² 1, and an MLP of 4 layers of width 16; "
    "α 0.1; β 0.99; batches of 16; 10 seeds; 5,000 steps. Drift over the samples of the last 2/(1-β) steps. "
    f"{CELLS}",
    runs=lambda scale: [*RADIAL(scale), *NETWORK(scale)],
    panels=panels,
    judge=judge,
)
