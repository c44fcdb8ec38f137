"""Figure 17: figure 9 with frozen targets (a target network copied every 2,500 steps)."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.formatting import describe_iqm, label
from ..analysis.panels import Panel
from ..analysis.run_table import select, tabulate
from ..claims.judging import Finding, better, compare_pairs, holm_corrected, make_verdict, mark_too_short
from ..claims.verdict import Verdict
from ..experiment import Run, Scale
from ..figures.figure import Figure
from ..records import Record
from .fig9 import ADAM_SETTINGS, runs_in_paper_settings
from .fig16 import MIN_REDUCTION
from .shared.grids import GPU_TIME_NOTE
from .shared.pacman import (
    MS_PACMAN_GRID,
    REFERENCE_NAMES,
    TRUTH,
    clip_to_resolution,
    error_panels,
    final_errors_by_method,
)

METHODS = ("adam", "adam_frozen", "adam_diagonal_literal")
MORE_PRECISE = "is more precise in the end than"
NOT_COMPARED = Finding(
    "Final errors not compared", f"{label('adam_frozen')} {MORE_PRECISE} {label('adam')}", "inconclusive"
)
# For a CPU, with only the methods that the claim compares.
SMALL_GRID = MS_PACMAN_GRID.vary(
    paper={"network": "small_atari", "width": 16, "method": ["adam", "adam_frozen"], **ADAM_SETTINGS},
    quick={"steps": 5_000},
)
MIN_STEPS_TO_JUDGE = 200_000  # the paper sees frozen targets ahead only "after a very long time"


def runs(scale: Scale) -> list[Run]:
    return SMALL_GRID(scale) if scale == "quick" else runs_in_paper_settings(scale, METHODS)


def panels(records: Sequence[Record]) -> list[Panel]:
    return error_panels(clip_to_resolution(records))


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge speed (mean error over the training) and precision (final error of a long training)."""
    selected = select(clip_to_resolution(records), method=["adam", "adam_frozen"])
    table = tabulate(selected)
    mean_errors = table.mean_over(TRUTH)
    evidence = compare_pairs(mean_errors, [("adam", "adam_frozen")], table.worst_error(TRUTH, mean_errors))
    steps = selected[0].run.steps
    if steps >= MIN_STEPS_TO_JUDGE:
        evidence += compare_pairs(table.final(TRUTH), [("adam_frozen", "adam")], table.worst_error(TRUTH))
    [speed, *precision], _ = holm_corrected(evidence)
    findings = [better(speed, min_reduction=MIN_REDUCTION, relation="is, over the training, better than")]
    findings += [better(each, relation=MORE_PRECISE) for each in precision] or [mark_too_short(NOT_COMPARED, steps)]
    note = " ".join(
        [
            f"Errors are measured {REFERENCE_NAMES[TRUTH]}.",
            describe_iqm(mean_errors, "Mean over the training (IQM)"),
            *(
                describe_iqm(final_errors_by_method(clip_to_resolution(records), curve), f"Final MSE {reference} (IQM)")
                for curve, reference in REFERENCE_NAMES.items()
            ),
        ]
    )
    return [make_verdict(12, findings, selected, note, reading="MsPacman")]


FIGURE = Figure(
    name="fig17",
    title="MsPacman, policy evaluation, with frozen targets",
    claims=(12,),
    settings="As figure 9, in the paper's settings; frozen targets use Adam's settings, and the target network is "
    "copied every 2,500 steps.",
    runs=runs,
    panels=panels,
    judge=judge,
    cut="The paper's small network (n = 12,745) instead of DQN's, without μ̂ diag/√; 5 seeds and 5,000 steps, "
    f"{GPU_TIME_NOTE}",
)
