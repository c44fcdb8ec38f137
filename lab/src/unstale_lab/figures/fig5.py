"""Figure 5: drift of the values of successors while their gradients are part of the momentum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..analysis.curves import learning_curves, mean
from ..analysis.formatting import describe_iqm, label
from ..analysis.panels import Panel
from ..analysis.run_table import select, tabulate, without
from ..analysis.statistics import Array
from ..claims.contrast import compare_pairs
from ..claims.judging import better, make_verdict
from ..claims.sentences import describe_ratios, sentence
from ..claims.verdict import Reading, Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import PAPER_METHODS, RBF_GRID, RBF_WIDTH_NOTE, REPLAY_GRID, seeds, union
from .shared.readings import as_authors_ran, by_reading, each_reading, titled

MAX_RBF_DRIFT_RATIO = 0.2  # "very little": less than a fifth of the drift of an MLP

RBF_DRIFT_GRID = RBF_GRID.vary(
    paper={"method": PAPER_METHODS, "rbf_width": 1.0, "rbf_grid": 20, "alpha": 0.1}, smoke={"rbf_grid": 4}
)
MLP_DRIFT_GRID = REPLAY_GRID.vary(
    paper={"method": PAPER_METHODS, "width": 16, "batch": 16, "alpha": 0.1, "beta": 0.99, "measure": ("drift",)},
    smoke={"width": 4, "batch": 4, "seed": seeds(2)},
)
GRIDS = (
    RBF_DRIFT_GRID,
    MLP_DRIFT_GRID,
    as_authors_ran(RBF_DRIFT_GRID, problem="mountain_car", rbf_amplitude=2.0),
    as_authors_ran(MLP_DRIFT_GRID),
)


def by_features(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records with RBF features and those with an MLP."""
    return {"RBF": without(records, rbf_grid=0), "MLP": select(records, rbf_grid=0)}


def panels(records: Sequence[Record]) -> list[Panel]:
    return [
        # Without step 0: the drift is 0 there, which a logarithmic axis cannot show.
        Panel(
            titled(f"Figure 5, {kind}", reading),
            "steps",
            "drift of target values",
            learning_curves(some, mean, "drift", first=1),
            log_y=True,
        )
        for reading, group in by_reading(records).items()
        for kind, some in by_features(group).items()
    ]


def _verdict(records: Sequence[Record], reading: Reading) -> Verdict:
    """Judge geometric means over the training; the first few hundred steps would dominate arithmetic means.

    The notes have both.
    """
    curves = {
        f"{label(method)} with {kind}": drift[1:]  # the drift at step 0 is 0
        for kind, group in by_features(records).items()
        for method, drift in tabulate(group).curves("drift").items()
    }
    geometric_means = {line: _geometric_mean(drift) for line, drift in curves.items()}
    arithmetic_means = {line: drift.mean(axis=0) for line, drift in curves.items()}
    pairs = [(f"{label(method)} with RBF", f"{label(method)} with MLP") for method in PAPER_METHODS]
    worst = max(float(drift[np.isfinite(drift)].max(initial=0.0)) for drift in geometric_means.values())
    contrasts = dict(zip(map(label, PAPER_METHODS), compare_pairs(geometric_means, pairs, worst), strict=True))
    parts = [
        better(contrast, MAX_RBF_DRIFT_RATIO, f"values drift less with RBF features ({method})")
        for method, contrast in contrasts.items()
    ]
    why = sentence(describe_ratios("with RBF features, values drift {} as far as with MLPs", contrasts))
    notes = (
        "The verdict uses geometric means over the training; the first steps would dominate arithmetic means.",
        describe_iqm(geometric_means, "Drift, geometric mean (IQM)"),
        describe_iqm(arithmetic_means, "Drift, arithmetic mean (IQM)"),
    )
    return make_verdict(5, why, parts, records, " ".join(notes), reading)


def _geometric_mean(drift: Array) -> Array:
    """Return the geometric mean over the first axis."""
    return np.exp(np.log(np.maximum(drift, np.finfo(float).tiny)).mean(axis=0))


FIGURE = Figure(
    name="fig5",
    title="Drift of target values: RBF features and MLPs",
    claims=(5,),
    settings="Mountain Car from replay; RBF features on a grid of 20 by 20, σ² 1, and an MLP of 4 layers of width 16; "
    "α 0.1; β 0.99; batches of 16; 10 seeds; 5,000 steps. Drift over the samples of the last 2/(1-β) steps, "
    f"unweighted; the authors' code weights it by β to the power of the age. {RBF_WIDTH_NOTE}",
    runs=union(*GRIDS),
    panels=panels,
    judge=each_reading(_verdict),
)
