"""Runs that learn to play a game while they play it: Sarsa and PPO, described and recorded like all others.

Their problem is a game and an algorithm, "ms_pacman_sarsa". ``run.steps`` counts those of all games together;
``run.batch`` is how many games Sarsa plays side by side, or how many samples PPO learns from at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..atari import ppo, sarsa
from ..atari.measuring import Point, measured
from ..atari.scoring import evaluate
from ..checkpoint import Checkpoint
from ..errors import UserError, unknown
from ..experiment import Run
from ..precision import products
from ..records import Record
from . import methods
from .training import MEASUREMENTS, Progress, numbers_in

EVALUATION_GAMES = 30
PPO_GAMES, PPO_ROLLOUT = 32, 32  # games side by side, and steps of each between updates: fewer in a run as short
EXPLORING = 0.1  # the share of a run in which Sarsa's random actions become few
CORRECTIONS = {"none": "none", "diagonal": "diagonal", "window": "window", "full": "dense", "oracle": "oracle"}
# Multiply-adds a step, roughly: one pass to act, those to learn from it, and the emulator.
WORK = {"sarsa": 8 * 2.4e6, "ppo": 26 * 9.4e6}

CURVES = {  # of a record, and what they are called in a point
    "score": "score",
    "drift": "drift",
    "agreement of batches": "agreement",
    "agreement if uncorrected": "stale_agreement",
    "bounded": "bounded_share",
    "staleness": "staleness",
}


def is_control(run: Run) -> bool:
    return _parts(run)[1] in WORK


def work(run: Run) -> float:
    """Multiply-adds of a step, roughly."""
    return WORK[_parts(run)[1]] * (1 if methods.METHODS[run.method].correction == "none" else 2)


class Control:
    """A run, trained alone."""

    def __init__(self, run: Run, device: str) -> None:
        self.asked, self.device = run, device
        self.trainer = _trainer(run, device)
        self.points: list[Point] = []
        self.diverged_at: int | None = None

    def run(self, progress: Progress = lambda steps: None, checkpoint: Checkpoint | None = None) -> list[Record]:
        """Train to the end, then play whole games. ``progress`` is told of steps as they are made, and may raise to
        stop. What was saved as a checkpoint is gone on from, with new games."""
        with products(self.asked.precision):
            try:
                self._train(progress, checkpoint)
            except FloatingPointError:  # the library refuses a loss that is not finite, and leaves everything as it was
                self.diverged_at = self.trainer.steps
            return [self._record(self._evaluated())]

    def _train(self, progress: Progress, checkpoint: Checkpoint | None) -> None:
        saved = checkpoint.load(self.device) if checkpoint is not None else None
        if saved is not None:
            self.trainer.load_state_dict(saved["trainer"])
            self.points = [Point(*point) for point in saved["points"]]
            progress(min(self.trainer.steps, self.asked.steps))
        turns = self.asked.steps // self.trainer.steps_per_iteration
        for point in measured(self.trainer, every=max(1, turns // MEASUREMENTS)):
            before = self.points[-1].steps if self.points else 0
            self.points.append(point)
            if checkpoint is not None and checkpoint.is_due:
                checkpoint.save({"trainer": self.trainer.state_dict(), "points": [tuple(p) for p in self.points]})
            progress(min(point.steps, self.asked.steps) - before)

    def _evaluated(self) -> float:
        """The mean score of whole games, played after the training; infinite, like all else, if that diverged."""
        if self.diverged_at is not None:
            return math.inf
        games = min(EVALUATION_GAMES, 1 + self.asked.steps // 1000)  # a run that only tries things out plays few
        return float(np.mean(evaluate(self.trainer.policy(), games, self.asked.seed)))

    def _record(self, score: float) -> Record:
        run, optimizer = self.asked, self.trainer.optimizer
        at = np.linspace(0, run.steps, MEASUREMENTS + 1).round().astype(int)
        steps = [min(point.steps, run.steps) for point in self.points]
        curves = {"evaluation score": np.full(len(at), score)}
        for name, field in CURVES.items():
            known = _known(steps, [getattr(point, field) for point in self.points], self.diverged_at)
            if known:  # a curve that was never measured is none
                curves[name] = _carried(at, known)
        corrected = methods.METHODS[run.method].correction != "none"
        return Record(
            run=run,
            at=at,
            curves=curves,
            diverged_at=self.diverged_at,
            parameters=sum(p.numel() for group in optimizer.param_groups for p in group["params"]),
            numbers_kept=numbers_in(optimizer.state_dict()),
            # Of states, where corrected of successors, and of PPO's policy.
            backward_passes=1 + corrected + isinstance(self.trainer, ppo.PPO),
            seconds=self.trainer.seconds,
        )


def _parts(run: Run) -> tuple[str, str]:
    """The game and the algorithm."""
    game, _, algorithm = run.problem.rpartition("_")
    return game, algorithm


def _trainer(run: Run, device: str) -> sarsa.Sarsa | ppo.PPO:
    game, algorithm = _parts(run)
    method = methods.METHODS[run.method]
    if not method.adam or method.literal or method.linearizes or method.target_every:
        raise unknown("method of control", run.method, ("adam", "adam_diagonal", "adam_window"))
    correction, horizon = CORRECTIONS[method.correction], methods.horizon(run)
    if algorithm == "ppo":
        return ppo.PPO(
            ppo.Settings(
                game=game,
                seed=run.seed,
                steps=run.steps,
                games=PPO_GAMES,
                rollout=max(1, min(PPO_ROLLOUT, max(run.steps, run.batch) // PPO_GAMES)),
                minibatch=run.batch,
                lr=run.alpha,
                beta=run.beta,
                n_step=run.n_step,
                correction=correction,
                horizon=horizon,
                trust=method.trust,
            ),
            device,
        )
    if run.network != "small_atari":
        raise UserError(f"Sarsa learns with the network small_atari, not {run.network}")
    return sarsa.Sarsa(
        sarsa.Settings(
            game=game,
            seed=run.seed,
            steps=run.steps,
            games=run.batch,
            width=run.width,
            n_step=run.n_step,
            lr=run.alpha,
            betas=(run.beta, methods.BETA_2),
            correction=correction,
            horizon=horizon,
            trust=method.trust,
            epsilon_steps=max(1, round(EXPLORING * run.steps)),
        ),
        device,
    )


def _known(steps: Sequence[int], values: Sequence[float], diverged_at: int | None) -> list[tuple[int, float]]:
    """The steps at which something was measured, with its values; from a divergence on it is infinite."""
    known = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    return known if diverged_at is None else [*known, (diverged_at, math.inf)]


def _carried(at: np.ndarray, known: Sequence[tuple[int, float]]) -> np.ndarray:
    """The last value known at each mark. Marks before the first reading get that one: it is the nearest there is."""
    place = np.searchsorted([step for step, _ in known], at, side="right") - 1
    return np.array([value for _, value in known])[place.clip(min=0)]
