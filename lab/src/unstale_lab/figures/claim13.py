"""Claim 13: control with a corrected critic, whose values drift less and whose player scores no more."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Record
from ..statistics import Array, counted, iqm
from .agreement import KINDS, OPPOSITE, cosines, disagreement
from .base import Figure, Panel, Verdict
from .claim23 import GAME_STEPS, LONG, scored
from .claim23 import GRID as SARSA
from .curves import learning
from .grids import FOR_WANT_OF_TIME, Grid, seeds
from .judging import better, compared, conclude, corrected, no_better, too_soon, within
from .layout import lay_out, select
from .words import name, number, typical

PPO = Grid(
    paper={
        "problem": "ms_pacman_ppo",
        "network": "actor",
        "method": ["adam", "adam_window"],
        "alpha": 2.5e-4,
        "beta": 0.9,
        "n_step": 5,
        "batch": 256,
        "seed": seeds(5),
        "steps": 10_000_000,
    },
    quick={"steps": 60_000},
    smoke={"batch": 32, "seed": seeds(2), "steps": 60},
)
READINGS = {"ms_pacman_ppo": "PPO", "ms_pacman_sarsa": "5-step Sarsa"}
HALF = 0.5  # "two to three times smaller" is half or less
ABOUT_A_TENTH = (0.05, 0.2)


def panels(records: Sequence[Record]) -> list[Panel]:
    return [panel for problem, about in READINGS.items() for panel in _panels(select(records, problem=problem), about)]


def _panels(records: Sequence[Record], about: str) -> list[Panel]:
    return [
        Panel(f"{about}: score", GAME_STEPS, "points", learning(scored(records), iqm, "score", first=1)),
        Panel(
            f"{about}: drift",
            GAME_STEPS,
            "drift of target values",
            learning(records, iqm, "drift", first=1),
            log_y=True,
        ),
        Panel(f"{about}: cosine, batches", GAME_STEPS, "cosine with the true gradient", cosines(records, "batches")),
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    return [_verdict(select(records, problem=problem), reading) for problem, reading in READINGS.items()]


def _verdict(records: Sequence[Record], reading: str) -> Verdict:
    """Scores are those of the last games, and say nothing before a long training is over; drift and cosines, means over
    the second half of the training."""
    layout, playing = lay_out(records), lay_out(scored(records))
    ended, drifts = playing.final("score"), layout.along("drift", 0.5)
    # A score is no error: more of it is better, so that Adam's, if no less, is no worse.
    scores = compared(ended, [("adam", "adam_window")], playing.worst("score"))
    drift = compared(drifts, [("adam_window", "adam")], layout.worst("drift", drifts))
    [score, drifting], _ = corrected([*scores, *drift])
    gain, steps = no_better(score, "scores no less than"), records[0].run.steps
    parts = [
        gain if steps >= LONG else too_soon(gain, steps),
        better(drifting, least=HALF, relation="drifts less than"),
        within(f"the cosine of {name('adam_window')}", _cosine(records, "batches")["adam_window"], *ABOUT_A_TENTH),
    ]
    note = " ".join(
        [
            typical(ended, "Scores"),
            typical(drifts, "Drift, over the second half"),
            *(f"Cosines, {kind}: {_told(_cosine(records, kind))}." for kind in list(KINDS)[1:]),
        ]
    )
    return conclude(13, parts, records, note, reading)


def _cosine(records: Sequence[Record], kind: str) -> dict[str, Array]:
    return {m: 1 - counted(own, OPPOSITE) for m, own in disagreement(records, 0.5, kind=kind).items()}


def _told(cosine: dict[str, Array]) -> str:
    return ", ".join(f"{name(method)} {number(float(iqm(own)))}" for method, own in cosine.items())


FIGURE = Figure(
    name="claim13",
    title="MsPacman, control: PPO and Sarsa with a corrected critic",
    claims=(13,),
    settings="PPO in MsPacman, its critic learning from 5-step targets, batches of 256, α 0.00025; and the Sarsa of "
    "claim 23; β 0.9; 5 seeds; 10,000,000 steps.",
    runs=lambda scale: [*PPO(scale), *SARSA(scale)],
    panels=panels,
    judge=judge,
    cut=f"60,000 steps of PPO and 100,000 of Sarsa, which is the beginning of learning: {FOR_WANT_OF_TIME}",
)
