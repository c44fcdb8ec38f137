"""Claim 22, time: where the extra time of the dense full correction goes, on the network of ``claim22``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..analysis.formatting import format_number, label
from ..analysis.panels import Panel, Series
from ..analysis.run_table import select
from ..claims.judging import decide, make_verdict
from ..claims.verdict import Effect, Part, Verdict
from ..records import Record
from .claim22 import GRID as ERROR_GRID
from .figure import Figure
from .shared.grids import seeds

PASSES, CORRECTION = "seconds in passes", "seconds in the correction"  # curves of the measurement "phases"
STATEMENT = "most of the extra time goes into backward passes"
# Short, so that all scales have the same runs.
GRID = ERROR_GRID.vary(
    paper={
        "method": ["adam", "adam_dense"],
        "measure": ("phases",),
        "seed": seeds(5),
        "steps": 100,
    },
    smoke={"seed": seeds(2), "steps": 30},
)
# What is drawn: a method, a phase of its steps, and the name of the line.
LINES = (
    ("adam", PASSES, f"{label('adam')}: passes"),
    ("adam_dense", PASSES, f"{label('adam_dense')}: passes"),
    ("adam_dense", CORRECTION, f"{label('adam_dense')}: Z and its products"),
)


def panels(records: Sequence[Record]) -> list[Panel]:
    lines = [_line(select(records, method=method), method, phase, name) for method, phase, name in LINES]
    return [Panel("time per step", "parameters n", "milliseconds, 5 seeds batched", lines, log_x=True, log_y=True)]


def _line(records: Sequence[Record], method: str, phase: str, name: str) -> Series:
    """Return the milliseconds of a phase by network size, of sizes at which it was timed."""
    by_size = {record.parameters: 1000 * float(record.curves[phase][-1]) for record in records}
    timed = sorted((float(size), time) for size, time in by_size.items() if 0 < time < math.inf)
    x, y = [size for size, _ in timed], [time for _, time in timed]
    return Series(name, x, y, method=method, dashed=phase == CORRECTION, runs=len(records))


def judge(records: Sequence[Record]) -> list[Verdict]:
    return [make_verdict(22, [_mostly_backward(records)], records, scope="time")]


def _mostly_backward(records: Sequence[Record]) -> Part:
    """Judge whether most of the extra time goes into backward passes.

    Both are timed within the steps: passes through the network, those of Adam subtracted, and all else that the
    correction does.
    """
    passes = {method: _last(records, method, PASSES) for method in ("adam", "adam_dense")}
    backward, z = passes["adam_dense"] - passes["adam"], _last(records, "adam_dense", CORRECTION)
    if not 0 < backward + z < math.inf:
        both = (
            f"{_milliseconds(passes['adam'])} with Adam and {_milliseconds(passes['adam_dense'])} with the correction"
        )
        return Part(
            STATEMENT, "undecided", f"no extra time was measured: passes take {both}, Z takes {_milliseconds(z)}"
        )
    share = backward / (backward + z)  # negative if per-sample gradients are faster than their sum
    found = (
        f"extra time per step {_milliseconds(backward + z)}, of which {_milliseconds(backward)} ({100 * share:.0f} %) "
        f"are backward passes and {_milliseconds(z)} are Z and its products"
    )
    effect = Effect("share of backward passes in the extra time", share, is_ratio=False)
    seeds = len(select(records, method="adam_dense"))
    return Part(STATEMENT, decide(share > 0.5, seeds), found, effect=effect, brief=f"{100 * share:.0f} %")


def _last(records: Sequence[Record], method: str, curve: str) -> float:
    """Return the last value of a curve, which is the same for all seeds, because they are batched."""
    return float(select(records, method=method)[0].curves[curve][-1])


def _milliseconds(seconds: float) -> str:
    return f"{format_number(1000 * seconds)} ms"


FIGURE = Figure(
    name="claim22_time",
    title="MsPacman, small network: time of the dense correction",
    claims=(22,),
    settings="As claim 22 (errors); 100 steps of 5 seeds, batched. Phases of a step are timed by the "
    "clock on a CPU, and by the kernels of 20 steps on a GPU.",
    runs=GRID,
    panels=panels,
    judge=judge,
)
