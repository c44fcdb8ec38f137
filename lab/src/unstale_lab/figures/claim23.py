"""Claim 23: Sarsa on MsPacman with a small network, parallel games, no replay and no target network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..analysis.curves import learning_curves
from ..analysis.formatting import format_number, in_words, label, listed
from ..analysis.panels import Panel
from ..analysis.run_table import RunTable, tabulate
from ..analysis.statistics import Array, iqm
from ..claims.judging import make_verdict, undecided
from ..claims.sentences import sentence
from ..claims.verdict import Answer, Effect, Part, Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import Grid, seeds

GRID = Grid(
    paper={
        "problem": "ms_pacman_sarsa",
        "network": "small_atari",
        "method": ["adam", "adam_diagonal", "adam_window"],
        "width": 16,
        "alpha": 5e-4,
        "beta": 0.9,
        "n_step": 5,
        "batch": 64,
        "seed": seeds(5),
        "steps": 10_000_000,
    },
    large={"batch": 8, "steps": 100_000},
    quick={"steps": 20_000},
    smoke={"width": 2, "batch": 2, "seed": seeds(2), "steps": 60},
)
# Mean score of whole games with random actions (standard error 13):
# scoring.evaluate(sarsa.Sarsa(sarsa.Settings()).policy(epsilon=1.0), games=200)
RANDOM_SCORE = 216
DECENT_SCORE = 2 * RANDOM_SCORE
MIN_DECENT_SEEDS = 3  # fewer than for comparisons, because every single seed must pass
SCORES = {"score": "while learning", "evaluation score": "after training"}
GAME_STEPS = "environment steps (all games)"
MIN_STEPS_TO_JUDGE = 2_000_000  # shorter training can confirm the claim, but not refute it


def with_valid_scores(records: Sequence[Record]) -> list[Record]:
    """Return the records with score curves of at least 1; no finished game and divergence count as 1."""
    return [replace(record, curves={which: _score(record, which) for which in SCORES}) for record in records]


def _score(record: Record, which: str) -> Array:
    curve = np.asarray(record.curves.get(which, np.ones(len(record.at))), dtype=float)
    return np.where(np.isfinite(curve), np.maximum(curve, 1.0), 1.0)


def panels(records: Sequence[Record]) -> list[Panel]:
    """Return the learning curves. Scores after training are single numbers, which the verdict states."""
    curves = learning_curves(with_valid_scores(records), iqm, "score", first=1)
    return [Panel("score while learning", GAME_STEPS, "points", curves)]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge whether every seed scores more than twice as much as random play, during and after training."""
    table = tabulate(with_valid_scores(records))
    steps = records[0].run.steps
    parts = [_decent(method, table) for method in table.records]
    if steps < MIN_STEPS_TO_JUDGE:
        reason = f"{steps:,} steps are too few to decide"
        parts = [undecided(part, reason) if part.answer == "does not hold" else part for part in parts]
    note = (
        f"Decent: every seed scores more than twice the {RANDOM_SCORE} points of random play, both in the last games "
        "of the training and in evaluation games with ε = 0.01. Not decent: less than that in both. Scores are means "
        "over seeds, with minimum and maximum."
    )
    scores = [
        f"{' and '.join(f'{table.final(curve)[method].mean():.0f}' for curve in SCORES)} ({in_words(method)})"
        for method in table.records
    ]
    why = sentence(
        f"after {steps:,} steps, mean scores {' and '.join(SCORES.values())} are {listed(scores)}",
        f"random play scores {RANDOM_SCORE}",
    )
    return [make_verdict(23, why, parts, records, note)]


def _decent(method: str, table: RunTable) -> Part:
    scores = {when: table.final(curve)[method] for curve, when in SCORES.items()}
    everything = np.stack(list(scores.values()))
    answer: Answer = "undecided"
    if everything.shape[-1] >= MIN_DECENT_SEEDS and (
        (everything > DECENT_SCORE).all() or (everything <= DECENT_SCORE).all()
    ):
        answer = "holds" if everything.min() > DECENT_SCORE else "does not hold"
    texts = [
        f"{format_number(values.mean())} ({format_number(values.min())} to {format_number(values.max())}) {when}"
        for when, values in scores.items()
    ]
    brief = " and ".join(f"{format_number(values.mean())} {when}" for when, values in scores.items())
    relative = float(everything.mean() / RANDOM_SCORE)
    effect = Effect(f"score of {label(method)} / score of random play", relative, is_ratio=False)
    found = f"it scores {' and '.join(texts)}"
    return Part(f"{label(method)} plays decently", answer, found, effect=effect, brief=brief)


FIGURE = Figure(
    name="claim23",
    title="MsPacman, control: Sarsa with a small network",
    claims=(23,),
    settings="5-step Sarsa on MsPacman, 64 parallel games, no replay, no target network; the paper's small network "
    "of 5 convolutions (n = 12,745); α 0.0005; β 0.9; 5 seeds; 10,000,000 steps.",
    runs=GRID,
    panels=panels,
    judge=judge,
    large_cut="8 parallel games and 100,000 steps. The paper states neither the number of steps nor the scores.",
    cut="8 parallel games and 20,000 steps, to save time.",
)
