"""Renders results as Markdown, from the JSON alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from targets import targets

Result = dict[str, Any]

TITLES = {
    "adam": "CorrectedAdam: time of a training step relative to Adam",
    "mlp": "Small networks: time of a training step relative to SGD",
    "dqn": "DQN's network",
    "plain": "Compared with a straightforward implementation",
}


def page(results: dict[str, Result], device: str) -> str:
    """Return the page; ``results`` has one entry per suite."""
    memory = "peak MiB" if device == "cuda" else "state MiB"
    parts = [f"# Benchmarks on {device}", _legend(memory)]
    for name, title in TITLES.items():
        if name in results:
            result = results[name]
            parts += [f"## {title}", source(result), *_targets(name, result, device)]
            parts += LAYOUTS.get(name, _long)(result, memory)
    return "\n\n".join(parts) + "\n"


def _legend(memory: str) -> str:
    meaning = (
        "peak memory of tensors during a step, without the model and the data"
        if memory == "peak MiB"
        else "size of the optimizer's state (without the batches that an oracle keeps)"
    )
    return (
        "A ratio is the median time of a whole training step (two forward passes, backward, optimizer, zero_grad) "
        "divided by that of its baseline from `torch.optim`, measured alternately in one process after a warm-up. ~ "
        f"marks an interquartile range of more than 25 % of the median. **{memory}**: {meaning}."
    )


def source(result: Result) -> str:
    """Return machine, versions and command of a result."""
    about = result["machine"]
    gpu = f"{about['gpu']} (CUDA {about['cuda']}), " if "gpu" in about else ""
    quick = "**Quick run, not representative.** " if result["quick"] else ""
    threads = result.get("threads", about["threads"])
    load = "" if about["load"] is None else f", load {about['load']:.1f} at start"
    return (
        f"{quick}{gpu}{about['cpu']}, {about['cores']} cores, {threads} thread{'s' * (threads != 1)}{load}, torch "
        f"{about['torch']}, Python {about['python']}, unstale {about['unstale']}, {about['date']}. "
        f"Run: `{result['command']}` ({result['seconds']:.0f} s for this suite)."
    )


def _targets(name: str, result: Result, device: str) -> list[str]:
    rows = [[t.what, t.wanted, t.measured, "met" if t.met else "**not met**"] for t in targets(name, result, device)]
    parts = [table(["target", "wanted", "measured", ""], rows)]
    if "disagreement" in result:
        difference = f"{result['disagreement']:.0e}"
        parts.append(f"Both take the same steps: the relative difference after 30 steps in float64 is {difference}.")
    return parts


def _mlp(result: Result, memory: str) -> list[str]:
    """Return a table with one row per cell and one column per correction."""
    names = ["diagonal", "dense", "window", "oracle"]
    lines = []
    for cell in result["cells"]:
        where = cell["where"]
        rows = {row["name"]: row for row in cell["rows"]}
        head = [str(where["width"]), f"{where['parameters']:,}", str(where["batch"]), str(where["beta"])]
        baseline = f"{'~' * _is_noisy(rows['SGD'])}{rows['SGD']['ms']:.3f} ({_number(rows['SGD'][_key(memory)])})"
        lines.append([*head, baseline, *(_short(rows[name], memory) for name in names)])
    header = ["width", "n", "batch", "β", f"SGD: ms ({memory})", *(f"{name}: ratio ({memory})" for name in names)]
    return [table(header, lines), *_horizons(result), *_unfilled(result)]


def _adam(result: Result, memory: str) -> list[str]:
    """Return a table of the default settings, with what they chose, and a table of all candidates."""
    default, every = [], []
    names = [row["name"] for row in result["cells"][0]["rows"][1:]]
    for cell in result["cells"]:
        rows = {row["name"]: row for row in cell["rows"]}
        adam, chosen = rows["Adam"], rows["default"]
        baseline = f"{'~' * _is_noisy(adam)}{adam['ms']:.3f}"
        where = [_where(cell["where"])]
        default.append([*where, _plan(chosen), baseline, _ratio(chosen), _number(chosen[_key(memory)])])
        every.append([*where, f"{baseline} ({_number(adam[_key(memory)])})", *(_short(rows[n], memory) for n in names)])
    return [
        "**Default settings.** `unstale.CorrectedAdam(model, lr)` relative to `torch.optim.Adam(model.parameters(), "
        'lr)`, and what `correction="auto"` chose: correction, slots, and the largest `β`, up to which it grows.',
        table(["", "chosen", "Adam, ms", "ratio", memory], default),
        '**Other settings.** *none* has the correction switched off; *slots* are of `correction="reservoir"`. Turns '
        f"have {result['cells'][0]['rows'][0]['steps_per_turn']} steps, because samples enter only every few steps.",
        table(["", f"Adam: ms ({memory})", *(f"{name}: ratio ({memory})" for name in names)], every),
        *_unfilled(result),
    ]


def _plan(row: dict[str, Any]) -> str:
    plan = row["plan"]
    slots = "" if plan["slots"] is None else f", {plan['slots']:,} slots"
    return f"{plan['correction']}{slots}, β ≤ {plan['beta']:.4g}"


def _horizons(result: Result) -> list[str]:
    found = sorted(
        {(row["name"], cell["where"]["beta"], row["horizon"]) for cell in result["cells"] for row in cell["rows"]}
    )
    texts = [f"{name} {horizon} at β = {beta}" for name, beta, horizon in found if horizon and "," not in name]
    return [f"Batches remembered: {', '.join(texts)}."]


def _unfilled(result: Result) -> list[str]:
    rows = [row for cell in result["cells"] for row in cell["rows"] if _is_unfilled(row)]
    if not rows:
        return []
    shares = [f"{row['filled']:.0%}" for row in rows if "filled" in row]
    if shares:
        return [f"† Timed before every slot had a sample (shares that had one: {', '.join(shares)})."]
    return ["† Timed before as many steps as its horizon were made; its state already had its full size."]


def _is_unfilled(row: dict[str, Any]) -> bool:
    return "ms" in row and (row["warm_steps"] < row["horizon"] or row.get("filled", 1) < 1)


def _short(row: dict[str, Any], memory: str) -> str:
    if "skipped" in row:
        return f"skipped: {row['skipped']}"
    return f"{_ratio(row)} ({_number(row[_key(memory)])})"


def _ratio(row: dict[str, Any]) -> str:
    """Return the ratio with its marks: ~ for noise, † for a window or reservoir that was not full."""
    return f"{'~' * _is_noisy(row)}{row['ratio']:.2f}{'†' * _is_unfilled(row)}"


def _is_noisy(row: dict[str, Any]) -> bool:
    low, high = row["quartiles_ms"]
    return high - low > 0.25 * row["ms"]


def _key(memory: str) -> str:
    return memory.replace(" ", "_").lower()


def _long(result: Result, memory: str) -> list[str]:
    """Return a table with one row per candidate."""
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
    header = ["", "candidate", "ms per step (quartiles)", "ratio"]
    header += ["speed-up vs plain"] if faster else []
    header += [memory] + (["process growth per step, MiB"] if growth else [])
    return [table(header, lines), *_unfilled(result)]


def _where(where: dict[str, Any]) -> str:
    formats = dict(
        network="{}", width="width {}", parameters="n = {:,}", batch="batch {}", beta="β = {}", precision="{}"
    )
    return ", ".join(formats[key].format(value) for key, value in where.items())


def _number(mib: float) -> str:
    return f"{mib:.0f}" if mib >= 100 else f"{mib:.3g}"


LAYOUTS = {"adam": _adam, "mlp": _mlp}


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
