"""Claim 22: the dense full correction of a small network on MsPacman, and where its time goes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..analysis.formatting import describe_iqm, format_number
from ..analysis.panels import Panel
from ..analysis.run_table import select, without
from ..analysis.statistics import iqm
from ..claims.judging import MIN_SEEDS, better, describe_contrast, make_verdict, undecided
from ..claims.sentences import after_steps, describe_errors, sentence
from ..claims.verdict import Answer, Effect, Part, Verdict
from ..experiment import Run, Scale
from ..records import Record
from .figure import Figure
from .shared.grids import GPU_TIME_NOTE, seeds
from .shared.pacman import (
    MS_PACMAN_GRID,
    REFERENCE_NAMES,
    TRUTH,
    clip_to_resolution,
    compare_by_seed,
    error_panels,
    final_errors_by_method,
    in_words,
)

MAX_ERROR_RATIO_IF_LEARNED = 0.8  # last to first measured error
MOST = 0.6  # a single timing decides whether it is "most" only if the share is above this, or below its complement
STATEMENT = "most of the extra time goes into backward passes"
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
# Separate runs, because timing phases slows steps down. They are short, so that all scales have the same.
PHASES_GRID = GRID.vary(
    paper={"method": ["adam", "adam_dense"], "measure": ("phases",), "seed": seeds(5), "steps": 100},
    smoke={"seed": seeds(2), "steps": 30},
)


def runs(scale: Scale) -> list[Run]:
    return [*GRID(scale), *PHASES_GRID(scale)]


def _split(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Return the runs whose errors are compared, and those whose phases are timed."""
    clipped = clip_to_resolution(records)
    return select(clipped, measure=[()]), without(clipped, measure=[()])


def panels(records: Sequence[Record]) -> list[Panel]:
    return error_panels(_split(records)[0])


def judge(records: Sequence[Record]) -> list[Verdict]:
    clipped, timed = _split(records)
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
    backward = _mostly_backward(timed)
    share = max(backward.effect.value, 0.0) if backward.effect else None
    why = sentence(
        f"{after_steps(clipped[0].run.steps, GRID.paper['steps'])}, {describe_errors([dense], in_words)}",
        still_left if is_little else "",
        "no extra time was measured"
        if share is None
        else f"backward passes take {100 * share:.0f} % of its extra time",
    )
    return [make_verdict(22, why, [beats, backward], [*clipped, *timed], notes)]


def _share_of_error_left(records: Sequence[Record]) -> float:
    """Return the ratio of the last to the first measured error."""
    first, last = (float(iqm([record.curves[TRUTH][at] for record in records])) for at in (0, -1))
    return last / first


def _mostly_backward(records: Sequence[Record]) -> Part:
    """Judge whether most of the extra time goes into backward passes.

    Both are timed within the steps: passes through the network, those of Adam subtracted, and all else that the
    correction does.
    """
    passes = {method: _last(records, method, "seconds in passes") for method in ("adam", "adam_dense")}
    backward, z = passes["adam_dense"] - passes["adam"], _last(records, "adam_dense", "seconds in the correction")
    if not 0 < backward + z < math.inf:
        both = (
            f"{_milliseconds(passes['adam'])} with Adam and {_milliseconds(passes['adam_dense'])} with the correction"
        )
        return Part(
            STATEMENT, "undecided", f"no extra time was measured: passes take {both}, Z takes {_milliseconds(z)}"
        )
    share = backward / (backward + z)  # negative if per-sample gradients are faster than their sum
    found = (
        f"extra time per step {_milliseconds(backward + z)}, of which {_milliseconds(backward)} ({100 * share:.0f} %) "
        f"are backward passes and {_milliseconds(z)} are Z and its products"
    )
    effect = Effect("share of backward passes in the extra time", share, is_ratio=False)
    answer: Answer = "holds" if share > MOST else "does not hold" if share < 1 - MOST else "undecided"
    if len(select(records, method="adam_dense")) < MIN_SEEDS:
        answer = "undecided"
    return Part(STATEMENT, answer, found, effect=effect, brief=f"{100 * share:.0f} %")


def _last(records: Sequence[Record], method: str, curve: str) -> float:
    """Return the last value of a curve, which is the same for all seeds, because they are batched."""
    return float(select(records, method=method)[0].curves[curve][-1])


def _milliseconds(seconds: float) -> str:
    return f"{format_number(1000 * seconds)} ms"


FIGURE = Figure(
    name="claim22",
    title="MsPacman, small network: dense correction and its cost",
    claims=(22,),
    settings="As figure 9, with the paper's small network of 5 convolutions (n = 12,745); α 0.0001; β 0.9; batches of "
    "32; 20 seeds; 500,000 steps. Phases of a step are timed in 100 steps of 5 seeds batched: by "
    "the clock on a CPU, by the kernels of 20 steps on a GPU.",
    runs=runs,
    panels=panels,
    judge=judge,
    cut="5 seeds and 5,000 steps, to save time.",
    large_cut=f"5 seeds and 60,000 steps, {GPU_TIME_NOTE}",
)
