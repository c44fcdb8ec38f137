"""Panels of a study of tuned optimizers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...analysis.curves import AXIS_LABELS, MSE, mean, series_with_band
from ...analysis.panels import Panel, Series
from ...analysis.statistics import clip_errors, iqm
from .contest import Entry, SetupResult

SAMPLES = "samples"


def learning_panels(found: Sequence[SetupResult]) -> list[Panel]:
    """Return a panel per setup: error over samples of the drawn contestants at their selected settings."""
    return [
        Panel(result.setup.label, SAMPLES, MSE, [_learning_curve(result, entry) for entry in drawn(result)], log_y=True)
        for result in found
    ]


def rate_panels(found: Sequence[SetupResult]) -> list[Panel]:
    """Return a panel per setup: final error over the learning rate, where several were tried."""
    panels = []
    for result in found:
        series = [_rate_curve(entry) for entry in drawn(result) if len({a for a, _ in entry.sweep.settings}) > 1]
        if series:
            title = f"{result.setup.label}: final error, IQM"
            panels.append(Panel(title, AXIS_LABELS["alpha"], MSE, series, log_x=True, log_y=True))
    return panels


def drawn(result: SetupResult) -> list[Entry]:
    """Return the contestants that have a curve in the panels."""
    return [entry for entry in result.entries.values() if entry.contestant.is_drawn]


def _learning_curve(result: SetupResult, entry: Entry) -> Series:
    tuned = entry.tuned
    curves = clip_errors(tuned.curves, result.worst_error)[:, None, :]
    samples = tuned.at * result.setup.batch * entry.contestant.batch_factor
    runs = {"runs": len(tuned.final), "diverged": tuned.diverged}
    return series_with_band(entry.contestant.label, samples, curves, mean, **runs)


def _rate_curve(entry: Entry) -> Series:
    """Return the final errors of the test seeds at the selected β."""
    chosen = [i for i, (_, beta) in enumerate(entry.sweep.settings) if beta == entry.tuned.beta]
    rates = [entry.sweep.settings[i][0] for i in chosen]
    errors = entry.sweep.test_final[chosen][:, None, :]
    return series_with_band(
        entry.contestant.label, rates, errors, iqm, runs=errors.size, diverged=int(np.isinf(errors).sum())
    )
