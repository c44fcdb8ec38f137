"""The data set of a game: recorded games of an expert for training and testing, and true values of test states."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import DataError, UserError
from .emulator import Emulator, seeds
from .tape import FingerprintedPolicy, Tape, record
from .truth import GAMMA, LIMIT, Truth, continuations

TRAIN, TEST, TRUTH = "train.tape", "test.tape", "truth.safetensors"
PARALLEL_GAMES = 16
DEFAULTS = {  # of the command line
    "transitions": 100_000,
    "test": 10_000,
    "states": 1_000,
    "continuations": 16,
    "seed": 0,
}
Progress = Callable[[str, int, int], None]  # called with a file name, and how much of how much is done


def make_dataset(
    game: str,
    expert: FingerprintedPolicy,
    folder: Path,
    *,
    transitions: int,
    test: int,
    states: int,
    count: int,
    seed: int = 0,
    expert_file: Path | None = None,
    jobs: int | None = None,
    limit: int = LIMIT,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, str]:
    """Makes the files that are not in the folder yet, and returns a description of all.

    Args:
        transitions: size of the training set.
        test: size of the test set.
        states: number of test states with estimated values.
        count: number of games continued from each of these states.
        expert_file: given if it is not the expert of the package; part of the command in the metadata.
        limit: maximal number of steps of a continuation.

    Raises:
        UserError: a setting is invalid, or the folder has files with other settings.
    """
    if transitions < 1:
        raise UserError(f"transitions must be at least 1, not {transitions}")
    if not 0 < states <= test:
        raise UserError(f"states must be from 1 to {test}, the number of test transitions, not {states}")
    if count < 2:
        raise UserError(f"continuations must be at least 2, to estimate the standard error, not {count}")
    settings = {"transitions": transitions, "test": test, "states": states, "continuations": count, "seed": seed}
    maker = _Maker(game, expert, folder, seed, command(game, expert_file, settings), progress)
    train_tape = maker.recording(TRAIN, transitions)
    test_tape = maker.recording(TEST, test, states)
    truth = maker.truth(test_tape, states, count, limit, jobs or os.cpu_count() or 1)
    return {
        "game": game,
        "expert": expert.fingerprint(),
        **_describe("train", train_tape),
        **_describe("test", test_tape),
        "states": str(len(truth.index)),
        "continuations": str(count),
        "mean_value": f"{truth.mean.mean():.3f}",
        "standard_error": f"{truth.standard_error.square().mean().sqrt():.4f}",  # root mean square over the states
    }


def command(game: str, expert_file: Path | None, settings: Mapping[str, int]) -> str:
    """The command that makes a data set with these settings."""
    options = ["--expert", str(expert_file)] if expert_file else []
    for name, value in settings.items():
        options += [f"--{name}", str(value)] if value != DEFAULTS[name] else []
    return shlex.join(["unstale-lab", "data", "atari", game, *options])


@dataclass(frozen=True)
class _Maker:
    game: str
    expert: FingerprintedPolicy
    folder: Path
    seed: int
    command: str
    progress: Progress

    def recording(self, name: str, transitions: int, states: int = 0) -> Tape:
        """The recording in the folder, or a new one, with at least ``states`` saved emulator states."""
        path = self.folder / name
        about = self._about(transitions=transitions, states=states)
        try:
            tape = Tape.load(path, self.game)
        except DataError:
            pass  # missing or damaged
        else:
            _check(path, tape.about, about)
            return tape
        first, *others = seeds(1 + PARALLEL_GAMES, self.game, name, self.seed)
        tape = record(
            [Emulator(self.game, seed) for seed in others],
            self.expert,
            transitions,
            torch.Generator().manual_seed(first),
            save_every=transitions // states if states else 0,
            about=about,
            progress=lambda done: self.progress(name, done, transitions),
        )
        tape.save(path)
        return tape

    def truth(self, tape: Tape, states: int, count: int, limit: int, jobs: int) -> Truth:
        """The values in the folder, or new ones, of states spread evenly over the recording."""
        path, parts = self.folder / TRUTH, self.folder / "truth.parts"
        about = self._about(tape=tape.fingerprint(), states=states, count=count, gamma=GAMMA, limit=limit)
        try:
            truth = Truth.load(path, self.game)
        except DataError:
            pass
        else:
            _check(path, truth.about, about)
            return truth
        chosen = torch.arange(states) * len(tape.saved) // states
        index = tape.saved[chosen]
        returns = continuations(
            self.game,
            self.expert,
            [tape.state(number) for number in chosen.tolist()],
            tape.action[index].tolist(),
            count=count,
            limit=limit,
            seed=self.seed,
            jobs=jobs,
            keep=parts,
            progress=lambda done, total: self.progress(TRUTH, done, total),
        )
        truth = Truth.of(index, returns, about)
        truth.save(path)
        shutil.rmtree(parts)
        return truth

    def _about(self, **settings: object) -> dict[str, str]:
        """Metadata that identifies the settings of a file."""
        made = {"game": self.game, "expert": self.expert.fingerprint(), "seed": self.seed, **settings}
        return {"command": self.command, **{name: str(value) for name, value in made.items()}}


def _check(path: Path, made: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raises ``UserError`` for a file of another expert or other settings, which is not replaced: it may have taken an
    hour. The command may differ, as a file does not depend on all of it."""
    other = [name for name, value in wanted.items() if name != "command" and made.get(name) != value]
    if other:
        raise UserError(
            f"{path} exists, and its {other[0]} is {made.get(other[0], 'missing')}, not {wanted[other[0]]}. "
            "Choose another folder with --data, or move the file."
        )


def _describe(name: str, tape: Tape) -> dict[str, str]:
    scores = tape.scores()
    return {
        f"{name}_transitions": str(len(tape)),
        f"{name}_episodes": str(len(scores)),
        f"{name}_score": f"{scores.mean():.1f}",
    }
