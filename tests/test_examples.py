"""The examples run and do what they say, and so does every snippet of the documentation."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import unstale

ROOT = Path(__file__).parent.parent


def load(name):
    """An example as a module. It is not installed, so it is loaded from its file."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


td_loop = load("td_loop")
policy_evaluation = load("policy_evaluation")
atari_sarsa = load("atari_sarsa")
atari_ppo = load("atari_ppo")


# --------------------------------------------------------------------------------------------------------- games


class OneButton:
    """A made-up game of four buttons: one pays 10, the others nothing, and it is over after three steps."""

    single_action_space = SimpleNamespace(n=4)

    def __init__(self, game, count):
        self.count, self.time = count, 0

    def reset(self, seed):
        return np.full((self.count, 4, 84, 84), 128, dtype=np.uint8), {"lives": np.ones(self.count, dtype=int)}

    def step(self, actions):
        self.time += 1
        over = np.full(self.count, self.time % 3 == 0)
        frames, info = self.reset(0)
        return frames, np.where(actions == 2, 10, 0), over, np.zeros_like(over), info

    def close(self):
        pass


class SmallActorCritic(torch.nn.Module):
    """Sees one pixel of each frame."""

    def __init__(self, actions):
        super().__init__()
        self.trunk = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU()).float()
        self.policy, self.value = torch.nn.Linear(16, actions).float(), torch.nn.Linear(16, 1).float()

    def forward(self, frames):
        features = self.trunk(frames[:, :, 0, 0].float() / 255)
        return self.policy(features), self.value(features).squeeze(-1)


@pytest.mark.parametrize("correction", ["none", "window"])
@pytest.mark.parametrize(
    "example, settings",
    [
        (atari_sarsa, {"games": 4, "lr": 3e-3, "steps": 1200, "print_every": 20}),
        (atari_ppo, {"games": 4, "lr": 1e-2, "steps": 1200, "rollout": 12, "minibatch": 24}),
    ],
    ids=["sarsa", "ppo"],
)
def test_games_are_learned(monkeypatch, capsys, example, settings, correction):
    monkeypatch.setattr(example, "make_games", OneButton)
    monkeypatch.setattr(atari_sarsa, "EXPLORING", 600)
    monkeypatch.setattr(atari_ppo, "ActorCritic", SmallActorCritic)
    scores = example.main(correction=correction, **settings)
    assert len(scores) == settings["steps"] // 3
    share = len(scores) // 10
    assert np.mean(scores[:share]) < 15 and np.mean(scores[-share:]) > 20
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["steps", "seconds", "score", "loss"] and len(rows) >= 3
    assert rows[-1].split()[0].replace(",", "") == str(settings["steps"])


@pytest.mark.parametrize("example, settings", [(atari_sarsa, {}), (atari_ppo, {"rollout": 5, "minibatch": 10})])
def test_real_games_are_played(example, settings):
    assert example.main(correction="diagonal", games=2, steps=20, **settings) == []  # none ends so soon


def test_rewards_ahead_are_the_librarys_n_step_targets():
    numbers = torch.Generator().manual_seed(0)
    rewards, values = (torch.rand(8, 3, generator=numbers) for _ in range(2))
    ended = torch.rand(8, 3, generator=numbers) < 0.2
    never, gamma = torch.zeros_like(ended), atari_ppo.GAMMA
    gain, discount, ahead = atari_ppo.rewards_ahead(rewards, ended)
    found = gain + discount * values.gather(0, ahead - 1)
    torch.testing.assert_close(found, unstale.targets.n_step(rewards, values, ended, never, gamma, n=5))
    gain, discount = atari_sarsa.rewards_ahead(rewards, ended)
    torch.testing.assert_close(
        gain + discount * values[-1], unstale.targets.n_step(rewards, values, ended, never, gamma, n=8)
    )


def test_the_examples_of_games_need_no_laboratory():
    for example in (atari_sarsa, atari_ppo):
        assert "unstale_lab" not in Path(example.__file__).read_text("utf-8")


# ------------------------------------------------------------------------------------------------------- td_loop


@pytest.mark.parametrize("anneal", [False, True])
@pytest.mark.parametrize("corrected", [False, True])
def test_td_loop_learns(corrected, anneal):
    untrained = td_loop.main(steps=0, corrected=corrected)
    assert td_loop.main(steps=300, corrected=corrected, lr=3e-3, anneal=anneal) < 0.25 * untrained


def test_td_loop_differs_by_the_correction_alone(monkeypatch):
    """Without correction, the corrected optimizer makes torch's steps: lr, β and schedule are the same in both."""
    plain = td_loop.main(steps=30, anneal=True)
    assert td_loop.main(steps=30, corrected=True, anneal=True) != pytest.approx(plain, rel=1e-4)
    corrected = unstale.CorrectedAdam
    monkeypatch.setattr(unstale, "CorrectedAdam", lambda *a, **k: corrected(*a, correction="none", **k))
    assert td_loop.main(steps=30, corrected=True, anneal=True) == pytest.approx(plain, rel=1e-4)


