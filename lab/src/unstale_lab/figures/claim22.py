"""Claim 22: the dense full correction of a small network on MsPacman."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..analysis.formatting import describe_iqm, format_number, in_words
from ..analysis.panels import Panel
from ..analysis.run_table import select
from ..analysis.statistics import iqm
from ..claims.judging import better, describe_contrast, make_verdict, undecided
from ..claims.sentences import after_steps, describe_errors, sentence
from ..claims.verdict import Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import GPU_TIME_NOTE
from .shared.pacman import (
    MS_PACMAN_GRID,
    REFERENCE_NAMES,
    TRUTH,
    clip_to_resolution,
    compare_by_seed,
    error_panels,
    final_errors_by_method,
)

MAX_ERROR_RATIO_IF_LEARNED = 0.8  # last to first measured error
GRID = MS_PACMAN_GRID.vary(
    paper={
        "network": "small_atari",
        "method": ["adam", "adam_dense", "adam_window"],
        "width": 16,
        "alpha": 1e-4,
        "beta": 0.9,
    },
    large={"steps": 60_000},
    smoke={"width": 2},
)


def panels(records: Sequence[Record]) -> list[Panel]:
    return error_panels(clip_to_resolution(records))


def judge(records: Sequence[Record]) -> list[Verdict]:
    clipped = clip_to_resolution(records)
    [dense] = compare_by_seed(clipped, TRUTH, [("adam_dense", "adam")])
    others = [
        describe_contrast(each)
        for each in compare_by_seed(clipped, TRUTH, [("adam_window", "adam"), ("adam_window", "adam_dense")])
    ]
    notes = " ".join(
        [
            *(
                describe_iqm(final_errors_by_method(clipped, curve), f"Final MSE {reference} (IQM)")
                for curve, reference in REFERENCE_NAMES.items()
            ),
            f"Beyond the paper: {'; '.join(others)}.",
        ]
    )
    beats, left = better(dense), _share_of_error_left(select(clipped, method="adam"))  # infinite if Adam diverges
    is_little = MAX_ERROR_RATIO_IF_LEARNED < left < math.inf
    still_left = f"{format_number(100 * left)} % of the initial error is left"
    if is_little:
        beats = undecided(beats, f"little was learned: {still_left}")
    compared = f"{after_steps(clipped[0].run.steps, GRID.paper['steps'])}, {describe_errors([dense], in_words)}"
    why = sentence(compared, still_left if is_little else "")
    return [make_verdict(22, why, [beats], clipped, notes, scope="error")]


def _share_of_error_left(records: Sequence[Record]) -> float:
    """Return the ratio of the last to the first measured error."""
    first, last = (float(iqm([record.curves[TRUTH][at] for record in records])) for at in (0, -1))
    return last / first


FIGURE = Figure(
    name="claim22",
    title="MsPacman, small network: dense correction",
    claims=(22,),
    settings="As figure 9, with the paper's small network of 5 convolutions (n = 12,745); α 0.0001; β 0.9; batches of "
    "32; 20 seeds; 500,000 steps.",
    runs=GRID,
    panels=panels,
    judge=judge,
    cut="5 seeds and 5,000 steps, to save time.",
    large_cut=f"5 seeds and 60,000 steps, {GPU_TIME_NOTE}",
)
