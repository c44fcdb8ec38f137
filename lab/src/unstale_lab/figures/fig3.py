"""Figure 3: Mountain Car from replay, the paper's main comparison."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from ..records import Record
from ..statistics import iqm
from .base import Figure, Verdict
from .curves import overview
from .grids import FOUR, ORDER, REPLAY, seeds
from .judging import all_of, better, compared, conclude, differs
from .layout import Layout, lay_out, select, without
from .words import at_best, final_errors, name, number

LARGEST = 0.5  # the learning rate at which the correction, unbounded, is prone to diverge
MILDER = f"without α = {LARGEST}"
IN_ORDER = "in the paper's order"
SURE = 0.001  # the paper's threshold
# The pair that the paper is about comes first.
PAIRS = sorted(
    combinations(["full", "momentum", "oracle", "diagonal"], 2), key=lambda pair: pair != ("full", "momentum")
)


def judge(records: Sequence[Record]) -> list[Verdict]:
    """That the four differ, as the paper puts it; and that they do in its order, with and without the learning rate at
    which the correction diverges."""
    return [
        _different(records),
        _ordered(records, IN_ORDER),
        _ordered(without(records, alpha=LARGEST), f"{IN_ORDER}, {MILDER}"),
    ]


def _different(records: Sequence[Record]) -> Verdict:
    own = select(records, method=FOUR)
    layout = lay_out(own)
    parts = [differs(evidence, SURE) for evidence in compared(layout.final(), PAIRS, layout.worst())]
    differ = all_of(part.outcome for part in parts) == "holds"
    return conclude(3, parts, own, _told(records), lead=_direction(layout, differ))


def _ordered(records: Sequence[Record], reading: str) -> Verdict:
    own = select(records, method=FOUR)
    layout = lay_out(own)
    parts = [better(evidence, SURE) for evidence in compared(layout.final(), ORDER, layout.worst())]
    return conclude(3, parts, own, _told(records), reading)


def _told(records: Sequence[Record]) -> str:
    told = [final_errors(records), divergences_at_largest(records), at_best(lay_out(records).final())]
    return " ".join(filter(None, told))


def _direction(layout: Layout, differ: bool) -> str:
    """Whether the methods differ in the paper's order, which is the worst, and all of them from the best on."""
    place = {method: (float(iqm(own)), int(np.isinf(own).sum())) for method, own in layout.final().items()}
    *_, worst = ranked = sorted(place, key=place.__getitem__)
    are = "They differ" if differ else "Not all are found to differ"
    order = "in" if all(place[a] < place[b] for a, b in ORDER) else "not in"
    diverged = np.isinf(layout.final()[worst])
    at_largest = int(diverged[np.array(layout.values("alpha")) == LARGEST].sum())
    counts = f", for {diverged.sum()} of {diverged.size} runs diverged, {at_largest} of them at α = {LARGEST}"
    each = ", ".join(f"{name(method)} {number(place[method][0])}" for method in ranked)
    told = f"{name(worst)} is the worst{counts if diverged.any() else ''}. From the best: {each}."
    return f"{are}, and they are {order} the paper's order: {told}"


def divergences_at_largest(records: Sequence[Record]) -> str:
    """How many runs of each method diverged at the largest learning rate, if it is among them."""
    largest = select(records, alpha=LARGEST)
    if not largest:
        return ""
    counts = {name(method): np.isinf(own) for method, own in lay_out(largest).final().items()}
    told = ", ".join(f"{own.sum()} of {own.size} runs of {method}" for method, own in counts.items() if own.any())
    return f"At α = {LARGEST}, {told} diverged." if told else f"At α = {LARGEST} no run diverged."


FIGURE = Figure(
    name="fig3",
    title="Mountain Car from replay: all methods",
    claims=(3,),
    settings="Mountain Car, transitions drawn independently; MLP of 4 layers, width 8, 16 and 32; β 0.9 and 0.99; "
    "α 0.5, 0.1 and 0.05; batches of 4, 16 and 64; 10 seeds; 5,000 steps.",
    runs=REPLAY.varied(paper={}, quick={"seed": seeds(6)}),
    panels=overview,
    judge=judge,
)
