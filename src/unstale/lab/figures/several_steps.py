"""Figures 14 and 15: figure 3 on other problems, whose targets look several steps ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..records import Record
from ..statistics import iqm
from .base import Figure, Panel, Verdict
from .curves import ERROR, learning, overview
from .fig3 import LARGEST, MILDER, divergences_at_largest
from .grids import REPLAY
from .judging import better, compared, conclude, name, typical
from .layout import lay_out, select, without

# Figure 3's order, from the pair that the paper is about.
ORDER = [
    ("full", "momentum"),
    ("oracle", "momentum"),
    ("full", "diagonal"),
    ("oracle", "diagonal"),
    ("diagonal", "momentum"),
]
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


def _judge(claim: int, records: Sequence[Record]) -> list[Verdict]:
    return [
        _verdict(claim, records, divergences_at_largest(without(records, n_step=1)), reading=""),
        _verdict(claim, without(records, alpha=LARGEST), "", MILDER),
    ]


def _verdict(claim: int, records: Sequence[Record], note: str, reading: str) -> Verdict:
    several, one = _split(records)
    errors = lay_out(several).final()
    parts = [better(evidence) for evidence in compared(errors, ORDER)]
    steps = {
        f"{name(method)}, {label}": own
        for label, some in (("several steps", _like(several, one)), ("one step", one))
        for method, own in lay_out(some).final().items()
    }
    pairs = [(f"{name(method)}, several steps", f"{name(method)}, one step") for method in ("full", "momentum")]
    parts += [better(evidence, least=TWICE) for evidence in compared(steps, pairs)]
    told = [typical(errors), typical(steps, "With several steps and with one"), note]
    return conclude(claim, parts, records, " ".join(filter(None, told)), reading)
