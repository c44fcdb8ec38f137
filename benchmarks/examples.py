"""Learning curves of the single-file examples and of Stable-Baselines3, with and without correction.

    PYTHONPATH=src python benchmarks/examples.py                            # what is not stored yet
    PYTHONPATH=src python benchmarks/examples.py --case ppo dqn --again     # these anew; others keep their results
    PYTHONPATH=src python benchmarks/examples.py --seeds 1 --share 0.1 --out /tmp/curves.json    # a quick look

All cases with 5 seeds take about half an hour on one core. It needs gymnasium, matplotlib and scipy, and for cases of
Stable-Baselines3 that package. ``results/examples.json`` has all episodes; every run is stored when it ends, and a run
that is stored is not made again. The table and the picture beside it are made from it.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import importlib.util
import io
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unstale

ROOT = Path(__file__).parent.parent
CORRECTIONS = ("none", "auto")
FIRST_SEED = 100  # settings of the programs were chosen with seed 0
Curve = list[tuple[int, float]]


def run_example(name: str, correction: str, seed: int, steps: int, **settings: Any) -> Curve:
    """The episodes of an example, without what it prints."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with contextlib.redirect_stdout(io.StringIO()):
        curve: Curve = example.main(correction=correction, seed=seed, steps=steps, **settings)
    return curve


def run_sb3(name: str, correction: str, seed: int, steps: int, env_id: str, **settings: Any) -> Curve:
    """The episodes of an algorithm of Stable-Baselines3."""
    import gymnasium as gym
    from stable_baselines3.common.monitor import Monitor

    import unstale.sb3

    env: Any = Monitor(gym.make(env_id))
    algorithm = getattr(unstale.sb3, f"Corrected{name}")
    options = {"correction_kwargs": {"correction": correction}, "seed": seed, "device": "cpu"}
    algorithm("MlpPolicy", env, **options, **copy.deepcopy(settings)).learn(steps)  # it adds to policy_kwargs
    return list(zip(np.cumsum(env.get_episode_lengths()).tolist(), env.get_episode_rewards(), strict=True))


SMALL = {"policy_kwargs": {"net_arch": [64, 64]}, "batch_size": 64}
# How to run a case, its steps, and its settings where they are not the defaults.
CASES: dict[str, tuple[Callable[..., Curve], str, int, dict[str, Any]]] = {
    "ppo": (run_example, "ppo", 20_000, {}),
    "pqn": (run_example, "pqn", 20_000, {}),
    "dqn": (run_example, "dqn", 8_000, {}),
    "sac": (run_example, "sac", 3_000, {}),
    "stream_td_lambda": (run_example, "stream_td_lambda", 5_000, {}),
    "SB3 PPO": (run_sb3, "PPO", 10_000, {"env_id": "CartPole-v1"}),
    "SB3 A2C": (run_sb3, "A2C", 8_000, {"env_id": "CartPole-v1"}),
    "SB3 DQN": (
        run_sb3,
        "DQN",
        8_000,
        dict(
            env_id="CartPole-v1",
            learning_rate=1e-3,
            batch_size=64,
            learning_starts=500,
            train_freq=2,
            target_update_interval=250,
            exploration_fraction=0.3,
            buffer_size=10_000,
        ),
    ),
    "SB3 SAC": (run_sb3, "SAC", 3_000, {"env_id": "Pendulum-v1", "learning_rate": 1e-3, **SMALL}),
    "SB3 TD3": (run_sb3, "TD3", 3_000, {"env_id": "Pendulum-v1", **SMALL}),
}


def mean_return(curve: Curve, first: float, last: float) -> float:
    """The mean return of the episodes that end after step ``first`` and until step ``last``; NaN if there are none."""
    scores = [score for step, score in curve if first < step <= last]
    return float(np.mean(scores)) if scores else float("nan")


def interval(differences: list[float]) -> str:
    """The mean and its 95 % confidence interval (Student's t)."""
    from scipy import stats

    mean, count = float(np.mean(differences)), len(differences)
    if count < 2:
        return f"{mean:+.0f}"
    half = float(stats.t.ppf(0.975, count - 1) * np.std(differences, ddof=1) / np.sqrt(count))
    return f"{mean:+.0f} ({mean - half:+.0f} to {mean + half:+.0f})"


