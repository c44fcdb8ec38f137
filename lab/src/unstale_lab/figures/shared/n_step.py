"""Figures 14 and 15: figure 3 on other problems, with n-step targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...analysis.curves import MSE, learning_curves
from ...analysis.formatting import describe_final_errors, describe_iqm, label
from ...analysis.panels import Panel
from ...analysis.run_table import select, tabulate, without
from ...analysis.statistics import iqm
from ...claims.contrast import compare_pairs, holm_corrected
from ...claims.judging import better, make_verdict
from ...claims.sentences import describe_errors, describe_ratios, relative_to, sentence, without_divergences
from ...claims.verdict import Reading, Verdict
from ...experiment import Run, Scale
from ...records import Record
from ..figure import Figure
from .grids import PAPER_METHODS, PAPER_ORDER, REPLAY_GRID, Grid
from .readings import ERROR_CURVES, as_authors_ran, by_reading, overview_panels, titled

CONVERGES = 0.5  # one-step targets "do not converge": n-step targets at least halve the error


@dataclass(frozen=True)
class NStepFigure:
    """Figure 3 on another problem, with targets of several steps, and of one step for comparison."""

    number: int  # of the figure
    claim: int
    name: str  # of the problem, in words
    problem: str
    n_step: int
    code_n_step: list[int]  # in the authors' code
    code_alphas: list[float]

    def grids(self) -> list[Grid]:
        text = REPLAY_GRID.vary(paper={"problem": self.problem, "n_step": self.n_step})
        code = as_authors_ran(
            text,
            problem=f"{self.problem}_raw",
            n_step=self.code_n_step,
            alpha=self.code_alphas,
            quick={"alpha": self.code_alphas[1:]},
            smoke={"alpha": self.code_alphas[1], "n_step": self.code_n_step[-1]},
        )
        one = {"n_step": 1, "method": ["full", "momentum"], "width": 16, "batch": 16}
        smoke = {"width": 4, "batch": 4}
        return [text, text.vary(paper=one, smoke=smoke), code, code.vary(paper=one, smoke=smoke)]

    def runs(self, scale: Scale) -> list[Run]:
        return [run for grid in self.grids() for run in grid(scale)]

    def panels(self, records: Sequence[Record]) -> list[Panel]:
        several = without(records, n_step=1)
        by_target = [_one_step_panel(group, reading) for reading, group in by_reading(records).items()]
        return [*overview_panels(several, f"Figure {self.number}"), *by_target]

    def judge(self, records: Sequence[Record]) -> list[Verdict]:
        return [self._verdict(group, reading) for reading, group in by_reading(records).items()]

    def _verdict(self, records: Sequence[Record], reading: Reading) -> Verdict:
        """Judge figure 3's order, and that n-step targets have much lower errors than one-step targets."""
        several, one = select(without(records, n_step=1), method=PAPER_METHODS), select(records, n_step=1)
        curve = ERROR_CURVES[reading]
        methods, matching, single = tabulate(several), tabulate(_matching(several, one)), tabulate(one)
        by_target = {
            f"{label(method)} with {target} targets": values
            for target, table in (("n-step", matching), ("one-step", single))
            for method, values in table.final(curve).items()
        }
        target_pairs = [
            (f"{label(m)} with n-step targets", f"{label(m)} with one-step targets") for m in ("full", "momentum")
        ]
        worst = max(methods.worst_error(curve), single.worst_error(curve))
        order = compare_pairs(methods.final(curve), PAPER_ORDER, worst, methods.values("alpha"))
        targets = compare_pairs(by_target, target_pairs, worst, single.values("alpha"))
        contrasts, _ = holm_corrected([*order, *targets])
        order, targets = contrasts[: len(order)], contrasts[len(order) :]
        parts = [*map(better, order), *(better(each, CONVERGES) for each in targets)]
        notes = f"{describe_final_errors(several)} {describe_iqm(by_target, 'n-step and one-step targets (IQM)')}"
        # Where n-step targets diverge is said of all settings.
        by_method = {name: without_divergences(each, each.a) for name, each in zip(("μ̂", "μ"), targets, strict=True)}
        why = sentence(
            describe_errors(relative_to("momentum", order)),
            describe_ratios("n-step targets have {} the error of one-step targets", by_method),
        )
        return make_verdict(self.claim, why, parts, [*several, *one], notes, reading)

    def figure(self) -> Figure:
        """Return the figure."""
        return Figure(
            name=f"fig{self.number}",
            title=f"{self.name} from replay, {self.n_step}-step targets",
            claims=(self.claim,),
            settings=f"{self.name} from replay, {self.n_step}-step targets; MLP of 4 layers, width 8, 16 and 32; β 0.9 "
            "and 0.99; α 0.5, 0.1 and 0.05; batches of 4, 16 and 64; 10 seeds; 5,000 steps. In addition one-step "
            "targets for μ and μ̂, width 16, batches of 16. The authors' code: raw observations, "
            f"{' and '.join(map(str, self.code_n_step))}-step targets, α {', '.join(map(str, self.code_alphas))}, "
            "gradients of δ² with a Taylor term of half strength.",
            runs=self.runs,
            panels=self.panels,
            judge=self.judge,
        )


def _matching(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """Return the records that have a counterpart among ``others`` that differs in ``n_step`` only.

    If several targets have one, those of the most steps are taken.
    """
    wanted = {replace(other.run, n_step=1) for other in others}
    most = max(record.run.n_step for record in records)
    return [record for record in select(records, n_step=most) if replace(record.run, n_step=1) in wanted]


def _one_step_panel(records: Sequence[Record], reading: Reading) -> Panel:
    one = select(records, n_step=1)
    groups = [("", _matching(without(records, n_step=1), one)), (", one-step", one)]
    lines = [
        replace(line, label=f"{label(line.method)}{suffix}", dashed=bool(suffix))
        for suffix, group in groups
        for line in learning_curves(select(group, method=["full", "momentum"]), iqm, ERROR_CURVES[reading])
    ]
    return Panel(titled("one-step and n-step targets", reading), "steps", MSE, lines, log_y=True)
