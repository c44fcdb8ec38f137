"""Trains the expert policies of Acrobot and Cartpole by the cross-entropy method.

A population of small networks is drawn from a Gaussian over their weights, every network plays the same few episodes,
and the Gaussian is fitted to the best ones; this repeats. The dynamics are batched, so thousands of episodes are played
at once, and no gradient is needed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from .errors import UserError
from .problems import REPLAYS, acrobot, cartpole
from .problems.environment import Task, rollout, with_random_actions
from .problems.policies import Expert, expert_path, save_expert, shapes, training_command
from .problems.problem import seeded

TASKS: dict[str, Task] = {task.name: task for task in (acrobot.TASK, cartpole.TASK)}
HIDDEN = 8
GENERATIONS, POPULATION, ELITE, EPISODES = 40, 128, 16, 32
FINAL_EPISODES = 256
EXTRA_STD = 0.3  # added in the first generation, and decreased to 0 over the first half
SCORED_EPISODES = 1000


def train(problem: str, seed: int = 0) -> Expert:
    """The best network of the last elite, trained with the same share of random actions that it is evaluated with."""
    task = _task(problem)
    generator = seeded("expert", problem, seed)
    size = sum(rows * columns for rows, columns in shapes(task, HIDDEN))
    mean, std = torch.zeros(size, dtype=torch.float32), torch.ones(size, dtype=torch.float32)
    for generation in range(GENERATIONS):
        candidates = mean + std * torch.randn(POPULATION, size, generator=generator, dtype=torch.float32)
        elite = candidates[_fitness(task, candidates, EPISODES, generator).topk(ELITE).indices]
        # Without extra variance the Gaussian collapses before it has found anything.
        extra = EXTRA_STD * max(0.0, 1 - 2 * generation / GENERATIONS)
        mean, std = elite.mean(0), elite.std(0) + extra
    return _expert(task, elite[_fitness(task, elite, FINAL_EPISODES, generator).argmax()])


def score(task: Task, expert: Expert, seed: int = 0) -> float:
    """The mean return over new episodes, in the units of Gymnasium."""
    generator = seeded("score", task.name, seed)
    policy = with_random_actions(expert, task, generator)
    return rollout(task, policy, task.start(SCORED_EPISODES, generator)).scores().mean().item()


def train_and_save(problem: str, path: Path | None = None, seed: int = 0) -> dict[str, str]:
    """Trains an expert, saves it, with the values of its policy where those are estimates, and returns its metadata.

    Args:
        path: the file of the expert. Default: where the problem loads it from.
    """
    task = _task(problem)
    expert = train(problem, seed)
    about = {
        "problem": problem,
        "command": training_command(problem) + (f" --seed {seed}" if seed else ""),
        "seed": str(seed),
        "episodes": str(SCORED_EPISODES),
        "score": f"{score(task, expert):.1f}",
        "score_without_random_actions": f"{score(replace(task, random_actions=0.0), expert):.1f}",
    }
    save_expert(expert, path or expert_path(problem), task, about)
    replay = REPLAYS[problem](expert=path)
    if not replay.values_are_exact:
        replay.save_values_file()
    return about


def estimate_values(problem: str, path: Path | None = None) -> dict[str, str]:
    """Estimates the values of an existing expert's policy, saves them beside it, and returns their metadata."""
    replay = REPLAYS[_task(problem).name](expert=path)
    if replay.values_are_exact:
        raise UserError(f"the values of {problem} are exact and computed when needed; there is nothing to save")
    return replay.save_values_file()


def _task(problem: str) -> Task:
    if problem not in TASKS:
        raise UserError(f"there is no expert to train for {problem!r}, only for {' and '.join(TASKS)}")
    return TASKS[problem]


def _expert(task: Task, weights: Tensor) -> Expert:
    """Networks from vectors of all their weights, [..., size]."""
    wanted = shapes(task, HIDDEN)
    parts = weights.split([rows * columns for rows, columns in wanted], -1)
    return Expert(*(part.unflatten(-1, shape) for part, shape in zip(parts, wanted, strict=True)))


def _fitness(task: Task, candidates: Tensor, episodes: int, generator: torch.Generator) -> Tensor:
    """The mean return of each candidate, [candidates]. All start from the same states, so that luck plays no role."""
    count = len(candidates)
    experts = _expert(task, candidates)

    def act(observation: Tensor) -> Tensor:
        return experts(observation.unflatten(0, (count, -1))).flatten()

    policy = with_random_actions(act, task, generator)
    start = task.start(episodes, generator).repeat(count, 1)
    return rollout(task, policy, start).scores().unflatten(0, (count, -1)).mean(1)
