"""Figure 9: policy evaluation on MsPacman with Adam, corrected and uncorrected."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.formatting import describe_iqm, format_number, label
from ..analysis.panels import Panel
from ..analysis.run_table import select
from ..claims.judging import describe_contrast
from ..claims.verdict import Verdict
from ..experiment import Run, Scale
from ..records import Record
from .figure import Figure
from .shared.grids import GPU_TIME_NOTE, Grid
from .shared.pacman import (
    JUDGED_METHODS,
    MEASURED_GRID,
    PAPER_PAIR,
    REFERENCE_NAMES,
    RETURNS,
    RETURNS_NOISE_NOTE,
    TRUTH,
    WINDOW_PAIR,
    WINDOW_SCOPE,
    clip_to_resolution,
    compare_by_seed,
    describe_staleness,
    describe_window_correction,
    error_panel,
    error_panels,
    judge_against_adam,
    late_means,
    measurement_panels,
)

# The paper's settings: one for Adam, another for the corrected methods.
ADAM_SETTINGS = {"alpha": 5e-5, "beta": 0.99}
CORRECTED_SETTINGS = {"alpha": 1e-4, "beta": 0.9}
SETTINGS = {
    "adam": ADAM_SETTINGS,
    "adam_frozen": ADAM_SETTINGS,
    "adam_diagonal_literal": CORRECTED_SETTINGS,
    "adam_diagonal": CORRECTED_SETTINGS,
    "adam_window": CORRECTED_SETTINGS,
    "adam_oracle": CORRECTED_SETTINGS,
}
SETTINGS_NOTE = (
    f"As in the paper, Adam has α {format_number(ADAM_SETTINGS['alpha'])} and β {ADAM_SETTINGS['beta']}, the others α "
    f"{format_number(CORRECTED_SETTINGS['alpha'])} and β {CORRECTED_SETTINGS['beta']}, so that methods differ in more "
    "than the correction."
)

JUDGED_LABELS = ", ".join(map(label, JUDGED_METHODS))


def runs_in_paper_settings(grid: Grid, scale: Scale, methods: Sequence[str]) -> list[Run]:
    """Return the runs of a grid, each method with the paper's α and β for it."""
    return [run for method in methods for run in grid.vary({"method": method, **SETTINGS[method]})(scale)]


def runs(scale: Scale) -> list[Run]:
    methods = JUDGED_METHODS if scale in ("quick", "large") else tuple(SETTINGS)
    return runs_in_paper_settings(MEASURED_GRID, scale, methods)


def panels(records: Sequence[Record]) -> list[Panel]:
    """Return the paper's panel, then all methods and measurements."""
    clipped = clip_to_resolution(records)
    papers = error_panel(select(clipped, method=list(PAPER_PAIR)), RETURNS, "Figure 9 (IQM)")
    return [papers, *error_panels(clipped), *measurement_panels(clipped)]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge the paper's pair against sampled returns, as the paper did; then what it does not claim.

    The noise of sampled returns can hide a difference, which the verdict against true values would show.
    """
    clipped = clip_to_resolution(records)
    returns_notes = f"{SETTINGS_NOTE} {RETURNS_NOISE_NOTE}"
    truth_notes = " ".join(
        [SETTINGS_NOTE, _describe_others(clipped), _describe_late_errors(clipped), describe_staleness(clipped)]
    )
    window_notes = describe_window_correction(clipped)
    returns = judge_against_adam(clipped, RETURNS, PAPER_PAIR, returns_notes)
    truth = judge_against_adam(clipped, TRUTH, PAPER_PAIR, truth_notes, REFERENCE_NAMES[TRUTH])
    return [returns, truth, judge_against_adam(clipped, TRUTH, WINDOW_PAIR, window_notes, WINDOW_SCOPE)]


def _describe_late_errors(records: Sequence[Record]) -> str:
    """Describe errors averaged over measurements, because a single one varies from one to the next."""
    return describe_iqm(late_means(records, TRUTH), "Mean over the second half (IQM)")


def _describe_others(records: Sequence[Record]) -> str:
    """Describe the comparisons of the other methods with Adam."""
    others = [method for method in SETTINGS if method not in PAPER_PAIR and select(records, method=method)]
    texts = [
        describe_contrast(contrast)
        for method in others
        for contrast in compare_by_seed(records, TRUTH, [(method, "adam")])
    ]
    return f"Further comparisons, without Holm's correction: {'; '.join(texts)}."


FIGURE = Figure(
    name="fig9",
    title="MsPacman, policy evaluation: corrected Adam",
    claims=(11,),
    settings="Sarsa on 100,000 recorded transitions of a MsPacman expert, rewards clipped to their signs, γ 0.99; "
    "DQN's network (n = 4,801,705); batches of 32; Adam with α 0.00005 and β 0.99, corrections with α 0.0001 and β "
    "0.9; 20 seeds; 500,000 steps. Errors against single sampled returns, and against true values: means of 16 "
    "rollouts from each of 1,000 states. Drift and cosine over the last 20 batches.",
    runs=runs,
    panels=panels,
    judge=judge,
    cut=f"5 seeds and 5,000 steps, and only {JUDGED_LABELS}, to save time.",
    large_cut=f"5 seeds and 100,000 steps, and only {JUDGED_LABELS}, {GPU_TIME_NOTE}",
)
