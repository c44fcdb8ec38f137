"""Claim 21: activations, how steady their Taylor expansions are and how well they learn."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Record
from ..statistics import iqm
from .agreement import OPPOSITE, cosines, disagreement
from .base import Figure, Panel, Verdict
from .curves import ERROR, learning
from .grids import REPLAY, seeds
from .judging import better, compared, conclude, corrected
from .layout import lay_out, select
from .words import final_errors, name, typical

SMOOTH = ("tanh", "elu", "selu")
BY = ("activation",)
EARLY = 0.1  # of the training, in which networks are still near their random initial state

GRID = REPLAY.varied(
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
    own = select(records, method="full")
    agreement = [
        Panel(f"μ̂: cosine, {kind}", "steps", "cosine with the true gradient", cosines(own, kind, BY))
        for kind in ("samples", "batches")
    ]
    errors = [
        Panel(
            f"{name(method)}: error", "steps", ERROR, learning(select(records, method=method), iqm, by=BY), log_y=True
        )
        for method in ("full", "momentum")
    ]
    return [*agreement, *errors]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Steadier is a lower 1 - cosine in the first tenth of the training; better is a lower final error."""
    own = select(records, method="full")
    unsteadiness, layout = disagreement(own, end=EARLY, by=BY), lay_out(own, BY)
    steadier = compared(unsteadiness, [(activation, "leaky_relu") for activation in SMOOTH], OPPOSITE)
    others = [("leaky_relu", activation) for activation in ("relu", *SMOOTH)]
    evidence, _ = corrected([*steadier, *compared(layout.final(), others, layout.worst())])
    parts = [better(each, relation="is steadier than") for each in evidence[: len(steadier)]]
    parts += [better(each, relation="learns better than") for each in evidence[len(steadier) :]]
    note = " ".join(
        [
            "All of μ̂; steadier is a lower 1 - cosine in the first tenth of training.",
            typical(unsteadiness, "1 - cosine early"),
            typical(disagreement(own, by=BY), "1 - cosine along training"),
            final_errors(own, BY, "Final errors"),
            final_errors(select(records, method="momentum"), BY, "Final errors of μ"),
        ]
    )
    return [conclude(21, parts, own, note)]


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
