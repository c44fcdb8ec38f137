"""Figure 9: policy evaluation on MsPacman with Adam, corrected and uncorrected."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.formatting import format_number, label
from ..analysis.panels import Panel
from ..analysis.run_table import select
from ..claims.judging import describe_comparison
from ..claims.verdict import Verdict
from ..experiment import Run, Scale
from ..figures.figure import Figure
from ..records import Record
from .shared.grids import GPU_TIME_NOTE
from .shared.pacman import (
    MEASURED_GRID,
    PAPER_PAIR,
    REFERENCE_NAMES,
    RETURNS,
    RETURNS_NOISE_NOTE,
    TRUTH,
    WINDOW_PAIR,
    WINDOW_READING,
    clip_to_resolution,
    compare_by_seed,
    describe_window_correction,
    error_panels,
    judge_against_adam,
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
QUICK_METHODS = ("adam", "adam_diagonal_literal", "adam_window")
SETTINGS_NOTE = (
    f"As in the paper, Adam has α {format_number(ADAM_SETTINGS['alpha'])} and β {ADAM_SETTINGS['beta']}, the others α "
    f"{format_number(CORRECTED_SETTINGS['alpha'])} and β {CORRECTED_SETTINGS['beta']}, so that methods differ in more "
    "than the correction."
)


def runs_in_paper_settings(scale: Scale, methods: Sequence[str]) -> list[Run]:
    return [run for method in methods for run in MEASURED_GRID.vary({"method": method, **SETTINGS[method]})(scale)]


def runs(scale: Scale) -> list[Run]:
    return runs_in_paper_settings(scale, QUICK_METHODS if scale == "quick" else tuple(SETTINGS))


def panels(records: Sequence[Record]) -> list[Panel]:
    clipped = clip_to_resolution(records)
    return [*error_panels(clipped), *measurement_panels(clipped)]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge the paper's pair against sampled returns (as the paper did) and true values, then the window correction."""
    clipped = clip_to_resolution(records)
    return [
        judge_against_adam(
            clipped, RETURNS, PAPER_PAIR, REFERENCE_NAMES[RETURNS], f"{SETTINGS_NOTE} {RETURNS_NOISE_NOTE}"
        ),
        judge_against_adam(
            clipped, TRUTH, PAPER_PAIR, REFERENCE_NAMES[TRUTH], f"{SETTINGS_NOTE} {_describe_others(clipped)}"
        ),
        judge_against_adam(clipped, TRUTH, WINDOW_PAIR, WINDOW_READING, describe_window_correction(clipped)),
    ]


def _describe_others(records: Sequence[Record]) -> str:
    """Describe the comparisons of the other methods with Adam."""
    others = [method for method in SETTINGS if method not in PAPER_PAIR and select(records, method=method)]
    texts = [
        describe_comparison(evidence)
        for method in others
        for evidence in compare_by_seed(records, TRUTH, [(method, "adam")])
    ]
    return f"Further comparisons, without Holm's correction: {'; '.join(texts)}."


FIGURE = Figure(
    name="fig9",
    title="MsPacman, policy evaluation: corrected Adam",
    claims=(11,),
    settings="Sarsa on 100,000 recorded transitions of a MsPacman expert, rewards clipped to their signs, γ 0.99; "
    "DQN's network (n = 4,801,705); batches of 32; Adam with α 0.00005 and β 0.99, corrections with α 0.0001 and β "
    "0.9; 20 seeds; 500,000 steps. Errors against single sampled returns, and against true values: means of 16 "
    "rollouts from each of 1,000 states.",
    runs=runs,
    panels=panels,
    judge=judge,
    cut=f"5 seeds and 50,000 steps, and only {', '.join(map(label, QUICK_METHODS))}, {GPU_TIME_NOTE}",
)
