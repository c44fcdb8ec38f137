"""How good is this policy? Learns its value function by corrected TD, with an interval for its start states.

This module needs nothing but the standard library until :func:`evaluate` is called; then the packages of the extra
``evaluate``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .errors import EvaluationError, MissingPackageError, require
from .folders import made_folder

if TYPE_CHECKING:
    from .result import Evaluation
    from .values import ValueNetwork

__all__ = ["EvaluationError", "MissingPackageError", "evaluate", "load_values"]


def evaluate(
    source: Any,
    policy: Any,
    *,
    env: Any = None,
    gamma: float = 0.99,
    episodes: int = 100,
    level: float = 0.95,
    mode: Literal["replay", "stream"] = "replay",
    n_step: int = 1,
    steps: int = 2000,
    batch: int = 64,
    lr: float = 1e-2,
    networks: int = 5,
    width: int = 16,
    correction: str = "auto",
    stochastic: bool = False,
    trust_pickle: bool = False,
    time_limit: int | None = None,
    max_episode_steps: int = 10_000,
    seed: int = 0,
    out: str | Path | None = None,
    progress: Callable[[str, int, int, str], None] | None = None,
) -> Evaluation:
    """Estimate the discounted value of a policy's start states, with a confidence interval.

    Time limits bootstrap and terminations do not: the value is that of episodes without a time limit.

    Args:
        source: a Gymnasium id, a function that makes an environment, or logged transitions: a file (``.npz``,
            ``.parquet``, ``.h5``), ``"minari:<dataset>"``, or a mapping of columns to arrays.
        policy: ``"random"``, ``"module:function"``, a file of Stable-Baselines3 (``.zip``) or ``torch.export``
            (``.pt2``), a function, or a torch module. For logged transitions also ``"logged"``: the policy that made
            them. Any other policy is evaluated off-policy.
        env: for logged transitions, an environment to run the policy in, for a Monte Carlo value beside the estimate.
        gamma: the discount.
        episodes: how many episodes to run.
        level: of the interval.
        mode: ``"replay"`` trains on batches drawn from all transitions, ``"stream"`` on each transition once, in order.
        n_step: rewards before bootstrapping; 1 for a policy other than the one that made the data.
        steps: training steps of a replay.
        batch: transitions of a training step.
        lr: the learning rate, annealed to zero.
        networks: how many are trained together, each without every ``networks``-th episode.
        width: of their two hidden layers.
        correction: of :class:`unstale.CorrectedAdam`.
        stochastic: sample the policy's actions. By default the most likely one is taken.
        trust_pickle: unpickle a policy's file, which runs code that is stored in it.
        time_limit: cut episodes after this many steps.
        max_episode_steps: an episode that is longer is an error.
        seed: of episodes, networks and batches.
        out: a folder for the value networks and the report.
        progress: called with what is being done, how much of it, of how much, and a note.

    Raises:
        EvaluationError: the environment, policy or data cannot be evaluated; one sentence says why.
        MissingPackageError: a package is not installed.
    """
    require("numpy")
    if out is not None:
        require("safetensors")
    from .pipeline import run
    from .training import Settings

    settings = Settings(
        networks=networks,
        width=width,
        mode=mode,
        steps=steps,
        batch=batch,
        n_step=n_step,
        lr=lr,
        correction=correction,
        seed=seed,
    )
    with made_folder(out):
        found = run(
            source,
            policy,
            env=env,
            gamma=gamma,
            episodes=episodes,
            level=level,
            stochastic=stochastic,
            trust_pickle=trust_pickle,
            time_limit=time_limit,
            max_episode_steps=max_episode_steps,
            settings=settings,
            progress=progress,
        )
        if out is not None:
            found.save(out)
    return found


def load_values(folder: str | Path) -> list[ValueNetwork]:
    """The value networks that an evaluation saved to ``folder``."""
    require("numpy")
    from .result import load_values as load

    return load(folder)
