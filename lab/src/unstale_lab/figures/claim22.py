"""Claim 22: the dense full correction of a small network on MsPacman, and where its time goes."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.formatting import describe_iqm, format_number, label
from ..analysis.panels import Panel
from ..analysis.run_table import select
from ..analysis.statistics import iqm
from ..claims.judging import better, decide, describe_contrast, make_verdict, undecided
from ..claims.verdict import Effect, Part, Verdict
from ..figures.figure import Figure
from ..records import Record
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
# No measurements besides errors: they would distort the step times.
STATEMENT = "most of the extra time goes into backward passes"
GRID = MS_PACMAN_GRID.vary(
    paper={
        "network": "small_atari",
        "method": ["adam", "adam_dense", "adam_window", "adam_linearized"],
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
    note = " ".join(
        [
            *(
                describe_iqm(final_errors_by_method(clipped, curve), f"Final MSE {reference} (IQM)")
                for curve, reference in REFERENCE_NAMES.items()
            ),
            f"Beyond the paper: {'; '.join(others)}.",
            _describe_step_times(clipped),
        ]
    )
    beats = better(dense)
    if (left := _share_of_error_left(clipped)) > MAX_ERROR_RATIO_IF_LEARNED:
        beats = undecided(beats, f"little was learned: {100 * left:.0f} % of the initial error is left")
    return [make_verdict(22, [beats, _mostly_backward(clipped)], clipped, note)]


def _share_of_error_left(records: Sequence[Record]) -> float:
    """Return the ratio of the last to the first measured error."""
    first, last = (float(iqm([record.curves[TRUTH][at] for record in records])) for at in (0, -1))
    return last / first


def _mostly_backward(records: Sequence[Record]) -> Part:
    """Judge whether most of the extra time goes into backward passes.

    Their time is that of a method that computes per-sample gradients and discards them; the rest is Z.
    """
    adam, linearized, dense = (_seconds(records, m) for m in ("adam", "adam_linearized", "adam_dense"))
    backward, z, extra = linearized - adam, dense - linearized, dense - adam
    if extra <= 0:
        return Part(STATEMENT, "undecided", "no extra time was measured")
    share = backward / extra  # negative if per-sample gradients are faster than their sum
    found = (
        f"extra time per step {_milliseconds(extra)}, of which {_milliseconds(backward)} ({100 * share:.0f} %) are "
        f"backward passes and {_milliseconds(z)} are Z"
    )
    effect = Effect("share of backward passes in the extra time", share, is_ratio=False)
    return Part(STATEMENT, decide(share > 0.5, len(select(records, method="adam_dense"))), found, effect=effect)


def _seconds(records: Sequence[Record], method: str) -> float:
    """Return the seconds of one step of all seeds batched together."""
    selected = select(records, method=method)
    return sum(record.seconds for record in selected) / selected[0].run.steps


def _describe_step_times(records: Sequence[Record]) -> str:
    methods = dict.fromkeys(record.run.method for record in records)
    times = ", ".join(f"{label(method)} {_milliseconds(_seconds(records, method))}" for method in methods)
    seeds = len(select(records, method="adam"))
    return f"Time per step, {seeds} seeds batched: {times}."


def _milliseconds(seconds: float) -> str:
    return f"{format_number(1000 * seconds)} ms"


FIGURE = Figure(
    name="claim22",
    title="MsPacman, small network: dense correction and its cost",
    claims=(22,),
    settings="As figure 9, with the paper's small network of 5 convolutions (n = 12,745); α 0.0001; β 0.9; batches of "
    "32; 20 seeds; 500,000 steps.",
    runs=GRID,
    panels=panels,
    judge=judge,
    cut="5 seeds and 5,000 steps, to save time.",
    large_cut=f"5 seeds and 60,000 steps, {GPU_TIME_NOTE}",
)
