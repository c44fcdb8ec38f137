"""Claim 21: activations: how stable their Taylor expansions are, and how well they learn."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.agreement import MAX_DISAGREEMENT, cosine_curves, mean_disagreement
from ..analysis.curves import MSE, learning_curves
from ..analysis.formatting import describe_final_errors, describe_iqm, label
from ..analysis.panels import Panel
from ..analysis.run_table import select, tabulate
from ..analysis.statistics import iqm
from ..claims.judging import better, compare_pairs, holm_corrected, make_verdict
from ..claims.verdict import Verdict
from ..figures.figure import Figure
from ..records import Record
from .shared.grids import REPLAY_GRID, seeds

SMOOTH = ("tanh", "elu", "selu")
BY_ACTIVATION = ("activation",)
EARLY_SHARE = 0.1  # of the training, while networks are close to their initialization

GRID = REPLAY_GRID.vary(
    paper={
        "activation": ["leaky_relu", "relu", *SMOOTH],
        "method": ["momentum", "full", "default"],
        "width": 16,
        "batch": 16,
        "alpha": [0.1, 0.05],
        "beta": 0.9,
        "measure": ("agreement",),
    },
    quick={"seed": seeds(5)},
    smoke={"width": 4, "batch": 4, "alpha": 0.1},
)


def panels(records: Sequence[Record]) -> list[Panel]:
    selected = select(records, method="full")
    agreement = [
        Panel(
            f"μ̂: cosine ({kind})",
            "steps",
            "cosine with the true gradient",
            cosine_curves(selected, kind, BY_ACTIVATION),
        )
        for kind in ("samples", "batches")
    ]
    errors = [
        Panel(
            f"{label(method)}: error",
            "steps",
            MSE,
            learning_curves(select(records, method=method), iqm, by=BY_ACTIVATION),
            log_y=True,
        )
        for method in ("full", "momentum")
    ]
    return [*agreement, *errors]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge stability (1 - cosine in the first tenth of the training) and final errors."""
    selected = select(records, method="full")
    early_disagreement, table = (
        mean_disagreement(selected, end=EARLY_SHARE, by=BY_ACTIVATION),
        tabulate(selected, BY_ACTIVATION),
    )
    stability = compare_pairs(
        early_disagreement, [(activation, "leaky_relu") for activation in SMOOTH], MAX_DISAGREEMENT
    )
    pairs = [("leaky_relu", activation) for activation in ("relu", *SMOOTH)]
    evidence, _ = holm_corrected([*stability, *compare_pairs(table.final(), pairs, table.worst_error())])
    findings = [better(each, relation="is more stable than") for each in evidence[: len(stability)]]
    findings += [better(each, relation="learns better than") for each in evidence[len(stability) :]]
    note = " ".join(
        [
            "All comparisons are for μ̂. More stable means a lower 1 - cosine in the first tenth of the training.",
            describe_iqm(early_disagreement, "1 - cosine in the first tenth (IQM)"),
            describe_iqm(mean_disagreement(selected, by=BY_ACTIVATION), "1 - cosine over the whole training (IQM)"),
            describe_final_errors(selected, BY_ACTIVATION, "Final errors (IQM)"),
            describe_final_errors(select(records, method="momentum"), BY_ACTIVATION, "Final errors of μ (IQM)"),
        ]
    )
    return [make_verdict(21, findings, selected, note)]


FIGURE = Figure(
    name="claim21",
    title="Activations: Taylor expansions and errors",
    claims=(21,),
    settings="Mountain Car from replay; Leaky ReLU, ReLU, tanh, ELU, SELU; MLP of 4 layers of width 16; α 0.1 and "
    "0.05; β 0.9; batches of 16; 10 seeds; 5,000 steps.",
    runs=GRID,
    panels=panels,
    judge=judge,
)
