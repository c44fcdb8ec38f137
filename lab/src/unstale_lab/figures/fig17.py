"""Figure 17: figure 9 with frozen targets (a target network copied every 2,500 steps)."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.formatting import describe_iqm
from ..analysis.panels import Panel
from ..analysis.run_table import select, tabulate
from ..claims.contrast import MUCH, compare_quantity, holm_corrected
from ..claims.judging import better, make_verdict, undecided, worse
from ..claims.sentences import after_steps, describe_ratios, sentence
from ..claims.verdict import Verdict
from ..experiment import Run, Scale
from ..records import Record
from .fig9 import runs_in_paper_settings
from .figure import Figure
from .shared.grids import GPU_TIME_NOTE
from .shared.pacman import (
    MEASURED_GRID,
    REFERENCE_NAMES,
    RETURNS,
    TRUTH,
    clip_to_resolution,
    error_panel,
    final_errors_by_method,
)

GRID = MEASURED_GRID.vary({}, large={"steps": 50_000})
METHODS = ("adam", "adam_frozen", "adam_diagonal_literal")
MIN_STEPS_OF_LATE_LEAD = 200_000  # the paper sees frozen targets ahead only "after a very long time"


def runs(scale: Scale) -> list[Run]:
    """Return runs in the settings of figure 9. At the scales "smoke" and "paper" both figures share them."""
    return runs_in_paper_settings(GRID, scale, METHODS)


def panels(records: Sequence[Record]) -> list[Panel]:
    """Return the paper's panel, against sampled returns, then errors against true values."""
    clipped = clip_to_resolution(records)
    return [error_panel(clipped, RETURNS, "Figure 17 (IQM)"), error_panel(clipped, TRUTH, REFERENCE_NAMES[TRUTH])]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge speed (mean error over the training) and precision (final error of a long training)."""
    clipped = clip_to_resolution(records)
    selected = select(clipped, method=["adam", "adam_frozen"])
    table = tabulate(selected)
    mean_errors = table.mean_over(TRUTH)
    pair = ("adam_frozen", "adam")
    speed = compare_quantity("mean error", mean_errors, [pair], table.worst_error(TRUTH, mean_errors))
    precision = compare_quantity("final error", table.final(TRUTH), [pair], table.worst_error(TRUTH))
    contrasts, _ = holm_corrected([*speed, *precision])
    parts = [
        worse(contrasts[0], MUCH, "frozen targets have a higher error over the training"),
        better(contrasts[1], statement="frozen targets have a lower error at the end"),
    ]
    steps = selected[0].run.steps
    if steps < MIN_STEPS_OF_LATE_LEAD:
        parts[1] = undecided(parts[1], f"{steps:,} steps are too few to decide")
    notes = [
        f"Errors are measured {REFERENCE_NAMES[TRUTH]}.",
        describe_iqm(mean_errors, "Mean over the training (IQM)"),
        *(
            describe_iqm(final_errors_by_method(clipped, curve), f"Final MSE {reference} (IQM)")
            for curve, reference in REFERENCE_NAMES.items()
        ),
    ]
    by_measure = dict(zip(("over the training", "at the end"), contrasts, strict=True))
    errors = describe_ratios("frozen targets have {} the error of Adam", by_measure)
    why = sentence(f"{after_steps(steps, GRID.paper['steps'])}, {errors}")
    return [make_verdict(12, why, parts, selected, " ".join(notes), scope="MsPacman")]


FIGURE = Figure(
    name="fig17",
    title="MsPacman, policy evaluation, with frozen targets",
    claims=(12,),
    settings="As figure 9, in the paper's settings; frozen targets use Adam's settings, and the target network is "
    "copied every 2,500 steps.",
    runs=runs,
    panels=panels,
    judge=judge,
    cut="5 seeds and 5,000 steps, to save time.",
    large_cut=f"5 seeds and 50,000 steps, {GPU_TIME_NOTE}",
)