def table(results: dict[str, Any]) -> str:
    """The results as a page."""
    head = (
        "| case | steps | seeds | without, last fifth | with, last fifth | difference | without, all | with, all "
        "| difference | time |"
    )
    rows = [head, "| --- " * 10 + "|"]
    for case, result in results.items():
        steps, cells = result["steps"], []
        for first in (0.8 * steps, 0):
            means = [[mean_return(run["curve"], first, steps) for run in result[c]] for c in CORRECTIONS]
            cells += [f"{np.mean(each):.0f}" for each in means]
            cells.append(interval([b - a for a, b in zip(*means, strict=True)]))
        seconds = [float(np.median([run["seconds"] for run in result[c]])) for c in CORRECTIONS]
        seeds = len(result["none"])
        time_ratio = f"{seconds[1] / seconds[0]:.1f}"
        rows.append(f"| {case} | {steps:,} | {seeds} | " + " | ".join(cells) + f" | {time_ratio} |")
    dates, versions = (", ".join(sorted({result[key] for result in results.values()})) for key in ("date", "torch"))
    return (
        "# Learning curves of the examples\n\n"
        "Mean return of the episodes that end in the last fifth of training, and in all of it: mean over seeds. "
        '"Without" is `correction="none"`: Adam, for SB3\'s A2C RMSprop. "With" is the default, `"auto"`, at the same '
        "learning rate. Differences are between runs of the same seed, with a 95 % confidence interval (Student's t). "
        "Time is that of a whole run relative to the run without correction; the machine was busy with other work.\n\n"
        + "\n".join(rows)
        + f"\n\nRun on {dates} with torch {versions}. Seeds count from {FIRST_SEED}; settings were chosen with seed 0. "
        "Command: `PYTHONPATH=src python benchmarks/examples.py`.\n"
    )


def draw(results: dict[str, Any], path: Path) -> None:
    """Mean return against steps, one panel per case; bands are the range of the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(5, len(results))
    rows = -(-len(results) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(3.2 * columns, 2.6 * rows), squeeze=False, layout="tight")
    for axis in axes.flat[len(results) :]:
        axis.axis("off")
    for axis, (case, result) in zip(axes.flat, results.items(), strict=False):
        steps = result["steps"]
        marks = np.linspace(0.1, 1.0, 10) * steps
        for correction, color in zip(CORRECTIONS, ("tab:gray", "tab:blue"), strict=True):
            curves = [[mean_return(run["curve"], m - 0.1 * steps, m) for m in marks] for run in result[correction]]
            means = np.ma.masked_invalid(curves)  # no episode of a seed may have ended in a tenth
            axis.plot(marks, means.mean(0), color=color, label="without" if correction == "none" else "with")
            axis.fill_between(marks, means.min(0), means.max(0), color=color, alpha=0.15, linewidth=0)
        axis.set_title(case, fontsize=10)
        axis.tick_params(labelsize=7)
        axis.locator_params(axis="x", nbins=4)
    axes.flat[0].legend(fontsize=8)
    figure.supxlabel("steps", fontsize=9)
    figure.supylabel("return", fontsize=9)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def load(path: Path) -> dict[str, Any]:
    """The stored results of every case; none if there is no file."""
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def store(results: dict[str, Any], path: Path) -> dict[str, Any]:
    """Replace the file in one step, so that it is never half written; returns the cases in their order."""
    ordered = {case: results[case] for case in CASES if case in results}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(ordered), "utf-8")
    unfinished.replace(path)
    return ordered


def main(cases: list[str], seeds: int, share: float, out: Path, again: bool = False) -> None:
    """Run what is not stored, and write the table and the picture of all complete cases."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", unstale.ConstantTargetWarning)
    results = load(out)
    for case in cases:
        run, name, full_steps, settings = CASES[case]
        steps = int(share * full_steps)
        if again or case not in results:
            results[case] = {"steps": steps, **{correction: [] for correction in CORRECTIONS}}
        if results[case]["steps"] != steps:
            raise SystemExit(f"{case} is stored with {results[case]['steps']} steps: use --again, or another --out.")
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            for correction in CORRECTIONS:
                runs = results[case][correction]
                if any(stored["seed"] == seed for stored in runs):
                    continue
                start = time.perf_counter()
                curve = run(name, correction, seed, steps, **settings)
                seconds = time.perf_counter() - start
                runs.append({"seed": seed, "curve": curve, "seconds": seconds})
                results[case].update(date=datetime.date.today().isoformat(), torch=torch.__version__)
                store(results, out)
                mean = mean_return(curve, 0, steps)
                print(f"{case} seed {seed} {correction}: {mean:.1f} in {seconds:.0f} s", flush=True)
    complete = {case: r for case, r in store(results, out).items() if len(r["none"]) == len(r["auto"]) > 0}
    out.with_suffix(".md").write_text(table(complete), "utf-8")
    draw(complete, out.with_suffix(".png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=list(CASES), dest="cases")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the steps of each case")
    parser.add_argument("--again", action="store_true", help="discard what is stored of these cases")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "examples.json")
    main(**vars(parser.parse_args()))
