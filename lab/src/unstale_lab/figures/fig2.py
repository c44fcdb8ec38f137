"""Figure 2: SVHN classification, the supervised case with a convolutional network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..analysis.curves import AXIS_LABELS, divergence_panels, learning_curves, mean, sensitivity_curves
from ..analysis.formatting import describe_iqm, label
from ..analysis.panels import Panel
from ..analysis.run_table import select, tabulate
from ..analysis.statistics import iqm
from ..claims.judging import (
    Evidence,
    better,
    compare_pairs,
    describe_comparison,
    equivalent,
    holm_corrected,
    make_verdict,
)
from ..claims.verdict import Verdict
from ..figures.figure import Figure
from ..records import Record
from .shared import momentum_damping
from .shared.grids import Grid, seeds

GRID = Grid(
    paper={
        "problem": "svhn",
        "network": "svhn",
        "method": ["momentum", "oracle", "diagonal", "window"],
        "width": [8, 16],
        "batch": [4, 16, 64],
        "alpha": [0.005, 0.01],
        "beta": [0.9, 0.99],
        "damped": [True, False],
        "seed": seeds(5),
        "steps": 20_000,
        "precision": "tf32",
    },
    quick={"width": 8, "batch": 16, "alpha": 0.01, "beta": 0.9, "damped": False, "steps": 10_000},
    smoke={"width": 2, "batch": 4, "seed": seeds(2), "steps": 10},
)
PAPER_SVHN_METHODS = ["momentum", "oracle", "diagonal"]
LOSSES = {"training": "training loss", "evaluation": "test loss"}
LOSS = "cross-entropy"
MAX_LOSS_RATIO_IF_LEARNED = 0.8  # final to initial training loss
PAIRS = [("momentum", "oracle"), ("diagonal", "momentum")]


def panels(records: Sequence[Record]) -> list[Panel]:
    """Return the training loss of each reading, and everything else for undamped momentum, which learns more."""
    selected = momentum_damping.select_reading(records, momentum_damping.UNDAMPED)
    error_rates = learning_curves([_with_error_rates(record) for record in selected], iqm, "evaluation accuracy")
    return [
        *(
            Panel(f"training loss, {reading}", "steps", LOSS, learning_curves(some, mean, "training"), log_y=True)
            for reading in momentum_damping.READINGS
            if (some := momentum_damping.select_reading(records, reading))
        ),
        Panel("test loss", "steps", LOSS, learning_curves(selected, mean, "evaluation"), log_y=True),
        Panel("test error rate", "steps", "error rate (IQM)", error_rates),
        *(_by_learning_rate(selected) if len({record.run.alpha for record in selected}) > 1 else []),
    ]


def _by_learning_rate(records: Sequence[Record]) -> list[Panel]:
    line = sensitivity_curves(records, "alpha", mean)
    return [
        Panel("final test loss", AXIS_LABELS["alpha"], LOSS, line, log_x=True, log_y=True),
        *divergence_panels(records, "alpha", momentum_damping.UNDAMPED),
    ]


def _with_error_rates(record: Record) -> Record:
    """Return the record with ``1 - accuracy`` instead of accuracies; infinite for a diverged run, like every error."""
    curves = {which: curve for which, curve in record.curves.items() if which.endswith("accuracy")}
    error_rates = {which: np.where(np.isinf(curve), np.inf, 1 - curve) for which, curve in curves.items()}
    return replace(record, curves=error_rates)


def _verdict(records: Sequence[Record], reading: str) -> Verdict:
    """Judge that only the training loss of the oracle differs from momentum's; no test loss and no other method's."""
    selected = select(records, method=PAPER_SVHN_METHODS)
    evidence, _ = holm_corrected([each for curve in LOSSES for each in _compare_losses(selected, curve, PAIRS)])
    oracle, *others = evidence
    findings = [better(oracle), *map(equivalent, others)]
    beyond = [
        describe_comparison(each)
        for curve in LOSSES
        for each in _compare_losses(records, curve, [("window", "momentum")])
    ]
    table = tabulate(records)
    note = " ".join(
        [
            *(describe_iqm(table.final(curve), f"Final {name} (IQM)") for curve, name in LOSSES.items()),
            describe_iqm(
                tabulate([_with_error_rates(record) for record in records]).final("evaluation accuracy"),
                "Test error rate (IQM)",
            ),
            f"Beyond the paper: {'; '.join(beyond)}.",
        ]
    )
    if not _has_learned(selected):
        findings = [replace(finding, outcome="inconclusive") for finding in findings]
        note = f"Hardly anything was learned, so that methods cannot differ. {note}"
    return make_verdict(2, findings, selected, note, reading)


def _has_learned(records: Sequence[Record]) -> bool:
    """Return whether the training loss (IQM) of some method has fallen by a fifth."""
    table = tabulate(records)
    return any(
        float(iqm(values[-1])) < MAX_LOSS_RATIO_IF_LEARNED * float(iqm(values[0]))
        for values in table.curves("training").values()
    )


def _compare_losses(records: Sequence[Record], curve: str, pairs: list[tuple[str, str]]) -> list[Evidence]:
    """Compare pairs of methods; their labels name the loss."""
    table = tabulate(records)
    losses = {f"{label(method)} ({LOSSES[curve]})": values for method, values in table.final(curve).items()}
    named = dict(zip(table.records, losses, strict=True))
    return compare_pairs(losses, [(named[a], named[b]) for a, b in pairs], table.worst_error(curve))


FIGURE = Figure(
    name="fig2",
    title="SVHN: corrected momentum with fixed targets",
    claims=(2,),
    settings="SVHN, 73,257 training and 26,032 test images; network of 4 convolutions and 3 dense layers, width 8 and "
    "16; β 0.9 and 0.99; α 0.005 and 0.01; batches of 4, 16 and 64; damped and undamped momentum; 5 seeds; 20,000 "
    "steps. μ̂ (window) is not in the paper; it has this library's bound on the correction.",
    runs=GRID,
    panels=panels,
    judge=momentum_damping.judge_readings(_verdict),
    cut="Undamped momentum only, width 8, batches of 16, α 0.01, β 0.9, and 10,000 steps, to save time.",
)
