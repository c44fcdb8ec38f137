"""Shared by the figures about policy evaluation on MsPacman."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...analysis.agreement import cosine_curves
from ...analysis.curves import MSE, learning_curves
from ...analysis.formatting import capitalized, describe_iqm, format_p_value, in_words
from ...analysis.panels import Panel, Series
from ...analysis.run_table import select, tabulate
from ...analysis.statistics import Array, iqm
from ...claims.contrast import Contrast, compare_pairs
from ...claims.judging import better, make_verdict
from ...claims.sentences import after_steps, describe_errors
from ...claims.verdict import Verdict
from ...methods import METHODS
from ...records import Record
from .grids import Grid, seeds

MS_PACMAN_GRID = Grid(
    paper={
        "problem": "ms_pacman",
        "network": "dqn",
        "width": 32,
        "batch": 32,
        "seed": seeds(20),
        "steps": 500_000,
        "precision": "tf32",
    },
    large={"seed": seeds(5), "steps": 100_000},
    quick={"steps": 5_000},
    smoke={"width": 2, "batch": 4, "seed": seeds(2), "steps": 10},
)
MEASURED_GRID = MS_PACMAN_GRID.vary(paper={"measure": ("drift", "batch agreement", "trust")})
# Reference values of the errors: means over many rollouts; or single sampled returns, as in the paper.
TRUTH, RETURNS = "truth", "evaluation"
REFERENCE_NAMES = {TRUTH: "against true values", RETURNS: "against sampled returns"}
STEPS = "steps (batches of 32)"
# The variance of the estimated true values is subtracted from the error, which can therefore be negative for a nearly
# perfect network. Errors below this are not distinguished.
RESOLUTION = 0.01
RETURNS_NOISE_NOTE = "Sampled returns are noisy: no network can get below their variance."
PAPER_PAIR = ("adam_diagonal_literal", "adam")
WINDOW_PAIR = ("adam_window", "adam")  # too expensive for the paper
WINDOW_SCOPE = "beyond the paper: full correction (window)"
JUDGED_METHODS = ("adam", "adam_diagonal_literal", "adam_window")


def clip_to_resolution(records: Sequence[Record]) -> list[Record]:
    """Return the records with errors against true values clipped at ``RESOLUTION``."""
    return [
        replace(record, curves=record.curves | {TRUTH: np.maximum(record.curves[TRUTH], RESOLUTION)})
        for record in records
    ]


def compare_by_seed(records: Sequence[Record], curve: str, pairs: list[tuple[str, str]]) -> list[Contrast]:
    """Compare final values, paired by seed only: each method has its own α and β."""
    selected = select(records, method=[method for pair in pairs for method in pair])
    table = tabulate([replace(record, run=replace(record.run, alpha=0.0, beta=0.0)) for record in selected])
    return compare_pairs(table.final(curve), pairs, table.worst_error(curve))


def final_errors_by_method(records: Sequence[Record], curve: str) -> dict[str, Array]:
    """Return the final values of each method, ``[settings, seeds]``."""
    return {method: tabulate(group).final(curve)[method] for method, group in _by_method(records).items()}


def late_means(records: Sequence[Record], curve: str) -> dict[str, Array]:
    """Return the mean over the second half of the training, for methods that have the curve."""
    groups = _by_method(_with_curve(records, curve))
    return {method: tabulate(group).mean_over(curve, 0.5)[method] for method, group in groups.items()}


def curves_by_method(records: Sequence[Record], curve: str, first: int = 0) -> list[Series]:
    """Return a learning curve for each method that has the curve, with its own settings."""
    return _series_by_method(_with_curve(records, curve), lambda group: learning_curves(group, iqm, curve, first=first))


def error_panels(records: Sequence[Record]) -> list[Panel]:
    """Return errors over steps, against both references.

    There is no panel over time: runs that share a GPU slow one another down.
    """
    return [error_panel(records, curve, reference) for curve, reference in REFERENCE_NAMES.items()]


def error_panel(records: Sequence[Record], curve: str, title: str) -> Panel:
    """Return errors over steps, against one of the references."""
    return Panel(title, STEPS, MSE, curves_by_method(records, curve), log_y=True)


def measurement_panels(records: Sequence[Record]) -> list[Panel]:
    """Return the measurements besides errors."""
    agreement = _series_by_method(
        _with_curve(records, "agreement of batches"), lambda group: cosine_curves(group, "batches")
    )
    return [
        # Without step 0: the drift is 0 there, which a logarithmic axis cannot show.
        Panel("drift", STEPS, "drift of target values", curves_by_method(records, "drift", first=1), log_y=True),
        Panel("cosine (batches)", STEPS, "cosine with the true gradient", agreement),
        Panel("bounded corrections", STEPS, "share of steps", curves_by_method(records, "bounded", first=1)),
        Panel(
            "staleness", STEPS, "‖correction‖ / ‖momentum‖", curves_by_method(records, "staleness", first=1), log_y=True
        ),
    ]


def judge_against_adam(
    records: Sequence[Record], curve: str, pair: tuple[str, str], notes: str, scope: str = ""
) -> Verdict:
    """Judge claim 11 for a pair of methods and one reference; a ``scope`` names what the paper does not claim."""
    [contrast] = compare_by_seed(records, curve, [pair])
    errors = describe_iqm(final_errors_by_method(records, curve), f"Final MSE {REFERENCE_NAMES[curve]} (IQM)")
    selected = select(records, method=list(pair))
    why = describe_comparison(contrast, selected)
    return make_verdict(11, why, [better(contrast)], selected, f"{errors} {notes}", scope=scope, is_extra=bool(scope))


def describe_comparison(contrast: Contrast, records: Sequence[Record]) -> str:
    """Say how the errors of two methods compare, in how many steps and seeds."""
    [steps] = {record.run.steps for record in records}
    when = after_steps(steps, MS_PACMAN_GRID.paper["steps"])
    p = f", {format_p_value(contrast.comparison.p_paired)}" if contrast.comparison else ""
    return f"{capitalized(when)}, {describe_errors([contrast], in_words)} ({contrast.seeds} seeds{p})."


def describe_window_correction(records: Sequence[Record]) -> str:
    """Describe network size, and drift, agreement and bounded steps in the second half of the training."""
    [size] = {record.parameters for record in select(records, method=list(WINDOW_PAIR))}
    curves = {
        "drift": "drift",
        "agreement of batches": "cosine of corrected batches",
        "agreement if uncorrected": "cosine of uncorrected batches",
        "bounded": "share of steps with a bounded correction",
    }
    texts = [describe_iqm(late_means(records, curve), title).rstrip(".") for curve, title in curves.items()]
    return f"The full correction covers {size:,} parameters. In the second half (IQM): {'; '.join(texts)}."


def describe_staleness(records: Sequence[Record]) -> str:
    """Describe how large corrections are, which says whether a correction corrects anything at all."""
    return describe_iqm(late_means(records, "staleness"), "‖correction‖ / ‖momentum‖ in the second half (IQM)")


def _series_by_method(records: Sequence[Record], draw: Callable[[list[Record]], list[Series]]) -> list[Series]:
    return [series for group in _by_method(records).values() for series in draw(group)]


def _by_method(records: Sequence[Record]) -> dict[str, list[Record]]:
    groups = {method: select(records, method=method) for method in METHODS}
    return {method: group for method, group in groups.items() if group}


def _with_curve(records: Sequence[Record], curve: str) -> list[Record]:
    return [record for record in records if curve in record.curves]
