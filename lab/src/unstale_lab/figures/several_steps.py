"""Figures 14 and 15: figure 3 on other problems, whose targets look several steps ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..records import Record
from ..statistics import iqm
from .base import Figure, Panel, Verdict
from .curves import ERROR, learning, overview
from .fig3 import LARGEST, MILDER, divergences_at_largest
from .grids import FOUR, ORDER, REPLAY
from .judging import better, compared, conclude
from .layout import lay_out, select, without
from .words import final_errors, name, typical

TWICE = 0.5  # "does not converge" with one step is an error at least twice as large as with several


def figure(key: str, title: str, claim: int, problem: str, n_step: int) -> Figure:
    several = REPLAY.varied(paper={"problem": problem, "n_step": n_step})
    one = several.varied(
        paper={"n_step": 1, "method": ["full", "momentum"], "width": 16, "batch": 16}, smoke={"width": 4, "batch": 4}
    )
    return Figure(
        name=key,
        title=title,
        claims=(claim,),
        settings=f"{title}; MLP of 4 layers, width 8, 16 and 32; β 0.9 and 0.99; "
        "α 0.5, 0.1 and 0.05; batches of 4, 16 and 64; 10 seeds; 5,000 steps. Beside it one-step targets for μ and μ̂, "
        "width 16, batches of 16.",
        runs=lambda scale: [*several(scale), *one(scale)],
        panels=_panels,
        judge=lambda records: _judge(claim, records),
    )


def _split(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Runs of several steps, and of one."""
    return without(records, n_step=1), select(records, n_step=1)


def _like(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """The records that have their like among the others, but for the number of steps."""
    wanted = {replace(other.run, n_step=1) for other in others}
    return [record for record in records if replace(record.run, n_step=1) in wanted]


def _panels(records: Sequence[Record]) -> list[Panel]:
    several, one = _split(records)
    stepped = [("", _like(several, one)), (", one step", one)]
    compared_steps = [
        replace(line, label=f"{name(line.method)}{suffix}", dashed=bool(suffix))
        for suffix, own in stepped
        for line in learning(own, iqm)
    ]
    return [
        *overview(several),
        Panel("targets of one step and of several", "steps", ERROR, compared_steps, log_y=True),
    ]


def _stepped(method: str, steps: str) -> str:
    return f"{name(method)}, {steps}"


def _judge(claim: int, records: Sequence[Record]) -> list[Verdict]:
    return [_verdict(claim, records, reading=""), _verdict(claim, without(records, alpha=LARGEST), MILDER)]


def _verdict(claim: int, records: Sequence[Record], reading: str) -> Verdict:
    """Figure 3's order, and much lower errors with targets of several steps than of one."""
    several, one = _split(records)
    methods, single = lay_out(select(several, method=FOUR)), lay_out(one)
    steps = {
        _stepped(method, label): own
        for label, layout in (("several steps", lay_out(_like(several, one))), ("one step", single))
        for method, own in layout.final().items()
    }
    ahead = [(_stepped(method, "several steps"), _stepped(method, "one step")) for method in ("full", "momentum")]
    worst = max(methods.worst(), single.worst())
    evidence = compared(methods.final() | steps, [*ORDER, *ahead], worst)
    parts = [better(each) for each in evidence[: len(ORDER)]]
    parts += [better(each, least=TWICE) for each in evidence[len(ORDER) :]]
    told = [divergences_at_largest(several), final_errors(several), typical(steps, "With several steps and with one")]
    return conclude(claim, parts, [*select(several, method=FOUR), *one], " ".join(filter(None, told)), reading)
