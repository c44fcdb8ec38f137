"""Control on Atari: trains Sarsa and PPO agents from the same ``Run`` descriptions as policy evaluation.

``run.problem`` is a key of ``CONTROL_PROBLEMS``. ``run.steps`` counts environment steps over all parallel games.
``run.batch`` is the number of parallel games of Sarsa, or PPO's minibatch size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .. import methods
from ..atari import ppo, sarsa
from ..atari.measuring import Point, measured
from ..atari.scoring import evaluate
from ..checkpoint import Checkpoint
from ..errors import UserError, unknown
from ..experiment import Run
from ..precision import matmul_precision
from ..records import Record
from .training import EVALUATIONS_PER_RUN, Progress, count_elements

EVALUATION_GAMES = 30
PPO_GAMES, PPO_ROLLOUT = 32, 32  # parallel games, and steps per game between updates (fewer in very short runs)
EXPLORATION_SHARE = 0.1  # share of a run over which Sarsa's ε is annealed
# Correction names of the methods table → those of the library's optimizers.
CORRECTIONS = {"none": "none", "diagonal": "diagonal", "window": "window", "full": "dense", "oracle": "oracle"}
# The settings that are used; all others must have their defaults.
SHARED_SETTINGS = {"problem", "method", "network", "seed", "steps", "batch", "alpha", "beta", "n_step", "horizon"}
USED_SETTINGS = {
    "sarsa": SHARED_SETTINGS | {"width", "precision"},
    "ppo": SHARED_SETTINGS | {"precision"},
}
ALGORITHM_NAMES = {"sarsa": "Sarsa", "ppo": "PPO"}
NETWORKS = {"sarsa": ("small_atari",), "ppo": ("actor", Run.network)}


@dataclass(frozen=True)
class ControlProblem:
    """A game and the algorithm that learns to play it."""

    game: str
    algorithm: Literal["sarsa", "ppo"]
    macs_per_step: float  # multiply-adds per environment step, roughly: acting, learning and the emulator


CONTROL_PROBLEMS = {
    "ms_pacman_sarsa": ControlProblem("ms_pacman", "sarsa", macs_per_step=8 * 2.4e6),
    "ms_pacman_ppo": ControlProblem("ms_pacman", "ppo", macs_per_step=26 * 9.4e6),
}
CURVES = {  # curve of a record → field of a ``Point``
    "score": "score",
    "drift": "drift",
    "agreement of batches": "agreement",
    "agreement if uncorrected": "stale_agreement",
    "bounded": "bounded_share",
    "staleness": "staleness",
}


def is_control(run: Run) -> bool:
    """Return whether the run trains an agent, rather than evaluating a fixed policy."""
    return run.problem in CONTROL_PROBLEMS


def macs_per_step(run: Run) -> float:
    """Return the multiply-adds of a step, roughly."""
    factor = 1 if methods.METHODS[run.method].correction == "none" else 2
    return CONTROL_PROBLEMS[run.problem].macs_per_step * factor


class ControlTraining:
    """One control run. Control runs are not batched with others."""

    def __init__(self, run: Run, device: str) -> None:
        self.config, self.device = run, device
        self.trainer = _make_trainer(run, device)
        self.points: list[Point] = []
        self.diverged_at: int | None = None

    def run(self, progress: Progress = lambda steps: None, checkpoint: Checkpoint | None = None) -> list[Record]:
        """Train to the end, then evaluate on whole games, and return one record.

        Args:
            progress: called with the number of steps made; may raise to stop the training.
            checkpoint: resumed from if it exists (with new games); saved to when due.
        """
        with matmul_precision(self.config.precision):
            try:
                self._train(progress, checkpoint)
            except FloatingPointError:  # the library raises on a non-finite loss and leaves its state unchanged
                self.diverged_at = self.trainer.steps
            return [self._record(self._evaluation_score())]

    def _train(self, progress: Progress, checkpoint: Checkpoint | None) -> None:
        saved = checkpoint.load(self.device) if checkpoint is not None else None
        if saved is not None:
            self.trainer.load_state_dict(saved["trainer"])
            self.points = [Point(*point) for point in saved["points"]]
            progress(min(self.trainer.steps, self.config.steps))
        iterations = self.config.steps // self.trainer.steps_per_iteration
        for point in measured(self.trainer, every=max(1, iterations // EVALUATIONS_PER_RUN)):
            before = self.points[-1].steps if self.points else 0
            self.points.append(point)
            if checkpoint is not None and checkpoint.is_due:
                checkpoint.save({"trainer": self.trainer.state_dict(), "points": [tuple(p) for p in self.points]})
            progress(min(point.steps, self.config.steps) - before)

    def _evaluation_score(self) -> float:
        """Return the mean score of whole games after training; ``inf``, as all curves, if training diverged."""
        if self.diverged_at is not None:
            return math.inf
        games = min(EVALUATION_GAMES, 1 + self.config.steps // 1000)  # smoke tests play few games
        return float(np.mean(evaluate(self.trainer.policy(), games, self.config.seed)))

    def _record(self, score: float) -> Record:
        run, optimizer = self.config, self.trainer.optimizer
        at = np.linspace(0, run.steps, EVALUATIONS_PER_RUN + 1).round().astype(int)
        steps = [min(point.steps, run.steps) for point in self.points]
        curves = {"evaluation score": np.full(len(at), score)}
        for name, field in CURVES.items():
            finite = _finite_points(steps, [getattr(point, field) for point in self.points], self.diverged_at)
            if finite:  # leave out curves that were never measured
                curves[name] = _forward_fill(at, finite)
        corrected = methods.METHODS[run.method].correction != "none"
        return Record(
            run=run,
            at=at,
            curves=curves,
            diverged_at=self.diverged_at,
            parameters=sum(p.numel() for group in optimizer.param_groups for p in group["params"]),
            numbers_kept=count_elements(optimizer.state_dict()),
            # Of states, of successors if corrected, and of PPO's policy.
            backward_passes=1 + corrected + isinstance(self.trainer, ppo.PPO),
            seconds=self.trainer.seconds,
        )


def _make_trainer(run: Run, device: str) -> sarsa.Sarsa | ppo.PPO:
    if run.problem not in CONTROL_PROBLEMS:
        raise unknown("control problem", run.problem, CONTROL_PROBLEMS)
    problem = CONTROL_PROBLEMS[run.problem]
    _check_settings(run, problem.algorithm)
    method = methods.METHODS[run.method]
    correction = CORRECTIONS[method.correction]
    horizon = methods.horizon(run) if correction == "window" else None
    if problem.algorithm == "ppo":
        return ppo.PPO(
            ppo.Settings(
                game=problem.game,
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
    return sarsa.Sarsa(
        sarsa.Settings(
            game=problem.game,
            seed=run.seed,
            steps=run.steps,
            games=run.batch,
            width=run.width,
            n_step=run.n_step,
            lr=run.alpha,
            betas=(run.beta, methods.ADAM_BETA_2),
            correction=correction,
            horizon=horizon,
            trust=method.trust,
            epsilon_steps=max(1, round(EXPLORATION_SHARE * run.steps)),
        ),
        device,
    )


def _check_settings(run: Run, algorithm: str) -> None:
    """Check that the algorithm uses every setting that the run specifies.

    Raises:
        UserError: if it does not.
    """
    method = methods.METHODS[run.method]
    has_correction = method.correction in CORRECTIONS
    if not method.adam or not has_correction or method.literal or method.linearizes or method.target_every:
        raise unknown("control method", run.method, ("adam", "adam_diagonal", "adam_window"))
    name = ALGORITHM_NAMES[algorithm]
    if run.network not in NETWORKS[algorithm]:
        raise UserError(f"{name} needs network={NETWORKS[algorithm][0]!r}, got {run.network!r}")
    unused = [f"{key}={value!r}" for key, value in run.settings().items() if key not in USED_SETTINGS[algorithm]]
    if run.precision not in ("float32", "tf32"):
        unused.append(f"precision={run.precision!r}")
    if unused:
        raise UserError(f"{name} does not use {', '.join(unused)}; leave that at its default")


def _finite_points(steps: Sequence[int], values: Sequence[float], diverged_at: int | None) -> list[tuple[int, float]]:
    """Return the finite measurements as (step, value), followed by ``inf`` at the step of divergence, if any."""
    points = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    return points if diverged_at is None else [*points, (diverged_at, math.inf)]


def _forward_fill(at: np.ndarray, points: Sequence[tuple[int, float]]) -> np.ndarray:
    """Return the last value measured at or before each step in ``at``; before the first point, that point's value."""
    index = np.searchsorted([step for step, _ in points], at, side="right") - 1
    return np.array([value for _, value in points])[index.clip(min=0)]
