"""Figures 14 and 15: figure 3 on other problems, with n-step targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...analysis.curves import MSE, learning_curves, overview_panels
from ...analysis.formatting import describe_final_errors, describe_iqm, label
from ...analysis.panels import Panel
from ...analysis.run_table import select, tabulate, without
from ...analysis.statistics import iqm
from ...claims.judging import better, compare_pairs, make_verdict
from ...claims.verdict import Verdict
from ...figures.figure import Figure
from ...records import Record
from ..fig3 import LARGEST_ALPHA, WITHOUT_LARGEST_ALPHA, describe_divergences_at_largest
from .grids import PAPER_METHODS, PAPER_ORDER, REPLAY_GRID

MIN_N_STEP_REDUCTION = 0.5  # one-step targets "do not converge": n-step targets at least halve the error


def n_step_figure(key: str, title: str, claim: int, problem: str, n_step: int) -> Figure:
    """Return the figure of a problem with ``n_step`` targets, and one-step targets for comparison."""
    several = REPLAY_GRID.vary(paper={"problem": problem, "n_step": n_step})
    one = several.vary(
        paper={"n_step": 1, "method": ["full", "momentum"], "width": 16, "batch": 16}, smoke={"width": 4, "batch": 4}
    )
    return Figure(
        name=key,
        title=title,
        claims=(claim,),
        settings=f"{title}; MLP of 4 layers, width 8, 16 and 32; β 0.9 and 0.99; "
        "α 0.5, 0.1 and 0.05; batches of 4, 16 and 64; 10 seeds; 5,000 steps. In addition one-step targets for μ and "
        "μ̂, width 16, batches of 16.",
        runs=lambda scale: [*several(scale), *one(scale)],
        panels=_panels,
        judge=lambda records: _judge(claim, records),
    )


def _split(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Return the runs with n-step targets and those with one-step targets."""
    return without(records, n_step=1), select(records, n_step=1)


def _matching(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """Return the records that have a counterpart among ``others`` that differs in ``n_step`` only."""
    wanted = {replace(other.run, n_step=1) for other in others}
    return [record for record in records if replace(record.run, n_step=1) in wanted]


def _panels(records: Sequence[Record]) -> list[Panel]:
    several, one = _split(records)
    groups = [("", _matching(several, one)), (", one-step", one)]
    lines = [
        replace(line, label=f"{label(line.method)}{suffix}", dashed=bool(suffix))
        for suffix, group in groups
        for line in learning_curves(group, iqm)
    ]
    return [
        *overview_panels(several),
        Panel("one-step and n-step targets", "steps", MSE, lines, log_y=True),
    ]


def _with_target(method: str, target: str) -> str:
    return f"{label(method)}, {target}"


def _judge(claim: int, records: Sequence[Record]) -> list[Verdict]:
    return [
        _verdict(claim, records, reading=""),
        _verdict(claim, without(records, alpha=LARGEST_ALPHA), WITHOUT_LARGEST_ALPHA),
    ]


def _verdict(claim: int, records: Sequence[Record], reading: str) -> Verdict:
    """Judge figure 3's order, and that n-step targets have much lower errors than one-step targets."""
    several, one = _split(records)
    methods, single = tabulate(select(several, method=PAPER_METHODS)), tabulate(one)
    by_target = {
        _with_target(method, target): values
        for target, table in (("n-step", tabulate(_matching(several, one))), ("one-step", single))
        for method, values in table.final().items()
    }
    target_pairs = [
        (_with_target(method, "n-step"), _with_target(method, "one-step")) for method in ("full", "momentum")
    ]
    worst = max(methods.worst_error(), single.worst_error())
    evidence = compare_pairs(methods.final() | by_target, [*PAPER_ORDER, *target_pairs], worst)
    findings = [better(each) for each in evidence[: len(PAPER_ORDER)]]
    findings += [better(each, min_reduction=MIN_N_STEP_REDUCTION) for each in evidence[len(PAPER_ORDER) :]]
    texts = [
        describe_divergences_at_largest(several),
        describe_final_errors(several),
        describe_iqm(by_target, "n-step and one-step targets (IQM)"),
    ]
    return make_verdict(
        claim, findings, [*select(several, method=PAPER_METHODS), *one], " ".join(filter(None, texts)), reading
    )
