"""Figure 2: classification of photographs, the supervised case with a convolutional network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..records import Record
from ..statistics import iqm
from . import damping
from .base import Figure, Panel, Verdict
from .curves import AXES, against, divergence_panels, learning, mean
from .grids import Grid, seeds
from .judging import Evidence, better, compared, conclude, corrected, same, told
from .layout import lay_out, select
from .words import name, typical

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
THREE = ["momentum", "oracle", "diagonal"]  # the paper's
LOSSES = {"training": "training loss", "evaluation": "test loss"}
LOSS = "cross-entropy"
LEARNED = 0.8
PAIRS = [("momentum", "oracle"), ("diagonal", "momentum")]


def panels(records: Sequence[Record]) -> list[Panel]:
    """The training loss of both readings, where both are there; and all else of the undamped one, which learns more."""
    own, about = damping.read(records, damping.UNDAMPED)
    wrong = learning([_misread(record) for record in own], iqm, "evaluation accuracy")
    return [
        *(
            Panel(f"training loss, {short}", "steps", LOSS, learning(some, mean, "training"), log_y=True)
            for some, short in (damping.read(records, reading) for reading in damping.READINGS)
            if some
        ),
        Panel("test loss", "steps", LOSS, learning(own, mean, "evaluation"), log_y=True),
        Panel("test pictures misread", "steps", "share misread, interquartile mean", wrong),
        *(_by_rate(own, about) if len({record.run.alpha for record in own}) > 1 else []),
    ]


def _by_rate(records: Sequence[Record], about: str) -> list[Panel]:
    line = against(records, "alpha", mean)
    return [
        Panel("test loss in the end", AXES["alpha"], LOSS, line, log_x=True, log_y=True),
        *divergence_panels(records, "alpha", about),
    ]


def _misread(record: Record) -> Record:
    """1 - accuracy, of which less is better, as of every error: a diverged run is infinitely bad."""
    curves = {which: curve for which, curve in record.curves.items() if which.endswith("accuracy")}
    shares = {which: np.where(np.isinf(curve), np.inf, 1 - curve) for which, curve in curves.items()}
    return replace(record, curves=shares)


def _verdict(records: Sequence[Record], reading: str) -> Verdict:
    """Of what is compared with momentum, on both sets of pictures, the oracle alone differs, and in training alone."""
    own = select(records, method=THREE)
    evidence, _ = corrected([each for curve in LOSSES for each in _compared(own, curve, PAIRS)])
    oracle, *others = evidence
    parts = [better(oracle), *map(same, others)]
    beyond = [told(each) for curve in LOSSES for each in _compared(records, curve, [("window", "momentum")])]
    layout = lay_out(records)
    note = " ".join(
        [
            *(typical(layout.final(curve), f"Interquartile means of the {what}") for curve, what in LOSSES.items()),
            typical(
                lay_out([_misread(record) for record in records]).final("evaluation accuracy"), "Test pictures misread"
            ),
            f"Beyond the paper: {'; '.join(beyond)}.",
        ]
    )
    if not _has_learned(own):
        parts = [replace(part, outcome="inconclusive") for part in parts]
        note = f"Hardly anything was learned, so that there is nothing to tell methods apart by. {note}"
    return conclude(2, parts, own, note, reading)


def _has_learned(records: Sequence[Record]) -> bool:
    """Whether the training loss of some method has fallen by a fifth, in the middle of its runs."""
    layout = lay_out(records)
    return any(float(iqm(own[-1])) < LEARNED * float(iqm(own[0])) for own in layout.curves("training").values())


def _compared(records: Sequence[Record], curve: str, pairs: list[tuple[str, str]]) -> list[Evidence]:
    """Pairs of methods, named with the loss that they are compared in."""
    layout = lay_out(records)
    losses = {f"{name(method)} ({LOSSES[curve]})": own for method, own in layout.final(curve).items()}
    named = dict(zip(layout.places, losses, strict=True))
    return compared(losses, [(named[a], named[b]) for a, b in pairs], layout.worst(curve))


FIGURE = Figure(
    name="fig2",
    title="Photographs of digits: momentum corrected where targets stand still",
    claims=(2,),
    settings="SVHN, 73,257 pictures, tested on 26,032 others; network of 4 convolutions and 3 layers, width 8 and 16; "
    "β 0.9 and 0.99; α 0.005 and 0.01; batches of 4, 16 and 64; damped and undamped momentum; 5 seeds; 20,000 steps. "
    "μ̂ by window, which the paper does not have, has this library's bound on the correction.",
    runs=GRID,
    panels=panels,
    judge=damping.judged(_verdict),
    cut="Undamped momentum alone, width 8, batches of 16, α 0.01, β 0.9, and 10,000 steps: for want of time.",
)
