"""A training loop that survives kill -9: it saves everything every few minutes, and goes on as if nothing had happened.

    python examples/resumable.py walk.pt                   # start, or go on from walk.pt if there is one
    python examples/resumable.py walk.pt --minutes 0.05    # save every 3 seconds

Kill it whenever you like and start it again. The final parameters are those of a run without a stop, bit for
bit on a CPU. Three things make this true:

- The file holds all state: step, networks, optimizer, scheduler, random generators and the environment.
- The file is never half-written: the state goes to a temporary file, which is forced to disk and then renamed.
- The loop has no other state. What is drawn, and in which order, follows from the file alone.

The optimizer follows a target network, so ``follow`` is called before its state is loaded.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
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

    def __init__(self, steps: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.steps, self.step_number = steps, 0
        self.walk = Walk(seed)
        self.model = nn.Sequential(nn.Linear(STATES, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1)).float()
        self.target_network = copy.deepcopy(self.model)
        self.optimizer = unstale.CorrectedAdam(self.model, lr=0.01)
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


def main(path: Path, steps: int = 3000, minutes: float = 3.0) -> Training:
    """Train to the end, from where the file is."""
    training = Training(steps)
    if path.exists():
        training.load_state_dict(torch.load(path, weights_only=True))
    saved = time.monotonic()
    while training.step_number < steps:
        training.step()
        if time.monotonic() - saved >= 60 * minutes:
            save(training.state_dict(), path)
            saved = time.monotonic()
    save(training.state_dict(), path)
    return training


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="the checkpoint")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--minutes", type=float, default=3.0, help="between checkpoints")
    chosen = parser.parse_args()
    trained = main(chosen.path, chosen.steps, chosen.minutes)
    with torch.no_grad():
        middle = float(trained.model.eval()(torch.eye(STATES)[STATES // 2]))
    print(f"{trained.step_number} steps; value of the middle state: {middle:.3f}")
