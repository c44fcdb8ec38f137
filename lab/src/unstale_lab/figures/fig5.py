"""Figure 5: drift of the values of successors while their gradients are part of the momentum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..analysis.curves import learning_curves
from ..analysis.formatting import describe_iqm, label
from ..analysis.panels import Panel
from ..analysis.run_table import select, tabulate, without
from ..analysis.statistics import Array, iqm
from ..claims.judging import better, compare_pairs, make_verdict
from ..claims.verdict import Verdict
from ..figures.figure import Figure
from ..records import Record
from .shared.grids import PAPER_METHODS, RBF_GRID, RBF_WIDTH_NOTE, REPLAY_GRID, seeds

MIN_DRIFT_REDUCTION = 0.8  # "very little": less than a fifth of the drift of an MLP

RBF_DRIFT_GRID = RBF_GRID.vary(
    paper={"method": PAPER_METHODS, "rbf_width": 1.0, "rbf_grid": 20, "alpha": 0.1}, smoke={"rbf_grid": 4}
)
MLP_DRIFT_GRID = REPLAY_GRID.vary(
    paper={"method": PAPER_METHODS, "width": 16, "batch": 16, "alpha": 0.1, "beta": 0.99, "measure": ("drift",)},
    smoke={"width": 4, "batch": 4, "seed": seeds(2)},
)


def by_features(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records with RBF features and those with an MLP."""
    return {"RBF": without(records, rbf_grid=0), "MLP": select(records, rbf_grid=0)}


def panels(records: Sequence[Record]) -> list[Panel]:
    return [
        # Without step 0: the drift is 0 there, which a logarithmic axis cannot show.
        Panel(kind, "steps", "drift of target values", learning_curves(group, iqm, "drift", first=1), log_y=True)
        for kind, group in by_features(records).items()
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge geometric means over the training; the first few hundred steps would dominate arithmetic means.

    The note has both.
    """
    curves = {
        f"{kind}, {label(method)}": drift[1:]  # the drift at step 0 is 0
        for kind, group in by_features(records).items()
        for method, drift in tabulate(group).curves("drift").items()
    }
    geometric_means = {line: _geometric_mean(drift) for line, drift in curves.items()}
    arithmetic_means = {line: drift.mean(axis=0) for line, drift in curves.items()}
    pairs = [(f"RBF, {label(method)}", f"MLP, {label(method)}") for method in PAPER_METHODS]
    worst = max(float(drift[np.isfinite(drift)].max(initial=0.0)) for drift in geometric_means.values())
    findings = [
        better(evidence, min_reduction=MIN_DRIFT_REDUCTION, relation="is below")
        for evidence in compare_pairs(geometric_means, pairs, worst)
    ]
    notes = (
        "The verdict uses geometric means over the training; the first steps would dominate arithmetic means.",
        describe_iqm(geometric_means, "Drift, geometric mean (IQM)"),
        describe_iqm(arithmetic_means, "Drift, arithmetic mean (IQM)"),
    )
    return [make_verdict(5, findings, records, " ".join(notes))]


def _geometric_mean(drift: Array) -> Array:
    """Return the geometric mean over the first axis."""
    return np.exp(np.log(np.maximum(drift, np.finfo(float).tiny)).mean(axis=0))


FIGURE = Figure(
    name="fig5",
    title="Drift of target values: RBF features and MLPs",
    claims=(5,),
    settings="Mountain Car from replay; RBF features on a grid of 20 by 20, σ² 1, and an MLP of 4 layers of width 16; "
    "α 0.1; β 0.99; batches of 16; 10 seeds; 5,000 steps. Drift over the samples of the last 2/(1-β) steps. "
    f"{RBF_WIDTH_NOTE}",
    runs=lambda scale: [*RBF_DRIFT_GRID(scale), *MLP_DRIFT_GRID(scale)],
    panels=panels,
    judge=judge,
)
