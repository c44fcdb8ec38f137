"""A training loop that survives kill -9: it saves all of its state regularly, and continues from the last file.

    python examples/resumable.py walk.pt                   # start, or resume from walk.pt if it exists
    python examples/resumable.py walk.pt --save-every 1    # seconds; the default is 5, and a run takes about a minute

Kill it at any time and start it again. The final parameters are those of an uninterrupted run, bit for bit on a
CPU. Three things make this true:

- The file holds all state: step, networks, optimizer, scheduler, random generators and the environment.
- The file is never half-written: the state goes to a temporary file, which is forced to disk and then renamed.
- The loop has no other state. What is drawn, and in which order, follows from the file alone.

The file also holds the settings. A file that was saved with other settings is refused.

The optimizer follows a target network, so ``follow`` is called before its state is loaded.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unstale

STATES, GAMMA, BATCH = 19, 0.95, 8


class Walk:
    """A random walk over 19 states in a row, with random numbers of its own. Walking off the right end pays 1."""

    def __init__(self, seed: int) -> None:
        self.generator = random.Random(seed)
        self.place = STATES // 2

    def step(self) -> tuple[int, float, int, bool]:
        """State, reward, next state, and whether the walk terminated; then a new one begins in the middle."""
        before = self.place
        self.place += self.generator.choice((-1, 1))
        terminated = not 0 <= self.place < STATES
        result = before, float(self.place == STATES), min(max(self.place, 0), STATES - 1), terminated
        if terminated:
            self.place = STATES // 2
        return result

    def state_dict(self) -> dict[str, Any]:
        version, numbers, gauss = self.generator.getstate()
        return dict(place=self.place, version=version, numbers=list(numbers), gauss=gauss)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]
        self.generator.setstate((state["version"], tuple(state["numbers"]), state["gauss"]))


class Training:
    """Everything that changes while training."""

    def __init__(self, steps: int, lr: float, seed: int) -> None:
        torch.manual_seed(seed)
        self.settings = dict(steps=steps, lr=lr, seed=seed)
        self.step_number = 0
        self.walk = Walk(seed)
        self.model = nn.Sequential(nn.Linear(STATES, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1)).float()
        self.target_network = copy.deepcopy(self.model)
        self.optimizer = unstale.CorrectedAdam(self.model, lr=lr)
        self.optimizer.follow(self.target_network)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, total_iters=steps)

    def step(self) -> None:
        state, reward, following, terminated = zip(*(self.walk.step() for _ in range(BATCH)), strict=True)
        features = torch.eye(STATES, dtype=torch.float32)
        value = self.model(features[list(state)]).squeeze(-1)  # dropout draws from torch's generator
        next_value = self.target_network(features[list(following)]).squeeze(-1)
        target = unstale.targets.td(torch.tensor(reward), next_value, torch.tensor(terminated), GAMMA)
        self.optimizer.backward(value, target)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.step_number += 1
        if self.step_number % 10 == 0:
            self.target_network.load_state_dict(self.model.state_dict())

    def state_dict(self) -> dict[str, Any]:
        return dict(
            settings=self.settings,
            step=self.step_number,
            random=torch.get_rng_state(),
            walk=self.walk.state_dict(),
            model=self.model.state_dict(),
            target_network=self.target_network.state_dict(),
            optimizer=self.optimizer.state_dict(),
            schedule=self.schedule.state_dict(),
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.target_network.load_state_dict(state["target_network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.walk.load_state_dict(state["walk"])
        torch.set_rng_state(state["random"])
        self.step_number = state["step"]


def save(state: dict[str, Any], path: Path) -> None:
    """Write a file that is there completely, or not at all: the old one stays until the new one is on disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)  # so that the new name survives a power failure, too
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def load(path: Path, training: Training) -> None:
    """Load a checkpoint.

    Raises:
        SystemExit: the file is not a checkpoint of this program, or was saved with other settings.
    """
    try:
        state = torch.load(path, weights_only=True)
    except Exception:  # depends on what the file contains
        state = None
    if not isinstance(state, dict) or state.keys() != training.state_dict().keys():
        raise SystemExit(f"{path} is not a checkpoint of this program; name another file.")
    saved = state["settings"]
    differ = [name for name, value in training.settings.items() if saved.get(name) != value]
    if differ:
        theirs, ours = (" ".join(f"--{name} {of.get(name)}" for name in differ) for of in (saved, training.settings))
        raise SystemExit(
            f"{path} was saved with {theirs}, but this run has {ours}; "
            f"pass {theirs} to resume it, or name another file to start a new run."
        )
    try:
        training.load_state_dict(state)
    except Exception as error:
        raise SystemExit(f"{path} is damaged ({error}); name another file to start a new run.") from None


def main(path: Path, steps: int = 3000, lr: float = 0.01, seed: int = 0, save_every: float = 5.0) -> Training:
    """Train for a number of steps in total, and save every ``save_every`` seconds and at the end."""
    training = Training(steps, lr, seed)
    if path.exists():
        load(path, training)
        print(f"resumed from {path} at step {training.step_number} of {steps}", flush=True)
    elif not path.parent.is_dir():
        raise SystemExit(f"the folder {path.parent} does not exist; make it, or name another file.")
    last_save = time.monotonic()
    while training.step_number < steps:
        training.step()
        if time.monotonic() - last_save >= save_every and training.step_number < steps:
            save(training.state_dict(), path)
            last_save = time.monotonic()
    save(training.state_dict(), path)
    print(f"saved {path} at step {steps} of {steps}", flush=True)
    return training


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="the checkpoint")
    parser.add_argument("--steps", type=int, default=3000, help="in total")
    parser.add_argument("--lr", type=float, default=0.01, help="the learning rate at the start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=float, default=5.0, metavar="SECONDS")
    arguments = parser.parse_args()
    try:
        trained = main(**vars(arguments))
    except KeyboardInterrupt:
        sys.exit(f"interrupted; run the same command again to go on from {arguments.path}, if it was saved")
    with torch.no_grad():
        middle = float(trained.model.eval()(torch.eye(STATES)[STATES // 2]))
    print(f"{trained.step_number} steps; value of the middle state: {middle:.3f}")
