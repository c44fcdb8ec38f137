"""Claim 13: control with a corrected critic: less drift, but no higher return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..analysis.agreement import COSINE_CURVES, MAX_DISAGREEMENT, cosine_curves, mean_disagreement
from ..analysis.curves import learning_curves
from ..analysis.formatting import describe_iqm, format_number, label
from ..analysis.panels import Panel
from ..analysis.run_table import select, tabulate
from ..analysis.statistics import Array, clip_errors, iqm
from ..claims.contrast import compare_quantity, holm_corrected
from ..claims.judging import better, make_verdict, no_higher, undecided, within
from ..claims.sentences import describe_ratio, joined, sentence, two_decimals
from ..claims.verdict import Part, Verdict
from ..records import Record
from .claim23 import GAME_STEPS, MIN_STEPS_TO_JUDGE, with_valid_scores
from .claim23 import GRID as SARSA_GRID
from .figure import Figure
from .shared.grids import GPU_TIME_NOTE, Grid, seeds

PPO_GRID = Grid(
    paper={
        "problem": "ms_pacman_ppo",
        "network": "actor",
        "method": ["adam", "adam_diagonal", "adam_window"],
        "alpha": 2.5e-4,
        "beta": 0.9,
        "n_step": 5,
        "batch": 256,
        "seed": seeds(5),
        "steps": 10_000_000,
    },
    large={"steps": 60_000},
    quick={"steps": 20_000},
    smoke={"batch": 32, "seed": seeds(2), "steps": 60},
)
ALGORITHMS = {"ms_pacman_ppo": "PPO", "ms_pacman_sarsa": "5-step Sarsa"}
MAX_DRIFT_RATIO = 0.5  # "two to three times smaller": half or less
CLAIMED_COSINE_RANGE = (0.05, 0.2)  # "about 0.1"


def panels(records: Sequence[Record]) -> list[Panel]:
    return [panel for problem, name in ALGORITHMS.items() for panel in _panels(select(records, problem=problem), name)]


def _panels(records: Sequence[Record], algorithm: str) -> list[Panel]:
    return [
        Panel(
            f"{algorithm}: score",
            GAME_STEPS,
            "points",
            learning_curves(with_valid_scores(records), iqm, "score", first=1),
        ),
        Panel(
            f"{algorithm}: drift",
            GAME_STEPS,
            "drift of target values",
            learning_curves(records, iqm, "drift", first=1),
            log_y=True,
        ),
        Panel(
            f"{algorithm}: cosine (batches)",
            GAME_STEPS,
            "cosine with the true gradient",
            cosine_curves(records, "batches"),
        ),
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge the paper's diagonal correction; then the full correction, which the paper could not afford."""
    return [
        _verdict(select(records, problem=problem), algorithm, method)
        for method in ("adam_diagonal", "adam_window")
        for problem, algorithm in ALGORITHMS.items()
    ]


def _verdict(records: Sequence[Record], algorithm: str, method: str) -> Verdict:
    """Judge scores, drift and cosine.

    Scores are those of the last games and decide nothing before the end of a long training. Drift and cosines are
    means over the second half of the training.
    """
    selected = select(records, method=["adam", method])
    table, score_table = tabulate(selected), tabulate(with_valid_scores(selected))
    scores, drifts = score_table.final("score"), table.mean_over("drift", 0.5)
    score_contrasts = compare_quantity("score", scores, [(method, "adam")], score_table.worst_error("score"))
    drift_contrasts = compare_quantity("drift", drifts, [(method, "adam")], table.worst_error("drift", drifts))
    [score, drift], _ = holm_corrected([*score_contrasts, *drift_contrasts])
    gain, steps = no_higher(score, "the corrected critic scores no more than Adam's"), records[0].run.steps
    if steps < MIN_STEPS_TO_JUDGE:
        gain = undecided(gain, f"{steps:,} steps are too few to decide")
    cosines = _cosine(selected, "batches")[method]
    about = within("cosine", cosines, *CLAIMED_COSINE_RANGE, "the cosine is about 0.1")
    with_cosine = selected
    measured = [
        describe_ratio("drift is {} that with Adam", drift),
        describe_ratio("scores are {}", score),
        "" if about.effect is None else f"the cosine is {two_decimals(about.effect.value)}",
    ]
    if all(record.diverged_at is not None for record in select(selected, method=method)):
        gain, about = (Part(part.statement, "undecided", "all runs diverged") for part in (gain, about))
        measured = ["all runs diverge"]
        scores, with_cosine = {"adam": scores["adam"]}, select(selected, method="adam")
    parts = [better(drift, MAX_DRIFT_RATIO, "its values drift less"), replace(gain, is_main=False), about]
    notes = [
        describe_iqm(scores, "Scores (IQM)"),
        describe_iqm(drifts, "Drift in the second half (IQM)"),
        *(f"Cosines ({kind}): {_describe_cosines(_cosine(with_cosine, kind))}." for kind in list(COSINE_CURVES)[1:]),
    ]
    is_extra = method == "adam_window"
    scope = f"{algorithm}, full correction (window)" if is_extra else algorithm
    when = f"after {steps:,} steps with the {'full' if is_extra else 'diagonal'} correction"
    why = sentence(f"{when}, {joined(*measured)}")
    return make_verdict(13, why, parts, selected, " ".join(notes), scope=scope, is_extra=is_extra)


def _cosine(records: Sequence[Record], kind: str) -> dict[str, Array]:
    return {
        m: 1 - clip_errors(values, MAX_DISAGREEMENT) for m, values in mean_disagreement(records, 0.5, kind=kind).items()
    }


def _describe_cosines(cosine: dict[str, Array]) -> str:
    return ", ".join(f"{label(method)} {format_number(float(iqm(values)))}" for method, values in cosine.items())


FIGURE = Figure(
    name="claim13",
    title="MsPacman, control: PPO and Sarsa with a corrected critic",
    claims=(13,),
    settings="PPO on MsPacman, critic with 5-step targets, minibatches of 256, α 0.00025; and Sarsa as in claim 23; "
    "β 0.9; 5 seeds; 10,000,000 steps.",
    runs=lambda scale: [*PPO_GRID(scale), *SARSA_GRID(scale)],
    panels=panels,
    judge=judge,
    large_cut=f"60,000 steps of PPO, and 100,000 steps of Sarsa with 8 parallel games, {GPU_TIME_NOTE}",
    cut="20,000 steps of both, in which little is learned, to save time.",
)
