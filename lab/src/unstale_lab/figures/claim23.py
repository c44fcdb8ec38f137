"""Claim 23: playing MsPacman by Sarsa with a small network, parallel games, no replay and no target network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..records import Record
from ..statistics import Array, iqm
from .base import Figure, Outcome, Panel, Verdict
from .curves import learning
from .grids import Grid, seeds
from .judging import Part, conclude, too_soon
from .layout import Layout, lay_out
from .words import name, number

GRID = Grid(
    paper={
        "problem": "ms_pacman_sarsa",
        "network": "small_atari",
        "method": ["adam", "adam_window"],
        "width": 16,
        "alpha": 5e-4,
        "beta": 0.9,
        "n_step": 5,
        "batch": 64,
        "seed": seeds(5),
        "steps": 10_000_000,
    },
    quick={"batch": 8, "steps": 100_000},
    smoke={"width": 2, "batch": 2, "seed": seeds(2), "steps": 60},
)
# The mean of whole games in which every action is random, ± 13:
# scoring.evaluate(sarsa.Sarsa(sarsa.Settings()).policy(epsilon=1.0), games=200)
RANDOM_SCORE = 216
DECENT = 2 * RANDOM_SCORE
FEWEST = 3  # seeds: no two methods are compared, and every one of them must do
SCORES = {"score": "while learning", "evaluation score": "afterwards"}
GAME_STEPS = "steps of all games"
LONG = 2_000_000  # steps: what is learned in fewer is the beginning, though a player may be decent already


def scored(records: Sequence[Record]) -> list[Record]:
    """Scores of a point or more: a run in which no game ended has none, and a diverged network's does not count."""
    return [replace(record, curves={which: _score(record, which) for which in SCORES}) for record in records]


def _score(record: Record, which: str) -> Array:
    curve = np.asarray(record.curves.get(which, np.ones(len(record.at))), dtype=float)
    return np.where(np.isfinite(curve), np.maximum(curve, 1.0), 1.0)


def panels(records: Sequence[Record]) -> list[Panel]:
    own = scored(records)
    return [
        Panel(f"score {when}", GAME_STEPS, "points", learning(own, iqm, curve, first=1))
        for curve, when in SCORES.items()
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Decent is more than twice the score of random play, for every seed, both while learning and afterwards."""
    layout = lay_out(scored(records))
    steps = records[0].run.steps
    parts = [_decent(method, layout) for method in layout.places]
    parts = [too_soon(part, steps) if steps < LONG and part.outcome == "does not hold" else part for part in parts]
    note = (
        f"Decent is here, for every seed, more than twice the {RANDOM_SCORE} points of random play, both in the last "
        "games of the training and in games played afterwards with 1 action in 100 at random; not decent, less than "
        "that in both. Scores are means over seeds, with the lowest and the highest."
    )
    return [conclude(23, parts, records, note)]


def _decent(method: str, layout: Layout) -> Part:
    scores = {when: layout.final(curve)[method] for curve, when in SCORES.items()}
    everything = np.stack(list(scores.values()))
    outcome: Outcome = "inconclusive"
    if everything.shape[-1] >= FEWEST and ((everything > DECENT).all() or (everything <= DECENT).all()):
        outcome = "holds" if everything.min() > DECENT else "does not hold"
    said = [f"{number(own.mean())} ({number(own.min())} to {number(own.max())}) {when}" for when, own in scores.items()]
    return Part(f"{name(method)} scores {' and '.join(said)}", outcome, float(everything.mean() / RANDOM_SCORE))


FIGURE = Figure(
    name="claim23",
    title="MsPacman, control: Sarsa with a small network",
    claims=(23,),
    settings="5-step Sarsa in MsPacman, 64 games side by side, no replay, no target network; the paper's small network "
    "of 5 convolutions, n = 12,745; α 0.0005; β 0.9; 5 seeds; 10,000,000 steps.",
    runs=GRID,
    panels=panels,
    judge=judge,
    cut="8 games side by side and 100,000 steps, on a CPU; the paper tells neither how many steps its agents learned "
    "from nor what they scored.",
)
