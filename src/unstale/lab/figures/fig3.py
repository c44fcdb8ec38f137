"""Figure 3: Mountain Car from replay, the paper's main comparison."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from ..records import Record
from .base import Figure, Verdict
from .curves import overview
from .grids import REPLAY
from .judging import at_best, compared, conclude, differs, name, typical
from .layout import lay_out, select, without

LARGEST = 0.5  # the learning rate at which the correction, unbounded, is prone to diverge
MILDER = f"without α = {LARGEST}"
# The pair that the paper is about comes first.
PAIRS = sorted(
    combinations(["full", "momentum", "oracle", "diagonal"], 2), key=lambda pair: pair != ("full", "momentum")
)


def judge(records: Sequence[Record]) -> list[Verdict]:
    return [
        _verdict(records, divergences_at_largest(records), reading=""),
        _verdict(without(records, alpha=LARGEST), "", MILDER),
    ]


def _verdict(records: Sequence[Record], note: str, reading: str) -> Verdict:
    errors = lay_out(records).final()
    parts = [differs(evidence, threshold=0.001) for evidence in compared(errors, PAIRS)]
    return conclude(3, parts, records, " ".join(filter(None, [typical(errors), note, at_best(errors)])), reading)


def divergences_at_largest(records: Sequence[Record]) -> str:
    """How many runs of each method diverged at the largest learning rate."""
    errors = lay_out(select(records, alpha=LARGEST)).final()
    counts = {method: int(np.isinf(own).sum()) for method, own in errors.items()}
    size = next(iter(errors.values())).size
    told = ", ".join(f"{count} of {size} runs of {name(method)}" for method, count in counts.items() if count)
    return f"At α = {LARGEST}, {told} diverged." if told else f"At α = {LARGEST} no run diverged."


FIGURE = Figure(
    name="fig3",
    title="Mountain Car from replay: all methods",
    claims=(3,),
    settings="Mountain Car, transitions drawn independently; MLP of 4 layers, width 8, 16 and 32; β 0.9 and 0.99; "
    "α 0.5, 0.1 and 0.05; batches of 4, 16 and 64; 10 seeds; 5,000 steps.",
    runs=REPLAY,
    panels=overview,
    judge=judge,
)
