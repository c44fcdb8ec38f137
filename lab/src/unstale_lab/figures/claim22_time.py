"""Claim 22: where the extra time of the dense full correction goes, in steps of a small network on MsPacman."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..analysis.formatting import format_number
from ..analysis.panels import Panel
from ..analysis.run_table import select
from ..claims.judging import MIN_SEEDS, make_verdict, undecided
from ..claims.sentences import sentence
from ..claims.verdict import Answer, Effect, Part, Verdict
from ..engine.phase_timer import CORRECTION, OF_KERNELS, PASSES
from ..records import Record
from . import claim22
from .figure import Figure
from .shared.grids import seeds

MOST = 0.6  # a single timing decides whether it is "most" only if the share is above this, or below its complement
STATEMENT = "most of the extra time goes into backward passes"
CPU_NOTE = "the paper's statement is about a GPU"
# Few steps, because the profiler is slow. All scales have the same, but for a test of whether it works at all.
GRID = claim22.GRID.vary(
    paper={"method": ["adam", "adam_dense"], "measure": ("phases",), "seed": seeds(5), "steps": 100},
    smoke={"width": 2, "seed": seeds(2), "steps": 30},
)


def panels(records: Sequence[Record]) -> list[Panel]:
    """Return nothing: two numbers need no picture."""
    return []


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge whether most of the extra time goes into backward passes.

    Both are timed within the steps: passes through the network, those of Adam subtracted, and all else that the
    correction does. The paper's statement is about a GPU, so that times on a CPU decide nothing.
    """
    kernels_are_timed = {OF_KERNELS + PASSES in record.curves for record in records}
    if len(kernels_are_timed) > 1:
        found = "some runs were timed on a GPU and others on a CPU"
        return [make_verdict(22, sentence(found), [Part(STATEMENT, "undecided", found)], records, scope="time")]
    [on_gpu] = kernels_are_timed
    prefix, device = (OF_KERNELS, "GPU") if on_gpu else ("", "CPU")
    passes = {method: _mean_over_seeds(records, method, prefix + PASSES) for method in ("adam", "adam_dense")}
    z = _mean_over_seeds(records, "adam_dense", prefix + CORRECTION)
    part = _mostly_backward(passes["adam_dense"] - passes["adam"], z, len(select(records, method="adam_dense")))
    both = f"{_milliseconds(passes['adam'])} with Adam and {_milliseconds(passes['adam_dense'])} with the correction"
    notes = f"Passes through the network take {both} per step, Z and its products {_milliseconds(z)}."
    share = f"passes through the network take {part.brief}"
    why = sentence(f"on a {device}, {share if part.effect else part.found}", "" if on_gpu else CPU_NOTE)
    return [make_verdict(22, why, [part if on_gpu else undecided(part, CPU_NOTE)], records, notes, scope="time")]


def _mostly_backward(backward: float, z: float, runs: int) -> Part:
    """Judge from the extra seconds in passes, and the seconds in the correction."""
    if not 0 < backward + z < math.inf:
        return Part(STATEMENT, "undecided", "no extra time was measured")
    share = backward / (backward + z)  # negative if per-sample gradients are faster than their sum
    found = (
        f"extra time per step {_milliseconds(backward + z)}, of which {_milliseconds(backward)} ({100 * share:.0f} %) "
        f"are passes through the network and {_milliseconds(z)} are Z and its products"
    )
    effect = Effect("share of passes in the extra time", share, is_ratio=False)
    answer: Answer = "holds" if share > MOST else "does not hold" if share < 1 - MOST else "undecided"
    if runs < MIN_SEEDS:
        answer = "undecided"
    brief = f"{100 * share:.0f} % of the correction's extra time" if share > 0 else "no longer than with Adam"
    return Part(STATEMENT, answer, found, effect=effect, brief=brief)


def _mean_over_seeds(records: Sequence[Record], method: str, curve: str) -> float:
    """Return the mean over seeds of the last value of a curve."""
    return float(np.mean([record.curves[curve][-1] for record in select(records, method=method)]))


def _milliseconds(seconds: float) -> str:
    return f"{format_number(1000 * seconds)} ms"


FIGURE = Figure(
    name="claim22_time",
    title="MsPacman, small network: time of the dense correction",
    claims=(22,),
    settings="The network, α, β and batches of claim 22; 100 steps of 5 seeds, one after the other. Passes through the "
    "network and the rest of the correction are timed apart: by the clock on a CPU, by the kernels of 20 steps on a "
    "GPU.",
    runs=GRID,
    panels=panels,
    judge=judge,
)
