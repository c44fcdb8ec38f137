"""Small environments and files for the tests of ``unstale evaluate``."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

STATES, GAMMA = 5, 0.9


class Walk(gymnasium.Env):
    """A row of states. Action 1 moves right and 0 left; the ends terminate, the right one with a reward of 1."""

    def __init__(self, reward: float = 1.0, ends: bool = True) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._reward, self._ends = reward, ends

    def _observe(self) -> np.ndarray:
        return np.array([2 * self._place / (STATES - 1) - 1, 1.0], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._place = int(self.np_random.integers(STATES))
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self._place += 1 if action else -1
        over = not 0 <= self._place < STATES
        reward = self._reward if self._place == STATES else 0.0
        if over and not self._ends:
            self._place = min(max(self._place, 0), STATES - 1)
        return self._observe(), reward, over and self._ends, False, {}


class Slide(gymnasium.Env):
    """A point that an action in [-2, 2] moves; the reward is minus its distance from zero. It never terminates."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._x = float(self.np_random.uniform(-1, 1))
        return np.array([self._x, 0, 0], np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self._x = float(np.clip(self._x + 0.1 * action[0], -2, 2))
        return np.array([self._x, 0, 0], np.float32), -abs(self._x), False, False, {}


def register() -> None:
    """Make the environments known to Gymnasium, once."""
    options = dict(entry_point="evaluation_problems:Walk", max_episode_steps=200)
    for name, entry in {
        "test/Walk-v0": options,
        "test/Endless-v0": dict(entry_point="evaluation_problems:Walk", kwargs=dict(ends=False)),
        "test/NaN-v0": options | dict(kwargs=dict(reward=float("nan"))),
        "test/Slide-v0": dict(entry_point="evaluation_problems:Slide", max_episode_steps=30),
    }.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, **entry)


def walk_values(right: float) -> np.ndarray:
    """Values of the states of the walk under a policy that moves right with a probability, by linear algebra."""
    matrix = np.eye(STATES) - GAMMA * (right * np.eye(STATES, k=1) + (1 - right) * np.eye(STATES, k=-1))
    rewards = np.zeros(STATES)
    rewards[-1] = right
    return np.linalg.solve(matrix, rewards)


def log_walk(right: float, episodes: int, seed: int) -> dict[str, np.ndarray]:
    """Columns of logged transitions of the walk."""
    generator, environment = np.random.default_rng(seed), Walk()
    rows: list[tuple] = []
    observation, _ = environment.reset(seed=seed)
    for _ in range(episodes):
        over = False
        while not over:
            action = int(generator.random() < right)
            following, reward, over, _, _ = environment.step(action)
            rows.append((observation, action, reward, following, over, False))
            observation = following
        observation, _ = environment.reset()
    names = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
    return {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def save_sb3(path: Path, weights: dict[str, torch.Tensor], inputs: int, actions: int | None, **more: object) -> Path:
    """A file as Stable-Baselines3 writes it, with pickles that must not be read in place of its own."""
    pickled = {":serialized:": "bm90IGEgcGlja2xl"}
    box = {":type:": "<class 'gymnasium.spaces.box.Box'>", **pickled, "dtype": "float32"}
    discrete = {":type:": "<class 'gymnasium.spaces.discrete.Discrete'>", **pickled, "n": str(actions), "_shape": []}
    data = {
        "policy_class": {":type:": "<class 'abc.ABCMeta'>", **pickled},
        "policy_kwargs": {},
        "use_sde": False,
        "observation_space": box | {"_shape": [inputs]},
        "action_space": box | {"_shape": [1]} if actions is None else discrete,
        **more,
    }
    content = io.BytesIO()
    torch.save(weights, content)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps(data))
        archive.writestr("policy.pth", content.getvalue())
    return path


def mlp_weights(prefixes: dict[str, tuple[int, int]], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights and biases of linear layers, by name."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, (inputs, outputs) in prefixes.items():
        found[f"{name}.weight"] = torch.randn(outputs, inputs, generator=generator, dtype=torch.float32)
        found[f"{name}.bias"] = torch.randn(outputs, generator=generator, dtype=torch.float32)
    return found