def test_td_loop_compares_over_seeds(capsys):
    td_loop.compare(steps=5, seeds=2)
    errors = [td_loop.main(steps=5, corrected=True, seed=seed) for seed in range(2)]
    plain, corrected = capsys.readouterr().out.splitlines()
    assert plain.split()[0] == "torch.optim.Adam"
    expected = f"{sum(errors) / 2:.5f} ({min(errors):.5f} to {max(errors):.5f})"
    assert corrected.split(maxsplit=1) == ["unstale.CorrectedAdam", expected]


def test_random_walk_values_solve_their_equation():
    value = td_loop.true_values()
    gamma, around = td_loop.GAMMA, torch.cat([torch.zeros(1), value, torch.zeros(1)])
    expected = gamma / 2 * (around[:-2] + around[2:])
    expected[0] -= 0.5
    expected[-1] += 0.5
    torch.testing.assert_close(value, expected)


def test_random_walk_pays_at_its_ends_alone():
    state, reward, following, terminated = td_loop.walk(5000, torch.Generator().manual_seed(0))
    assert set(reward[terminated == 0].tolist()) == {0.0}
    assert reward[terminated == 1].tolist() == following[terminated == 1].squeeze(-1).tolist()  # positions -1 and 1
    torch.testing.assert_close((following - state).abs(), torch.full_like(state, 0.1))


# --------------------------------------------------------------------------------------------- policy_evaluation


@pytest.mark.parametrize(
    "state, expected, ends",
    [
        # At rest in the valley: push right, 0.001 - 0.0025 cos(-1.5) = 0.000823157.
        ((-0.5, 0.0), (-0.499176843, 0.000823157), False),
        # Rolling left, pushed left: -0.02 - 0.001 - 0.0025 cos(-1.5).
        ((-0.5, -0.02), (-0.521176843, -0.021176843), False),
        # Faster than allowed: 0.07 + 0.001 - 0.0025 cos(-3) > 0.07.
        ((-1.0, 0.07), (-0.93, 0.07), False),
        # Into the left wall: position and velocity stop.
        ((-1.19, -0.07), (-1.2, 0.0), False),
        # Over the goal: 0.03 + 0.001 - 0.0025 cos(1.47) = 0.030748435.
        ((0.49, 0.03), (0.520748435, 0.030748435), True),
    ],
)
def test_mountain_car_steps_by_hand(state, expected, ends):
    following, terminated = policy_evaluation.follow_policy(torch.tensor([state]))
    torch.testing.assert_close(following, torch.tensor([expected]), rtol=0, atol=1e-9)
    assert terminated.item() is ends


def test_true_value_satisfies_the_bellman_equation():
    state = policy_evaluation.uniform_states(3000, seed=0)
    following, terminated = policy_evaluation.follow_policy(state)
    expected = -0.1 + 0.95 * torch.where(terminated, 0.0, policy_evaluation.true_value(following))
    torch.testing.assert_close(policy_evaluation.true_value(state), expected, rtol=0, atol=1e-6)
    assert 0 < terminated.float().mean() < 0.5  # both kinds of states are there


def test_true_value_by_hand():
    # One step from the goal, and one that takes two: -0.1 and -0.1 (1 + 0.95).
    value = policy_evaluation.true_value(torch.tensor([[0.49, 0.03], [0.45, 0.03]]))
    torch.testing.assert_close(value, torch.tensor([-0.1, -0.195]))


