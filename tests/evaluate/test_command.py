"""The command: bad input is one line and exit code 2; good input leaves networks and a report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation_problems import Walk, log_walk, mlp_weights, register, save_sb3

import unstale
from unstale.__main__ import main
from unstale.evaluation import load_values
from unstale.evaluation.spaces import Discrete

register()
TRANSITIONS = len(log_walk(0.5, 20, 0)["rewards"])
TINY = ["--gamma", "0.9", "--episodes", "10", "--steps", "30", "--batch", "8", "--networks", "2", "--width", "4"]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = main(["evaluate", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def ppo(folder: Path, inputs: int, actions: int | None) -> str:
    weights = mlp_weights({"mlp_extractor.policy_net.0": (inputs, 4), "action_net": (4, actions or 1)})
    weights |= {} if actions else {"log_std": torch.zeros(1)}
    return str(save_sb3(folder / f"ppo_{inputs}_{actions}.zip", weights, inputs, actions))


def dqn(folder: Path) -> str:
    weights = mlp_weights({"q_net.q_net.0": (2, 4), "q_net.q_net.2": (4, 2)})
    return str(save_sb3(folder / "dqn.zip", weights, 2, 2))


def truncated_zip(folder: Path) -> str:
    path = Path(ppo(folder, 2, 2))
    path.write_bytes(path.read_bytes()[:-200])
    return str(path)


def empty_file(folder: Path, name: str) -> str:
    (folder / name).touch()
    return str(folder / name)


def data_file(folder: Path, **changes: np.ndarray | None) -> str:
    columns = {name: x for name, x in (log_walk(0.5, 20, 0) | changes).items() if x is not None}
    np.savez(folder / "data.npz", **columns)
    return str(folder / "data.npz")


def numbered_file(folder: Path, first: int) -> str:
    states = np.arange(TRANSITIONS) + first
    return data_file(folder, observations=states, next_observations=states)


def truncated_npz(folder: Path) -> str:
    path = Path(data_file(folder))
    path.write_bytes(path.read_bytes()[:-300])
    return str(path)


def pickled(folder: Path) -> str:
    torch.save(torch.nn.Linear(2, 2), folder / "policy.pt")
    return str(folder / "policy.pt")


def junk(folder: Path, name: str) -> str:
    (folder / name).write_bytes(b"no such format" * 20)
    return str(folder / name)


def other_zip(folder: Path) -> str:
    with zipfile.ZipFile(folder / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    return str(folder / "other.zip")


def nothing(observation: np.ndarray) -> None:
    """A policy without a return statement."""


def words(observation: np.ndarray) -> str:
    return "left"


def nan_rewards() -> np.ndarray:
    rewards = log_walk(0.5, 20, 0)["rewards"]
    rewards[7] = np.nan
    return rewards


BAD = {
    "policy of another environment": (lambda f: ("test/Walk-v0", ppo(f, 3, 2)), "trained in another environment"),
    "wrong action space": (lambda f: ("test/Walk-v0", ppo(f, 2, None)), "the action space is Discrete(2)"),
    "too many actions": (lambda f: ("test/Walk-v0", ppo(f, 2, 3)), "the action space is Discrete(2)"),
    "action out of bounds": (lambda f: ("test/Slide-v0", "operator:neg"), "outside the bounds|actions of shape"),
    "NaN rewards": (lambda f: ("test/NaN-v0", "random"), "the reward nan"),
    "endless episode": (lambda f: ("test/Endless-v0", "random", "--max-episode-steps", "50"), "--time-limit"),
    "empty zip": (lambda f: ("test/Walk-v0", empty_file(f, "a.zip")), "is empty"),
    "empty data": (lambda f: (empty_file(f, "a.npz"), "random"), "is empty"),
    "truncated zip": (lambda f: ("test/Walk-v0", truncated_zip(f)), "truncated"),
    "truncated data": (lambda f: (truncated_npz(f), "random"), "truncated"),
    "pickle": (lambda f: ("test/Walk-v0", pickled(f)), "--trust-pickle"),
    "no such environment": (lambda f: ("NoSuch-v0", "random"), "cannot be made"),
    "no such file": (lambda f: ("missing.npz", "random"), "no file"),
    "no such policy": (lambda f: ("test/Walk-v0", "nonsense"), "is not a policy"),
    "no such module": (lambda f: ("test/Walk-v0", "no_such_module:f"), "cannot be imported"),
    "NaN rewards in data": (lambda f: (data_file(f, rewards=nan_rewards()), "random"), "not finite"),
    "missing column": (lambda f: (data_file(f, rewards=None), "random"), "no column rewards"),
    "rows do not match": (lambda f: (data_file(f, rewards=np.ones(3)), "random"), "rows"),
    "text in data": (lambda f: (data_file(f, rewards=np.full(TRANSITIONS, "a")), "random"), "real numbers"),
    "flags in data": (lambda f: (data_file(f, terminated=np.full(TRANSITIONS, np.nan)), "random"), "the entry nan"),
    "states below 0": (lambda f: (numbered_file(f, -1), "logged"), "numbered from 0"),
    "other observations": (lambda f: (numbered_file(f, 0), "random", "--env", "test/Walk-v0"), "are of shape (2,)"),
    "samples of a DQN": (lambda f: ("test/Walk-v0", dqn(f), "--stochastic"), "leave out --stochastic"),
    "correction": (lambda f: ("test/Walk-v0", "random", "--correction", "all"), "correction must be one of none"),
    "seed": (lambda f: ("test/Walk-v0", "random", "--seed", "-1"), "seed must be at least 0"),
    "few episodes": (lambda f: ("test/Walk-v0", "random", "--episodes", "3"), "at least 4"),
    "junk instead of data": (lambda f: (junk(f, "a.npz"), "random"), "not a file of numpy.savez"),
    "junk instead of a zip": (lambda f: ("test/Walk-v0", junk(f, "a.zip")), "not a model of Stable-Baselines3"),
    "junk instead of an export": (lambda f: ("test/Walk-v0", junk(f, "a.pt2")), "not a file of torch.export"),
    "another zip": (lambda f: ("test/Walk-v0", other_zip(f)), "not a model of Stable-Baselines3"),
    "a policy that returns nothing": (lambda f: ("test/Walk-v0", f"{__name__}:nothing"), "one whole number"),
    "a policy that returns words": (lambda f: ("test/Walk-v0", f"{__name__}:words"), "one whole number"),
    "a vector of nothing": (lambda f: ("test/Slide-v0", f"{__name__}:nothing"), "actions of shape"),
    "gamma": (lambda f: ("test/Walk-v0", "random", "--gamma", "1.5"), "gamma must be in [0, 1]"),
    "longest episode": (lambda f: ("test/Walk-v0", "random", "--max-episode-steps", "0"), "must be at least 1, got 0"),
    "environment twice": (lambda f: ("test/Walk-v0", "random", "--env", "test/Walk-v0"), "--env is for logged"),
    "endless episode beside data": (
        lambda f: (data_file(f), "random", "--env", "test/Endless-v0", "--max-episode-steps", "50"),
        "--time-limit",
    ),
    "logged policy of an environment": (lambda f: ("test/Walk-v0", "logged"), "logged transitions"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(name, tmp_path, capsys, monkeypatch):
    """Before anything is trained."""
    monkeypatch.setattr("unstale.evaluation.pipeline.train", lambda *_, **__: pytest.fail("trained"))
    make, expected = BAD[name]
    arguments = make(tmp_path)
    status, out, err = run(capsys, *arguments[:2], *TINY, *arguments[2:], "--out", str(tmp_path / "out"))
    assert status == 2
    lines = [line for line in err.splitlines() if line.startswith("unstale evaluate: ")]
    assert len(lines) == 1 and "Traceback" not in err and not out
    assert any(part in lines[0] for part in expected.split("|")), lines[0]
    assert not (tmp_path / "out").exists()


ARGUMENTS = {
    "no policy": (["CartPole-v1"], "the following arguments are required: policy"),
    "a word for a number": (["CartPole-v1", "random", "--gamma", "much"], "invalid float value: 'much'"),
    "a fraction of an episode": (["CartPole-v1", "random", "--episodes", "2.5"], "invalid int value: '2.5'"),
    "no such mode": (["CartPole-v1", "random", "--mode", "fast"], "invalid choice: 'fast'"),
    "no such option": (["CartPole-v1", "random", "--fast"], "unrecognized arguments: --fast"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_bad_arguments_are_one_line(name, capsys):
    arguments, expected = ARGUMENTS[name]
    with pytest.raises(SystemExit) as exit:
        main(["evaluate", *arguments])
    out, err = capsys.readouterr()
    assert exit.value.code == 2 and not out and err.count("\n") == 1
    assert err.startswith("unstale evaluate: ") and expected in err
    assert err.endswith("See unstale evaluate --help\n")


@pytest.mark.parametrize("place", ["file", "file/folder"])
def test_the_folder_is_checked_before_anything_is_run(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("unstale.evaluation.pipeline.run", lambda *_, **__: pytest.fail("run"))
    (tmp_path / "file").touch()
    status, _, err = run(capsys, "test/Walk-v0", "random", *TINY, "--out", str(tmp_path / place))
    assert status == 2 and err.startswith("unstale evaluate: ") and err.count("\n") == 1
    assert f"results cannot be written to the folder {tmp_path / place}" in err


def test_a_folder_with_other_files_survives_an_error(tmp_path, capsys):
    (tmp_path / "notes").touch()
    assert run(capsys, "NoSuch-v0", "random", *TINY, "--out", str(tmp_path))[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_files(tmp_path, capsys):
    status, out, err = run(capsys, "test/Walk-v0", "random", *TINY, "--out", str(tmp_path))
    assert status == 0 and "training" in err and "30/30" in err
    assert "value of the start states" in out and "Monte Carlo" in out and "believe it" in out
    description = json.loads((tmp_path / "value.json").read_text())
    assert description["value"]["low"] <= description["value"]["value"] <= description["value"]["high"]
    page = (tmp_path / "report.html").read_text()
    for part in ("Learning curves", "Drift and agreement", "Predicted and realised", "Values of states"):
        assert part in page
    assert "<script" not in page and "http" not in page and "nan" not in page.lower().replace("finance", "")


def test_numbers_of_the_axis_are_not_cut():
    """Also in the larger letters of narrow screens, whose digits are about 0.6 em wide."""
    from unstale.evaluation.svg import WIDTH, Chart

    page = Chart("steps", "value", "", (0, 2000), (0, 1)).svg()
    found = re.findall(r'<text x="([\d.]+)" y="\d+" text-anchor="middle">([\d,]+)<', page)
    assert [text for _, text in found] == ["0", "500", "1,000", "1,500", "2,000"]
    assert all(float(x) + 15 * 0.6 * len(text) / 2 <= WIDTH for x, text in found)


def test_saved_networks_have_the_same_values(tmp_path):
    options = dict(gamma=0.9, episodes=10, steps=30, batch=8, networks=2, width=4)
    found = unstale.evaluate("test/Walk-v0", "random", out=tmp_path, **options)
    inputs = torch.tensor([[-0.5, 1.0], [0.5, 1.0]], dtype=torch.float32)
    with torch.no_grad():
        loaded = torch.stack([network(inputs) for network in load_values(tmp_path)]).mean(0).squeeze(-1)
    torch.testing.assert_close(loaded, found.values(inputs), rtol=0, atol=0)
    assert loaded[0] != loaded[1]


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".h5"])
def test_formats(tmp_path, suffix):
    columns, path = log_walk(0.5, 20, 0), tmp_path / f"data{suffix}"
    if suffix == ".npz":
        np.savez(path, **columns)
    elif suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({name: column.tolist() for name, column in columns.items()}), path)
    else:
        with pytest.importorskip("h5py").File(path, "w") as file:
            file.update(columns)
    from unstale.evaluation.files import read

    data = read(path)
    for name, column in columns.items():
        np.testing.assert_array_equal(getattr(data, name), column)


def test_next_observations_can_be_left_out():
    from unstale.evaluation.files import read

    columns = log_walk(0.5, 20, 0)
    ends = np.flatnonzero(columns["terminated"])
    cut = ends[ends > ends[0] + 2][0]  # of an episode of several rows, in place of its termination
    columns["terminated"][cut], columns["truncated"][cut] = False, True
    whole = read(columns)
    short = read({name: x for name, x in columns.items() if name != "next_observations"})
    kept = np.arange(len(whole)) != cut
    assert len(short) == len(whole) - 1 and short.truncated[cut - 1]
    inner = ~short.terminated
    np.testing.assert_array_equal(short.next_observations[inner], whole.next_observations[kept][inner])
    np.testing.assert_array_equal(short.rewards, whole.rewards[kept])


@pytest.mark.filterwarnings("ignore::UserWarning")  # of minari, that there is no env_spec
def test_minari(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    columns = log_walk(0.5, 12, 0)
    ends = np.flatnonzero(columns["terminated"])
    buffers = []
    for start, end in zip([0, *(ends[:-1] + 1)], ends, strict=True):
        rows = slice(start, end + 1)
        buffers.append(
            minari.data_collector.EpisodeBuffer(
                observations=np.concatenate(
                    [columns["observations"][rows], columns["next_observations"][end : end + 1]]
                ),
                actions=columns["actions"][rows],
                rewards=columns["rewards"][rows],
                terminations=columns["terminated"][rows],
                truncations=columns["truncated"][rows],
            )
        )
    spaces = dict(observation_space=Walk().observation_space, action_space=Walk().action_space)
    minari.create_dataset_from_buffers("walk/test-v0", buffer=buffers, **spaces)
    from unstale.evaluation.files import read

    data = read("minari:walk/test-v0")
    for name in columns.keys() - {"truncated"}:
        np.testing.assert_array_equal(getattr(data, name), columns[name])
    assert data.episodes == 12 and data.space == Discrete(2)


def test_bare_library_needs_torch_alone():
    """Without the extra the library works, and says what to install."""
    program = """
import sys
for name in ("gymnasium", "rich", "safetensors", "pyarrow", "h5py", "minari", "stable_baselines3"):
    sys.modules[name] = None
import unstale
from unstale.__main__ import main
main([])
try:
    unstale.evaluate("CartPole-v1", "random")
except ImportError as error:
    print(error)
try:
    unstale.sb3
except ImportError as error:
    print(error)
sys.exit(main(["evaluate", "CartPole-v1", "random"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert 'gymnasium, which is not installed; run: pip install ".[evaluate]"' in done.stdout
    assert 'pip install ".[sb3]"' in done.stdout
    assert 'pip install ".[evaluate]"' in done.stderr and "Traceback" not in done.stderr


def test_documentation_runs(monkeypatch):
    torch.set_default_dtype(torch.float32)
    text = (Path(__file__).parents[2] / "docs/evaluate.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert names["values"].shape == (1, 1)


def test_zip_that_is_no_model(tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme", "nothing")
    status, _, err = run(capsys, "test/Walk-v0", str(tmp_path / "other.zip"), *TINY)
    assert status == 2 and "not a model of Stable-Baselines3" in err
