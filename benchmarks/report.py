"""Results as a readable page. Everything on it comes from the JSON beside it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from targets import targets

Result = dict[str, Any]

TITLES = {
    "mlp": "Small networks: time of a training step over that of SGD",
    "dqn": "The network of DQN",
    "plain": "Against a plain implementation of the same mathematics",
}


def page(results: dict[str, Result], device: str) -> str:
    """The whole page. ``results`` has one entry a suite."""
    memory = "peak MiB" if device == "cuda" else "state MiB"
    parts = [f"# Benchmarks on {device}", _legend(memory)]
    for name, title in TITLES.items():
        if name in results:
            result = results[name]
            parts += [f"## {title}", source(result), *_targets(name, result, device)]
            parts += _mlp(result, memory) if name == "mlp" else _long(result, memory)
    return "\n\n".join(parts) + "\n"


def _legend(memory: str) -> str:
    what = (
        "the most that tensors took during a step, beyond the model and the data"
        if memory == "peak MiB"
        else "the tensors that the optimizer keeps between steps (not the batches that an oracle keeps)"
    )
    return (
        "A ratio is the median time of a whole training step (two forward passes, backward, optimizer, zero_grad) over "
        "the median of the same step with its baseline from `torch.optim`, both measured in one process, warm and in "
        f"turns. ~ marks a time whose quartiles lie more than a quarter of it apart. **{memory}**: {what}."
    )


def source(result: Result) -> str:
    about = result["machine"]
    gpu = f"{about['gpu']} (CUDA {about['cuda']}), " if "gpu" in about else ""
    quick = "**A quick run: for a first look only.** " if result["quick"] else ""
    threads = result.get("threads", about["threads"])
    load = "" if about["load"] is None else f", load {about['load']:.1f} at the start"
    return (
        f"{quick}{gpu}{about['cpu']}, {about['cores']} cores, {threads} thread{'s' * (threads != 1)}{load}, torch "
        f"{about['torch']}, Python {about['python']}, unstale {about['unstale']}, {about['date']}. "
        f"Run: `{result['command']}` ({result['seconds']:.0f} s for this suite)."
    )


def _targets(name: str, result: Result, device: str) -> list[str]:
    rows = [[t.what, t.wanted, t.measured, "met" if t.met else "**not met**"] for t in targets(name, result, device)]
    said = [table(["target", "wanted", "measured", ""], rows)]
    if "disagreement" in result:
        said.append(f"Both take the same steps: in float64 they part by {result['disagreement']:.0e} of the way in 30.")
    return said


def _mlp(result: Result, memory: str) -> list[str]:
    """A line a cell, a column a correction; what few cells have goes below, in lines of its own."""
    names = ["diagonal", "dense", "window", "oracle"]
    lines, further = [], []
    for cell in result["cells"]:
        where = cell["where"]
        rows = {row["name"]: row for row in cell["rows"]}
        head = [str(where["width"]), f"{where['parameters']:,}", str(where["batch"]), str(where["beta"])]
        baseline = f"{'~' * _is_noisy(rows['SGD'])}{rows['SGD']['ms']:.3f} ({_number(rows['SGD'][_key(memory)])})"
        lines.append([*head, baseline, *(_short(rows[name], memory) for name in names)])
        if len(rows) > len(names) + 1:
            further.append({**cell, "rows": [row for row in cell["rows"] if row["name"] != "SGD"]})
    header = ["width", "n", "batch", "β", f"SGD: ms ({memory})", *(f"{name}: ratio ({memory})" for name in names)]
    parts = [table(header, lines), *_horizons(result), *_unfilled(result)]
    if further:
        parts.append('With bare parameters ("unobserved": `model.parameters()` in place of `model`):')
        parts += _long(dict(cells=further), memory)
    return parts


def _horizons(result: Result) -> list[str]:
    found = sorted(
        {(row["name"], cell["where"]["beta"], row["horizon"]) for cell in result["cells"] for row in cell["rows"]}
    )
    said = [f"{name} {horizon} at β = {beta}" for name, beta, horizon in found if horizon and "," not in name]
    return [f"Batches remembered: {', '.join(said)}."]


def _unfilled(result: Result) -> list[str]:
    if any(_is_unfilled(row) for cell in result["cells"] for row in cell["rows"]):
        return ["† Timed before it had made as many steps as it remembers; its state had its full size already."]
    return []


def _is_unfilled(row: dict[str, Any]) -> bool:
    return "ms" in row and row["warm_steps"] < row["horizon"]


def _short(row: dict[str, Any], memory: str) -> str:
    if "skipped" in row:
        return f"skipped: {row['skipped']}"
    return f"{_ratio(row)} ({_number(row[_key(memory)])})"


def _ratio(row: dict[str, Any]) -> str:
    """The ratio with its marks: ~ for noise, † for a window that was not full."""
    return f"{'~' * _is_noisy(row)}{row['ratio']:.2f}{'†' * _is_unfilled(row)}"


def _is_noisy(row: dict[str, Any]) -> bool:
    low, high = row["quartiles_ms"]
    return high - low > 0.25 * row["ms"]


def _key(memory: str) -> str:
    return memory.replace(" ", "_").lower()


def _long(result: Result, memory: str) -> list[str]:
    """A line a candidate."""
    faster = any("times_faster" in row for cell in result["cells"] for row in cell["rows"])
    growth = any("growth_mib" in row for cell in result["cells"] for row in cell["rows"])
    lines = []
    for cell in result["cells"]:
        for row in cell["rows"]:
            line = [_where(cell["where"]), row["name"]]
            if "skipped" in row:
                line += [f"skipped: {row['skipped']}", "", ""]
                line += [""] * (faster + growth)
            else:
                low, high = row["quartiles_ms"]
                line += [f"{row['ms']:.3f} ({low:.3f} to {high:.3f})"]
                line += [f"{_ratio(row)} × {row['baseline']}"]
                line += [f"{row['times_faster']:.1f}"] if faster else []
                line += [_number(row[_key(memory)])]
                line += ["?" if row["growth_mib"] is None else _number(row["growth_mib"])] if growth else []
            lines.append(line)
    header = ["", "candidate", "ms a step (quartiles)", "ratio"]
    header += ["times faster than plain"] if faster else []
    header += [memory] + (["process growth in a step, MiB"] if growth else [])
    return [table(header, lines), *_unfilled(result)]


def _where(where: dict[str, Any]) -> str:
    words = dict(width="width {}", parameters="n = {:,}", batch="batch {}", beta="β = {}", precision="{}")
    return ", ".join(words[key].format(what) for key, what in where.items())


def _number(mib: float) -> str:
    return f"{mib:.0f}" if mib >= 100 else f"{mib:.3g}"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