def test_policy_evaluation_learns_prints_and_plots(tmp_path, capsys):
    path = tmp_path / "made" / "plot.png"
    results = policy_evaluation.main(steps=60, seeds=1, workers=1, unbounded=True, path=path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert len(results) == 4 * 2 * 2
    for run, errors in results.items():
        assert len(errors) == len(run.marks) and errors[-1] < 0.8 * errors[0]
    starts = {errors[0] for errors in results.values()}
    assert len(starts) == 1  # every method starts from the same weights
    at_setting = {run.method: errors[-1] for run, errors in results.items() if run.setting == (0.5, 0.9)}
    assert len({at_setting[name] for name in ("momentum", "diagonal correction", "full correction")}) == 3
    printed = "".join(capsys.readouterr().out.split())  # whose lines may be wrapped anywhere
    assert "Meansquarederror" in printed and "0.99" in printed and "plot.png" in printed


def test_policy_evaluation_counts_divergence():
    run = policy_evaluation.Run("momentum", lr=1e6, beta=0.9, seed=0, steps=100)
    made = []
    errors = policy_evaluation.train(run, made.append)
    assert math.isinf(errors[-1]) and len(errors) == len(run.marks)
    assert sum(made) == run.steps  # the progress bar gets to its end
    assert policy_evaluation._cell([1.0, math.inf], False) == "1 of 2\ndiverged"


def test_pairs_are_runs_on_the_same_data():
    momentum, full = (policy_evaluation.Run(m, 0.1, 0.9, 0, 50) for m in ("momentum", "full correction"))
    other_momentum, other_full = momentum._replace(seed=1), full._replace(seed=1)
    results = {momentum: [3.0], full: [2.0], other_momentum: [1.0], other_full: [1.5]}
    assert "1 of 2 pairs" in policy_evaluation.paired(results)


def test_policy_evaluation_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install matplotlib rich"):
        policy_evaluation.main(steps=1)


# ----------------------------------------------------------------------------------------------------- snippets


def blocks(page):
    """The python blocks of a page, each with the heading that it stands under."""
    text = (ROOT / page).read_text("utf-8")
    found, heading = [], ""
    for title, code in re.findall(r"^#+ ([^\n]*)$|^```python\n(.*?)^```$", text, flags=re.M | re.S):
        heading = title or heading
        if code:
            found.append(pytest.param(code, id=heading))
    return found


PRELUDE, *RECIPES = blocks("docs/recipes.md")
README = [block.values[0] for block in blocks("README.md")]


class Log:
    """A stand-in for ``SummaryWriter`` and ``wandb``: takes names and floats, and nothing else."""

    def __init__(self):
        self.written = {}

    def add_scalar(self, tag, scalar_value, global_step):
        assert type(tag) is str and type(scalar_value) is float and type(global_step) is int
        self.written.setdefault(tag, []).append((global_step, scalar_value))

    def log(self, data, step):
        for name, value in data.items():
            self.add_scalar(name, value, step)


@pytest.fixture(autouse=True)
def log(monkeypatch):
    """Loggers are not installed with the tests."""
    written, run = Log(), Log()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=lambda: written))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda project: run))
    return written, run


def test_logging_recipe_writes_every_reading(log):
    (code,) = [recipe.values[0] for recipe in RECIPES if recipe.id.startswith("Logging")]
    test_recipe_runs(code)
    writer, run = (each.written for each in log)
    names = {"loss", "staleness", "bounded_share", "beta", "memory", "steps", "skipped_steps"}
    assert set(writer) == set(run) == {f"unstale/{name}" for name in names}
    assert writer == run
    assert [step for step, _ in writer["unstale/staleness"]] == [0, 10]
    assert writer["unstale/staleness"][0][1] == 0.0 < writer["unstale/staleness"][1][1]
    assert writer["unstale/steps"] == [(0, 1.0), (10, 11.0)]


@pytest.mark.parametrize("code", RECIPES)
def test_recipe_runs(code):
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    names: dict = {}
    with warnings.catch_warnings():
        exec(PRELUDE.values[0], names)
        exec(code, names)
    assert math.isfinite(names["loss"].detach())
    optimizer = names["optimizer"]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    assert all(p.isfinite().all() for p in parameters)
    if isinstance(optimizer, unstale.CorrectedAdam | unstale.CorrectedSGD):
        assert all(group.steps >= 1 for group in unstale.diagnostics.groups(optimizer))


PLAIN_LOOP = """
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

value, next_value = model(state).squeeze(-1), model(next_state).squeeze(-1)
target = reward + gamma * ~terminated * next_value
(0.5 * (value - target.detach()) ** 2).mean().backward()
optimizer.step()
optimizer.zero_grad()
"""


def test_readme_loop_begins_like_adam():
    """From one start, the first step of the README's loop is that of the loop that it replaces."""
    ends = []
    (readme,) = README
    beginning, changed = readme.split("optimizer = ", 1)
    for code in (PLAIN_LOOP, f"optimizer = {changed}"):
        torch.manual_seed(0)
        names: dict = {}
        exec(beginning + code, names)
        ends.append(torch.cat([p.detach().flatten() for p in names["model"].parameters()]))
    before, after = ends
    torch.testing.assert_close(after, before)


PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/reference.md"])
def test_links_lead_somewhere(page):
    found = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", (ROOT / page).read_text("utf-8"))
    assert found
    for path, anchor in found:
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), path
        if anchor:
            headings = re.findall(r"^#+ ([^\n]*)$", target.read_text("utf-8"), flags=re.M)
            assert anchor in [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings], anchor


def test_every_recipe_is_found_and_listed():
    page = (ROOT / "docs/recipes.md").read_text("utf-8")
    assert len(RECIPES) == page.count("```python") - 1
    headings = re.findall(r"^## (.*)$", page, flags=re.M)
    assert headings == re.findall(r"^- \[(.*)\]\(#", page, flags=re.M)
    assert headings == [recipe.id for recipe in RECIPES]
