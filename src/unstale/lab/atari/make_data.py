"""The data of a game: an expert's play to learn from, other play to be tested on, and the true values of some of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ..mistakes import UserError
from ..problems.tensor_file import ExpertError
from .emulator import Emulator
from .tape import Policy, Tape, record
from .truth import GAMMA, LIMIT, Truth, continuations

TRAIN, TEST, TRUTH = "train.tape", "test.tape", "truth.safetensors"
SIDE_BY_SIDE = 16  # games played at once for a recording
Progress = Callable[[str, int, int], None]  # the file that is being made, how much of it is done, and of how much


def make_data(
    game: str,
    expert: Policy,
    folder: Path,
    *,
    transitions: int = 100_000,
    test: int = 10_000,
    states: int = 1_000,
    count: int = 16,
    seed: int = 0,
    jobs: int | None = None,
    limit: int = LIMIT,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, str]:
    """Makes what the folder does not have yet, for this expert and these settings; returns what it has then."""
    if not 0 < states <= test:
        raise UserError(f"states must be between 1 and test, which is {test}; not {states}")
    if count < 2:
        raise UserError(f"count must be at least 2, or nothing is known about the error of the mean; not {count}")
    train_tape = _recording(game, expert, folder / TRAIN, transitions, 0, seed, progress)
    test_tape = _recording(game, expert, folder / TEST, test, states, seed, progress)
    truth = _truth(game, expert, folder, test_tape, states, count, seed, limit, jobs or os.cpu_count() or 1, progress)
    return {
        "game": game,
        "expert": expert.fingerprint(),
        **_described("train", train_tape),
        **_described("test", test_tape),
        "states": str(len(truth.index)),
        "continuations": str(count),
        "mean_value": f"{truth.mean.mean():.3f}",
        "standard_error": f"{truth.standard_error.square().mean().sqrt():.4f}",  # root mean square over the states
    }


def _recording(
    game: str, expert: Policy, path: Path, transitions: int, states: int, seed: int, progress: Progress
) -> Tape:
    about = {
        "game": game,
        "expert": expert.fingerprint(),
        "command": f"unstale make-data {game}",
        "transitions": str(transitions),
        "states": str(states),
        "seed": str(seed),
    }
    try:
        tape = Tape.load(path, game)
        if dict(tape.about) == about:
            return tape
    except ExpertError:
        pass  # not there, or damaged
    first, *seeds = np.random.SeedSequence([seed, path.name == TEST]).generate_state(1 + SIDE_BY_SIDE).tolist()
    tape = record(
        [Emulator(game, one) for one in seeds],
        expert,
        transitions,
        torch.Generator().manual_seed(first),
        save_every=transitions // states if states else 0,
        about=about,
        progress=lambda done: progress(path.name, done, transitions),
    )
    tape.save(path)
    return tape


def _truth(
    game: str,
    expert: Policy,
    folder: Path,
    tape: Tape,
    states: int,
    count: int,
    seed: int,
    limit: int,
    jobs: int,
    progress: Progress,
) -> Truth:
    about = {
        "game": game,
        "expert": expert.fingerprint(),
        "command": f"unstale make-data {game}",
        "tape": tape.fingerprint(),
        "states": str(states),
        "count": str(count),
        "gamma": str(GAMMA),
        "limit": str(limit),
        "seed": str(seed),
    }
    path, unfinished = folder / TRUTH, folder / "truth.parts"
    try:
        truth = Truth.load(path, game)
        if truth.about == about:
            return truth
    except ExpertError:
        pass
    chosen = np.linspace(0, len(tape.saved) - 1, states).round().astype(int)  # all over the tape
    index = tape.saved[chosen]
    returns = continuations(
        game,
        expert,
        [tape.state(number) for number in chosen.tolist()],
        tape.action[index].tolist(),
        count=count,
        limit=limit,
        seed=seed,
        jobs=jobs,
        keep=unfinished,
        progress=lambda done, total: progress(TRUTH, done, total),
    )
    truth = Truth.of(index, returns, about)
    truth.save(path)
    shutil.rmtree(unfinished)
    return truth


def _described(name: str, tape: Tape) -> dict[str, str]:
    scores = tape.scores()
    return {
        f"{name}_transitions": str(len(tape)),
        f"{name}_episodes": str(len(scores)),
        f"{name}_score": f"{scores.mean():.1f}",
    }
