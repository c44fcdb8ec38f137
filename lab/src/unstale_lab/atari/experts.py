"""Training an expert for a game, with checkpoints, and scoring it over whole games."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from ..checkpoint import Checkpoint
from ..mistakes import UserError
from ..precision import matmul_precision as products
from ..problems.policies import making_of
from .actor import Expert, about_expert, load_expert, save_expert
from .ppo import PPO, Progress, Settings
from .scoring import GAMES, evaluate


def train(
    settings: Settings,
    device: torch.device | str = "cpu",
    progress: Callable[[Progress], None] = lambda _: None,
    checkpoint: Checkpoint | None = None,
) -> PPO:
    """A whole run. With a checkpoint it is saved every few minutes, and goes on from there if it was begun."""
    ppo = PPO(settings, device)
    if ppo.device.type == "cuda":
        torch.set_num_threads(1)  # the cores are the emulators': threads that copy a few frames would wait for them
    if checkpoint is not None and checkpoint.path.exists():
        _resume(ppo, checkpoint)
    try:
        with products("tf32"):
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
) -> dict[str, str]:
    """Trains an expert, scores it, keeps it, and returns what its file says about itself. A run that was interrupted
    goes on from its checkpoint, which lies beside the expert's file until that is written."""
    if settings.begin_with and Path(settings.begin_with).resolve() == path.resolve():
        raise UserError(f"{path} cannot be both what is begun with and what is made: choose another path")
    before = _before(settings)
    checkpoint = Checkpoint(path.with_suffix(".checkpoint"))
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
        **_scored(expert, episodes, settings.seed),
    }
    # Before the first game is over there is no score, and files hold finite numbers only.
    curve = [row[:3] for row in ppo.curve if not math.isnan(row.score)]
    save_expert(path, expert, torch.tensor(curve, dtype=torch.float64).reshape(-1, 3), about)
    checkpoint.remove()
    return about


def score_anew(game: str, path: Path, seed: int = 0, episodes: int = GAMES) -> dict[str, str]:
    """Lets an expert there is play whole games, notes its score in its file, and returns what that says."""
    expert = load_expert(path, game)
    curve, about = about_expert(path, game)
    about |= _scored(expert, episodes, seed)
    save_expert(path, expert, curve, about)
    return about


def _scored(expert: Expert, episodes: int, seed: int) -> dict[str, str]:
    scores = np.array(evaluate(expert, episodes, seed))
    return {
        "episodes": str(episodes),
        "epsilon": str(expert.epsilon),
        "acts": "greedily" if expert.greedy else "at random, as likely as its policy says",
        "score": f"{scores.mean():.1f}",
        "score_standard_error": f"{scores.std(ddof=1) / math.sqrt(episodes):.1f}" if episodes > 1 else "",
    }


def _before(settings: Settings) -> dict[str, str]:
    """What is known of the expert that a run began with, if it is one of this project's."""
    path = Path(settings.begin_with)
    if not settings.begin_with or path.suffix == ".zip":
        return {}
    _, about = about_expert(path, settings.game)
    told = ("command", "steps", "seconds", "score")
    return {f"before_{name}": value for name, value in about.items() if name in told or name.startswith("before_")}


def command(settings: Settings, device: str = "cpu") -> str:
    """The command that trains this expert."""
    usual = Settings()
    given = [
        f" --{name.replace('_', '-')} {shlex.quote(str(getattr(settings, name)))}"
        for name in ("seed", "steps", "minutes", "begin_with")
        if getattr(settings, name) != getattr(usual, name)
    ]
    where = f" --device {device}" if device != "cpu" else ""
    return making_of(settings.game) + "".join(given) + where


def _save(ppo: PPO, checkpoint: Checkpoint) -> None:
    checkpoint.save({"settings": asdict(ppo.settings), **ppo.state_dict()})


def _resume(ppo: PPO, checkpoint: Checkpoint) -> None:
    state = checkpoint.load(str(ppo.device))
    if state is None:
        raise UserError(
            f"cannot go on from {checkpoint.path}: it is damaged, or another version's. Delete it to begin again."
        )
    if state["settings"] != asdict(ppo.settings):
        raise UserError(
            f"{checkpoint.path} belongs to a run with other settings: delete it to begin again, or choose another path"
        )
    ppo.load_state_dict(state)
