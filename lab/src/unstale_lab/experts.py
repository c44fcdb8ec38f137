"""Experts for the problems that need one, trained by the cross-entropy method.

A population of small networks is drawn from a Gaussian over their weights, each plays the same few episodes, and the
Gaussian is fitted to the best of them; again and again. With batched dynamics thousands of episodes are played at once,
and no gradient is needed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from .mistakes import UserError
from .problems import REPLAYS, acrobot, cartpole
from .problems.base import seeded
from .problems.environment import Task
from .problems.environment import rollout as play
from .problems.environment import with_random_actions as at_times_random
from .problems.policies import Expert, expert_path, making_of, save_expert, shapes

TASKS: dict[str, Task] = {task.name: task for task in (acrobot.TASK, cartpole.TASK)}
HIDDEN = 8
GENERATIONS, POPULATION, ELITE, EPISODES = 40, 128, 16, 32
FINAL_EPISODES = 256
EXTRA_SPREAD = 0.3
SCORED_EPISODES = 1000


def train(problem: str, seed: int = 0) -> Expert:
    """The best of the last elite, trained to act as it will be evaluated, random actions included."""
    task = _task(problem)
    numbers = seeded("expert", problem, seed)
    size = sum(rows * columns for rows, columns in shapes(task, HIDDEN))
    mean, spread = torch.zeros(size, dtype=torch.float32), torch.ones(size, dtype=torch.float32)
    for generation in range(GENERATIONS):
        candidates = mean + spread * torch.randn(POPULATION, size, generator=numbers, dtype=torch.float32)
        elite = candidates[_fitness(task, candidates, EPISODES, numbers).topk(ELITE).indices]
        # Spread that is added, and fades, keeps the Gaussian from narrowing before it has found anything.
        extra = EXTRA_SPREAD * max(0.0, 1 - 2 * generation / GENERATIONS)
        mean, spread = elite.mean(0), elite.std(0) + extra
    return _expert(task, elite[_fitness(task, elite, FINAL_EPISODES, numbers).argmax()])


def score(task: Task, expert: Expert, seed: int = 0) -> float:
    """The mean return over fresh episodes, in Gymnasium's units."""
    numbers = seeded("score", task.name, seed)
    policy = at_times_random(expert, task, numbers)
    return play(task, policy, task.start(SCORED_EPISODES, numbers)).scores().mean().item()


def train_and_save(problem: str, path: Path | None = None, seed: int = 0) -> dict[str, str]:
    """Trains an expert, keeps it where the problem looks for it unless told otherwise, with the values of its policy
    where those are estimates, and returns what the expert's file says about itself."""
    task = _task(problem)
    expert = train(problem, seed)
    about = {
        "problem": problem,
        "command": making_of(problem) + (f" --seed {seed}" if seed else ""),
        "seed": str(seed),
        "episodes": str(SCORED_EPISODES),
        "score": f"{score(task, expert):.1f}",
        "score_without_random_actions": f"{score(replace(task, random_actions=0.0), expert):.1f}",
    }
    save_expert(expert, path or expert_path(problem), task, about)
    replay = REPLAYS[problem](expert=path)
    if not replay.values_are_exact:
        replay.keep_values()
    return about


def keep_values(problem: str, path: Path | None = None) -> dict[str, str]:
    """Estimates the values of an expert there is anew, keeps them beside it, and returns what their file says about
    itself."""
    replay = REPLAYS[_task(problem).name](expert=path)
    if replay.values_are_exact:
        raise UserError(f"the values of {problem} are exact, and computed whenever they are needed: none are kept")
    return replay.keep_values()


def _task(problem: str) -> Task:
    if problem not in TASKS:
        raise UserError(f"there is no expert to train for {problem!r}, only for {' and '.join(TASKS)}")
    return TASKS[problem]


def _expert(task: Task, numbers: Tensor) -> Expert:
    """From vectors of all weights, [..., size]."""
    wanted = shapes(task, HIDDEN)
    parts = numbers.split([rows * columns for rows, columns in wanted], -1)
    return Expert(*(part.unflatten(-1, shape) for part, shape in zip(parts, wanted, strict=True)))


def _fitness(task: Task, candidates: Tensor, episodes: int, numbers: torch.Generator) -> Tensor:
    """The mean return of each, [candidates]. All play from the same starts: luck is no merit."""
    many = len(candidates)
    experts = _expert(task, candidates)

    def each_its_own(observation: Tensor) -> Tensor:
        return experts(observation.unflatten(0, (many, -1))).flatten()

    policy = at_times_random(each_its_own, task, numbers)
    return play(task, policy, task.start(episodes, numbers).repeat(many, 1)).scores().unflatten(0, (many, -1)).mean(1)
