"""Claim 22: the full correction, dense, of a small network that sees MsPacman; and where its time goes."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Record
from ..statistics import iqm
from .base import Figure, Panel, Verdict
from .grids import FOR_WANT_OF_TIME
from .judging import Part, better, conclude, decided, told
from .layout import select
from .pacman import AGAINST, PLAY, TRUTH, ends, error_panels, paired, resolved
from .words import name, number, typical

# Nothing is measured besides errors: the time of steps is.
LITTLE = 0.8
GRID = PLAY.varied(
    paper={
        "network": "small_atari",
        "method": ["adam", "adam_dense", "adam_window", "adam_linearized"],
        "width": 16,
        "alpha": 1e-4,
        "beta": 0.9,
    },
    quick={"steps": 10_000},
    smoke={"width": 2},
)


def panels(records: Sequence[Record]) -> list[Panel]:
    return error_panels(resolved(records))


def judge(records: Sequence[Record]) -> list[Verdict]:
    own = resolved(records)
    [dense] = paired(own, TRUTH, [("adam_dense", "adam")])
    beside = [told(each) for each in paired(own, TRUTH, [("adam_window", "adam"), ("adam_window", "adam_dense")])]
    note = " ".join(
        [
            *_little_learned(own),
            *(typical(ends(own, curve), f"Interquartile means {about}") for curve, about in AGAINST.items()),
            f"Beyond the paper: {'; '.join(beside)}.",
            _times(own),
        ]
    )
    return [conclude(22, [better(dense), _mostly_backward(own)], own, note)]


def _little_learned(records: Sequence[Record]) -> list[str]:
    """Said where errors hardly fall after they were measured first."""
    first, last = (float(iqm([record.curves[TRUTH][at] for record in records])) for at in (1, -1))
    if last < LITTLE * first:
        return []
    after = int(records[0].at[1])
    return [f"Of the error after {after:,} steps {100 * last / first:.0f} % are left: little was learned to differ in."]


def _mostly_backward(records: Sequence[Record]) -> Part:
    """The gradients of samples are what the further backward passes give: a method that finds them and throws them away
    tells their time from that of Z."""
    adam, linearized, dense = (_seconds(records, m) for m in ("adam", "adam_linearized", "adam_dense"))
    backward, z, extra = linearized - adam, dense - linearized, dense - adam
    if extra <= 0:
        return Part("the extra time cannot be told from none", "inconclusive")
    share = backward / extra  # less than none, where gradients sample by sample come quicker than their sum
    says = (
        f"of the extra {_milliseconds(extra)} a step, {_milliseconds(backward)} are backward passes and "
        f"{_milliseconds(z)} are Z: {100 * share:.0f} %"
    )
    return Part(says, decided(share > 0.5, len(select(records, method="adam_dense"))), share)


def _seconds(records: Sequence[Record], method: str) -> float:
    """Of a step of all seeds side by side."""
    own = select(records, method=method)
    return sum(record.seconds for record in own) / own[0].run.steps


def _times(records: Sequence[Record]) -> str:
    methods = dict.fromkeys(record.run.method for record in records)
    times = ", ".join(f"{name(method)} {_milliseconds(_seconds(records, method))}" for method in methods)
    seeds = len(select(records, method="adam"))
    return f"A step of {seeds} seeds side by side: {times}."


def _milliseconds(seconds: float) -> str:
    return f"{number(1000 * seconds)} ms"


FIGURE = Figure(
    name="claim22",
    title="MsPacman, a small network: the dense correction, and its time",
    claims=(22,),
    settings="As figure 9, with the paper's small network of 5 convolutions, n = 12,745; α 0.0001; β 0.9; batches of "
    "32; 20 seeds; 500,000 steps.",
    runs=GRID,
    panels=panels,
    judge=judge,
    cut=f"5 seeds and 10,000 steps: {FOR_WANT_OF_TIME}",
)
