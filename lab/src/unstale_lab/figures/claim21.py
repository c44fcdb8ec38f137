"""Claim 21: activations: how stable their Taylor expansions are, and how well they learn."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.agreement import MAX_DISAGREEMENT, cosine_curves, mean_disagreement
from ..analysis.curves import MSE, learning_curves, with_prefix
from ..analysis.formatting import describe_final_errors, describe_iqm, label
from ..analysis.panels import Panel
from ..analysis.run_table import select, tabulate, without
from ..analysis.statistics import iqm
from ..claims.contrast import compare_pairs, holm_corrected
from ..claims.judging import better, make_verdict
from ..claims.sentences import describe_ratios, sentence
from ..claims.verdict import Reading, Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import REPLAY_GRID, seeds, union
from .shared.readings import ERROR_CURVES, as_authors_ran, by_reading, each_reading, reading_prefix

SMOOTH = ("tanh", "elu", "selu")
BY_ACTIVATION = ("activation",)

TEXT_GRID = REPLAY_GRID.vary(
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
# The first steps, in each of which the agreement is measured: the network is still close to its random initialization.
INITIAL_STEPS = 20
TRAINED_GRIDS = (TEXT_GRID, as_authors_ran(TEXT_GRID, method=["momentum", "full"]))
INITIAL_GRIDS = tuple(grid.vary(paper={"method": "full", "steps": INITIAL_STEPS}) for grid in TRAINED_GRIDS)


def _split(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Return the first steps, and whole trainings."""
    return select(records, steps=INITIAL_STEPS), without(records, steps=INITIAL_STEPS)


def panels(records: Sequence[Record]) -> list[Panel]:
    return [panel for reading, group in by_reading(records).items() for panel in _panels(group, reading)]


def _panels(records: Sequence[Record], reading: Reading) -> list[Panel]:
    initial, trained = _split(records)
    prefix, curve = reading_prefix(reading), ERROR_CURVES[reading]
    groups = {"in the first steps": initial, "": select(trained, method="full")}
    agreement = [
        Panel(
            with_prefix(prefix, f"{label('full')}: cosine (samples) {when}".strip()),
            "steps",
            "cosine with the true gradient",
            cosine_curves(group, by=BY_ACTIVATION),
        )
        for when, group in groups.items()
    ]
    errors = [
        Panel(
            with_prefix(prefix, f"{label(method)}: error"),
            "steps",
            MSE,
            learning_curves(select(trained, method=method), iqm, curve, by=BY_ACTIVATION),
            log_y=True,
        )
        for method in ("full", "momentum")
    ]
    return [*agreement, *errors]


def _verdict(records: Sequence[Record], reading: Reading) -> Verdict:
    """Judge stability (1 - cosine in the first steps) and final errors."""
    initial, trained = _split(records)
    selected = select(trained, method="full")
    disagreement, table = mean_disagreement(initial, by=BY_ACTIVATION), tabulate(selected, BY_ACTIVATION)
    pairs = [("leaky_relu", activation) for activation in (*SMOOTH, "relu")]
    curve = ERROR_CURVES[reading]
    errors = compare_pairs(table.final(curve), pairs, table.worst_error(curve), table.values("alpha"))
    stability = compare_pairs(disagreement, [(a, b) for b in ("leaky_relu", "relu") for a in SMOOTH], MAX_DISAGREEMENT)
    contrasts, _ = holm_corrected([*stability, *errors])
    relations = ["has a more stable expansion than"] * len(stability) + ["learns better than"] * len(errors)
    parts = [
        better(each, statement=f"{label(each.a)} {relation} {label(each.b)}")
        for each, relation in zip(contrasts, relations, strict=True)
    ]
    notes = " ".join(
        [
            "All comparisons are for μ̂. More stable means a lower 1 - cosine.",
            describe_iqm(disagreement, f"1 - cosine in the first {INITIAL_STEPS} steps (IQM)"),
            describe_iqm(mean_disagreement(selected, by=BY_ACTIVATION), "1 - cosine over the whole training (IQM)"),
            describe_final_errors(selected, BY_ACTIVATION, "Final errors (IQM)"),
            describe_final_errors(select(trained, method="momentum"), BY_ACTIVATION, "Final errors of μ (IQM)"),
        ]
    )
    of_leaky_relu = [each for each in contrasts if "leaky_relu" in (each.a, each.b)]
    stable, learns = of_leaky_relu[: len(SMOOTH)], of_leaky_relu[len(SMOOTH) :]
    why = sentence(
        describe_ratios(
            f"in the first {INITIAL_STEPS} steps, 1 - cosine is {{}} that of Leaky ReLU",
            {label(each.a): each for each in stable},
        ),
        describe_ratios(
            "the final error of Leaky ReLU is {} that of the others", {label(each.b): each for each in learns}
        ),
    )
    return make_verdict(21, why, parts, [*initial, *selected], notes, reading)


FIGURE = Figure(
    name="claim21",
    title="Activations: Taylor expansions and errors",
    claims=(21,),
    settings="Mountain Car from replay; Leaky ReLU, ReLU, tanh, ELU, SELU; MLP of 4 layers of width 16; α 0.1 and "
    "0.05; β 0.9; batches of 16; 10 seeds; 5,000 steps. Taylor expansions in the first 20 steps. The "
    "authors' code: gradients of δ² with a Taylor term of half strength.",
    runs=union(*TRAINED_GRIDS, *INITIAL_GRIDS),
    panels=panels,
    judge=each_reading(_verdict),
)
