"""The single-file algorithms of ``examples/`` train, and without correction they are those of torch's Adam."""

from __future__ import annotations

import importlib.util
import inspect
import math
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import unstale

pytest.importorskip("gymnasium")

EXAMPLES = Path(__file__).parent.parent / "examples"
# Settings with which each takes a second or two.
TINY = {
    "dqn": dict(steps=600, warmup=50, batch_size=16, width=16, copy_every=50, print_every=200),
    "pqn": dict(steps=1024, envs=4, width=16, print_every=256),
    "ppo": dict(steps=1024, envs=4, rollout=32, width=16, print_every=256),
    "sac": dict(steps=430, warmup=200, batch_size=16, width=16, print_every=100),
    "stream_td_lambda": dict(steps=300, length=8, print_every=100),
}


@pytest.fixture(autouse=True)
def float32():
    torch.set_default_dtype(torch.float32)


def load(name, folder=EXAMPLES):
    """An example as a module, from its file."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class PlainAdam(torch.optim.Adam):
    """What the examples would use without the library."""

    def __init__(self, model, lr, eps=1e-8, correction="none"):
        super().__init__(model.parameters(), lr=lr, eps=eps)

    def backward(self, prediction, target, loss="half_squared", weight=1.0):
        if loss == "smooth_l1":
            value = torch.nn.functional.smooth_l1_loss(prediction, target.detach())
        else:
            value = 0.5 * torch.nn.functional.mse_loss(prediction, target.detach())
        (weight * value).backward(inputs=[p for group in self.param_groups for p in group["params"]])
        return value.detach()

    def follow(self, network):
        """Adam has nothing to follow."""

    def clip_grad_norm_(self, max_norm):
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], max_norm)


@pytest.mark.parametrize("name", TINY)
def test_example_trains(name, capsys):
    curve = load(name).main(correction="auto", **TINY[name])
    steps, scores = zip(*curve, strict=True)
    assert list(steps) == sorted(steps) and steps[-1] <= TINY[name]["steps"]
    assert len(curve) >= 2 and all(map(math.isfinite, scores))
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["steps", "seconds", "score", "loss"] and len(rows) >= 3
    assert int(rows[-1].split()[0].replace(",", "")) == TINY[name]["steps"]
    assert math.isfinite(float(rows[-1].split()[-1]))


@pytest.mark.parametrize("name", TINY)
def test_example_without_correction_is_that_of_adam(name, capsys, monkeypatch):
    example = load(name)
    printed = []
    for optimizer in (unstale.CorrectedAdam, PlainAdam):
        monkeypatch.setattr(unstale, "CorrectedAdam", optimizer)
        example.main(correction="none", **TINY[name])
        rows = capsys.readouterr().out.splitlines()[1:]
        printed.append([[float(row.replace(",", "").split()[column]) for column in (0, 2, 3)] for row in rows])
    np.testing.assert_allclose(printed[0], printed[1], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("correction", ["none", "auto"])
def test_ppo_learns(correction):
    curve = load("ppo").main(correction=correction, steps=5000, envs=8)
    scores = [score for _, score in curve]
    assert np.mean(scores[-10:]) > 2 * np.mean(scores[:10])


def test_ppo_clips_values(capsys):
    losses = []
    for clip in (0.0, 1e-3, 1e6):
        load("ppo").main(correction="auto", value_clip=clip, **TINY["ppo"])
        losses.append([float(row.split()[-1]) for row in capsys.readouterr().out.splitlines()[1:]])
    free, clipped, hardly_clipped = losses
    assert hardly_clipped == pytest.approx(free, rel=1e-3)
    assert clipped[-1] != pytest.approx(free[-1], rel=1e-2)


@pytest.mark.parametrize("name", ["pqn", "ppo"])
def test_final_observations_replace_those_of_the_next_episode(name):
    example = load(name)
    first = np.zeros((3, 2))
    final = np.array([None, np.ones(2), None], dtype=object)
    info = {"final_obs": final, "_final_obs": np.array([False, True, False])}
    assert example.final_observations(first, info).tolist() == [[0, 0], [1, 1], [0, 0]]
    assert example.final_observations(first, {}) is first and not first.any()


def test_streamed_returns_are_those_of_the_whole_episode():
    """Beyond the window a return bootstraps; within it, it is the λ-return of the episode."""
    stream = load("stream_td_lambda")
    critic = torch.nn.Linear(2, 1)
    states = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    window = [stream.Transition(states[t], torch.tensor(0), float(t), states[t + 1], t == 4, False) for t in range(5)]
    value, target = stream.lambda_return(critic, window, gamma=0.9, lam=0.8)
    values = critic(states).squeeze(-1)
    expected = 4.0
    for t in reversed(range(4)):
        expected = t + 0.9 * (0.2 * values[t + 1] + 0.8 * expected)
    torch.testing.assert_close(value, values[:1])
    torch.testing.assert_close(target, expected.reshape(1))
    assert target.requires_grad


def test_examples_share_their_functions():
    """Each is a single file; what two of them define alike is the same, line by line."""
    blocks = {name: (EXAMPLES / f"{name}.py").read_text("utf-8").split("\n\n\n") for name in TINY}
    alike = {"def make_network": {"dqn", "sac"}, "class ReplayBuffer": {"dqn", "sac"}, "def print_row": set(TINY)}
    alike |= {"def final_observations": {"pqn", "ppo"}, "if __name__": set(TINY)}
    for start, names in alike.items():
        found = [block for name in names for block in blocks[name] if block.startswith(start)]
        assert len(found) == len(names) and len({block.strip() for block in found}) == 1, start


@pytest.mark.parametrize("name", TINY)
def test_examples_take_every_setting_on_the_command_line(name, monkeypatch, capsys):
    settings = inspect.signature(load(name).main).parameters
    given = {**TINY[name], "steps": 128, "seed": 3, "correction": "none"}
    arguments = [f"--{setting.replace('_', '-')}={value}" for setting, value in given.items()]
    monkeypatch.setattr(sys, "argv", ["example", *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "\n     128 " in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["example", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert all(f"--{setting.replace('_', '-')} " in printed for setting in settings)


@pytest.mark.parametrize("name", TINY)
def test_examples_mark_their_changed_lines(name):
    text = (EXAMPLES / f"{name}.py").read_text("utf-8")
    assert text.count("# unstale:") >= 4 and "unstale_lab" not in text


# ------------------------------------------------------------------------------------------------- learning curves


@pytest.fixture
def curves(monkeypatch):
    """The benchmark, with a case that returns numbers made up, and a list of the runs that it makes."""
    pytest.importorskip("matplotlib")
    module = load("examples", EXAMPLES.parent / "benchmarks")
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    scores = {"none": [10.0, 20.0, 30.0], "auto": [10.0, 25.0, 50.0]}
    module.made = []

    def run(name, correction, seed, steps):
        module.made.append((correction, seed))
        return [(steps * (i + 1) // 3, score + seed - 100) for i, score in enumerate(scores[correction])]

    monkeypatch.setattr(module, "CASES", {"made up": (run, "", 300, {})})
    return module


def test_learning_curves_are_written(tmp_path, curves):
    curves.main(["made up"], seeds=2, share=1.0, out=tmp_path / "curves.json")
    (row,) = [line for line in (tmp_path / "curves.md").read_text("utf-8").splitlines() if "made up" in line]
    cells = [cell.strip() for cell in row.split("|")]
    # Last fifth: 30.5 and 50.5; all of it: 20.5 and 28.83. Both seeds have the same difference.
    assert cells[2:10] == ["300", "2", "30", "50", "+20 (+20 to +20)", "20", "29", "+8 (+8 to +8)"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_learning_curves_are_resumed(tmp_path, curves):
    out = tmp_path / "curves.json"
    curves.main(["made up"], seeds=1, share=1.0, out=out)
    curves.main(["made up"], seeds=2, share=1.0, out=out)
    assert curves.made == [(correction, seed) for seed in (100, 101) for correction in ("none", "auto")]
    with pytest.raises(SystemExit, match="stored with 300 steps"):
        curves.main(["made up"], seeds=2, share=0.5, out=out)
    curves.main(["made up"], seeds=1, share=0.5, out=out, again=True)
    assert len(curves.made) == 6 and curves.load(out)["made up"]["steps"] == 150


def test_an_interrupted_run_leaves_the_others(tmp_path, curves, monkeypatch):
    run = curves.CASES["made up"][0]

    def interrupted(name, correction, seed, steps):
        if (correction, seed) == ("auto", 101):
            raise KeyboardInterrupt
        return run(name, correction, seed, steps)

    monkeypatch.setitem(curves.CASES, "made up", (interrupted, "", 300, {}))
    with pytest.raises(KeyboardInterrupt):
        curves.main(["made up"], seeds=2, share=1.0, out=tmp_path / "curves.json")
    stored = curves.load(tmp_path / "curves.json")["made up"]
    assert [[run["seed"] for run in stored[c]] for c in ("none", "auto")] == [[100, 101], [100]]


def test_quoted_curves_are_the_stored_ones():
    pytest.importorskip("scipy")
    root = EXAMPLES.parent
    module = load("examples", root / "benchmarks")
    page = (root / "benchmarks/results/examples.md").read_text("utf-8")
    assert module.table(module.load(root / "benchmarks/results/examples.json")) == page
    quoted = (root / "docs/integrations.md").read_text("utf-8").splitlines()
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(module.CASES) and all(row in quoted for row in rows)


def test_mean_returns_are_of_episodes_that_end_in_a_range():
    curves = load("examples", EXAMPLES.parent / "benchmarks")
    episodes = [(10, 1.0), (20, 2.0), (30, 6.0)]
    assert curves.mean_return(episodes, 10, 30) == 4.0
    assert math.isnan(curves.mean_return(episodes, 30, 40))
