"""Trains expert policies for Atari games by PPO, with checkpoints, and evaluates them on whole games."""

from __future__ import annotations

import json
import math
import shlex
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from ..checkpoint import Checkpoint
from ..errors import UserError
from ..precision import matmul_precision
from ..problems.policies import training_command
from .actor import Expert, load_expert, read_metadata, save_expert
from .ppo import PPO, Progress, Settings
from .scoring import GAMES, evaluate


def train(
    settings: Settings,
    device: torch.device | str = "cpu",
    progress: Callable[[Progress], None] = lambda _: None,
    checkpoint: Checkpoint | None = None,
) -> PPO:
    """Trains to the end of the run.

    Args:
        checkpoint: saved every few minutes and at the end. If it exists, training continues from it.

    Raises:
        UserError: the checkpoint belongs to a run with other settings.
    """
    ppo = PPO(settings, device)
    if ppo.device.type == "cuda":
        torch.set_num_threads(1)  # the emulators use the cores; threads that copy a few frames would wait for them
    if checkpoint is not None:
        _resume(ppo, checkpoint)
    try:
        with matmul_precision("tf32"):
            for state in ppo.run():
                progress(state)
                if checkpoint is not None and (checkpoint.is_due or state.done == 1):
                    _save(ppo, checkpoint)
    except KeyboardInterrupt:
        if checkpoint is not None and ppo.curve:
            _save(ppo, checkpoint)
        raise
    return ppo


def train_expert(
    settings: Settings,
    path: Path,
    device: torch.device | str = "cpu",
    progress: Callable[[Progress], None] = lambda _: None,
    episodes: int = GAMES,
    warn: Callable[[str], None] = warnings.warn,
) -> dict[str, str]:
    """Trains an expert, evaluates it, saves it to ``path``, and returns its metadata.

    An interrupted run continues from its checkpoint, which lies beside ``path`` until the expert is saved.
    """
    if settings.begin_with and Path(settings.begin_with).resolve() == path.resolve():
        raise UserError(f"{path} cannot be both the initial expert and the result. Choose another path.")
    before = _initial_expert_metadata(settings)
    checkpoint = Checkpoint(path.with_suffix(".checkpoint"), warn)
    ppo = train(settings, device, progress, checkpoint)
    expert = Expert(settings.game, ppo.actor).rounded()
    about = {
        "command": command(settings, ppo.device.type),
        "settings": json.dumps(asdict(settings)),
        "seed": str(settings.seed),
        "steps": str(ppo.steps),
        "seconds": f"{ppo.seconds:.0f}",
        "device": torch.cuda.get_device_name(ppo.device) if ppo.device.type == "cuda" else "cpu",
        **before,
        **_evaluate(expert, episodes, settings.seed),
    }
    # The score is NaN before the first game has finished, and files hold finite numbers only.
    curve = [row[:3] for row in ppo.curve if not math.isnan(row.score)]
    save_expert(path, expert, torch.tensor(curve, dtype=torch.float64).reshape(-1, 3), about)
    checkpoint.remove()
    return about


def update_score(game: str, path: Path, seed: int = 0, episodes: int = GAMES) -> dict[str, str]:
    """Evaluates an existing expert on whole games, writes the score to its file, and returns the metadata."""
    expert = load_expert(path, game)
    curve, about = read_metadata(path, game)
    about |= _evaluate(expert, episodes, seed)
    save_expert(path, expert, curve, about)
    return about


def _evaluate(expert: Expert, episodes: int, seed: int) -> dict[str, str]:
    scores = np.array(evaluate(expert, episodes, seed))
    return {
        "episodes": str(episodes),
        "epsilon": str(expert.epsilon),
        "acts": "greedily" if expert.greedy else "sampled from the policy",
        "score": f"{scores.mean():.1f}",
        "score_standard_error": f"{scores.std(ddof=1) / math.sqrt(episodes):.1f}" if episodes > 1 else "",
    }


def _initial_expert_metadata(settings: Settings) -> dict[str, str]:
    """The history of the expert that a run starts from, if it was trained by this package."""
    path = Path(settings.begin_with)
    if not settings.begin_with or path.suffix == ".zip":
        return {}
    _, about = read_metadata(path, settings.game)
    kept = ("command", "steps", "seconds", "score")
    return {f"before_{name}": value for name, value in about.items() if name in kept or name.startswith("before_")}


def command(settings: Settings, device: str = "cpu") -> str:
    """The command that trains this expert."""
    defaults = Settings()
    given = [
        f" --{name.replace('_', '-')} {shlex.quote(str(getattr(settings, name)))}"
        for name in ("seed", "steps", "minutes", "begin_with")
        if getattr(settings, name) != getattr(defaults, name)
    ]
    where = f" --device {device}" if device != "cpu" else ""
    return training_command(settings.game) + "".join(given) + where


def _save(ppo: PPO, checkpoint: Checkpoint) -> None:
    checkpoint.save({"settings": asdict(ppo.settings), **ppo.state_dict()})


def _resume(ppo: PPO, checkpoint: Checkpoint) -> None:
    state = checkpoint.load(str(ppo.device))
    if state is None:
        return
    if state["settings"] != asdict(ppo.settings):
        raise UserError(
            f"{checkpoint.path} belongs to a run with other settings. Delete it to start over, or choose another path."
        )
    ppo.load_state_dict(state)
