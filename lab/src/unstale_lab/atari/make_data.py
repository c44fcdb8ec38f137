"""The data of a game: an expert's play to learn from, other play to be tested on, and the true values of some of it."""

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
from .tape import KnownPolicy, Tape, record
from .truth import GAMMA, LIMIT, Truth, continuations

TRAIN, TEST, TRUTH = "train.tape", "test.tape", "truth.safetensors"
SIDE_BY_SIDE = 16  # games played at once for a recording
# As the command line has them.
USUAL = {"transitions": 100_000, "test": 10_000, "states": 1_000, "continuations": 16, "seed": 0}
Progress = Callable[[str, int, int], None]  # the file that is being made, how much of it is done, and of how much


def make_data(
    game: str,
    expert: KnownPolicy,
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
    """Makes what the folder does not have yet, for this expert and these settings; returns what it has then. The
    file of an expert that is not the project's own is noted in the command by which data can be made again."""
    if transitions < 1:
        raise UserError(f"transitions must be at least 1, not {transitions}")
    if not 0 < states <= test:
        raise UserError(f"states must be between 1 and test, which is {test}; not {states}")
    if count < 2:
        raise UserError(f"continuations must be at least 2, or nothing is known of the mean's error; not {count}")
    settings = {"transitions": transitions, "test": test, "states": states, "continuations": count, "seed": seed}
    maker = _Maker(game, expert, folder, seed, command(game, expert_file, settings), progress)
    train_tape = maker.recording(TRAIN, transitions)
    test_tape = maker.recording(TEST, test, states)
    truth = maker.truth(test_tape, states, count, limit, jobs or os.cpu_count() or 1)
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


def command(game: str, expert_file: Path | None, settings: Mapping[str, int]) -> str:
    """The command that makes data with these settings."""
    options = ["--expert", str(expert_file)] if expert_file else []
    for name, value in settings.items():
        options += [f"--{name}", str(value)] if value != USUAL[name] else []
    return shlex.join(["unstale-lab", "make-data", game, *options])


@dataclass(frozen=True)
class _Maker:
    game: str
    expert: KnownPolicy
    folder: Path
    seed: int
    command: str
    progress: Progress

    def recording(self, name: str, transitions: int, states: int = 0) -> Tape:
        """The one in the folder, or a new one. With so many states saved, or some more."""
        path = self.folder / name
        about = self._about(transitions=transitions, states=states)
        try:
            tape = Tape.load(path, self.game)
        except DataError:
            pass  # not there, or damaged
        else:
            _check(path, tape.about, about)
            return tape
        first, *others = seeds(1 + SIDE_BY_SIDE, self.game, name, self.seed)
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
        """The values in the folder, or new ones, of states from all over the tape."""
        path, unfinished = self.folder / TRUTH, self.folder / "truth.parts"
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
            keep=unfinished,
            progress=lambda done, total: self.progress(TRUTH, done, total),
        )
        truth = Truth.of(index, returns, about)
        truth.save(path)
        shutil.rmtree(unfinished)
        return truth

    def _about(self, **settings: object) -> dict[str, str]:
        """What tells a file that was made as it would be made now from any other."""
        made = {"game": self.game, "expert": self.expert.fingerprint(), "seed": self.seed, **settings}
        return {"command": self.command, **{name: str(value) for name, value in made.items()}}


def _check(path: Path, made: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Refuses to replace what was made by another expert or with other settings: it may have taken an hour. (A command
    has more in it than one of its files depends on.)"""
    other = [name for name, value in wanted.items() if name != "command" and made.get(name) != value]
    if other:
        raise UserError(
            f"{path} is there already, and its {other[0]} is {made.get(other[0], 'not told')}, not {wanted[other[0]]}: "
            "choose another folder with --data, or move it away"
        )


def _described(name: str, tape: Tape) -> dict[str, str]:
    scores = tape.scores()
    return {
        f"{name}_transitions": str(len(tape)),
        f"{name}_episodes": str(len(scores)),
        f"{name}_score": f"{scores.mean():.1f}",
    }
