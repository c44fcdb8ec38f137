"""Performance targets of the library, compared with the measurements."""

from __future__ import annotations

from typing import Any, NamedTuple

MAX_ADAM_RATIO = 2.5


class Target(NamedTuple):
    """One target and its measurement."""

    what: str
    wanted: str
    measured: str
    met: bool


def targets(suite: str, result: dict[str, Any], device: str) -> list[Target]:
    """Return the targets that apply to the results of a suite."""
    cells = result["cells"]
    if suite == "mlp":
        ratios = [row["ratio"] for cell in cells for row in cell["rows"] if row["name"] == "diagonal"]
        return [
            Target(
                "diagonal / SGD, in every cell",
                "≤ 1.5",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                max(ratios) <= 1.5,
            )
        ]
    if suite == "adam":
        return _adam_on_cuda(cells) if device == "cuda" else _adam_on_cpu(cells)
    if suite == "plain":
        return [Target(t["what"], f"≥ {t['at_least']:g}", f"{t['measured']:.1f}", t["met"]) for t in result["targets"]]
    found = []
    rows = {row["name"]: row for cell in cells if cell["where"]["precision"] == "float32" for row in cell["rows"]}
    found.append(_at_most("diagonal / SGD", rows["diagonal"], 1.5))
    if device == "cuda":
        for horizon, most in ((20, 2.5), (46, 4.0)):
            row = rows.get(f"window, H = {horizon}")
            if row is not None:
                found.append(_at_most(f"window / SGD, H = {horizon}, float32", row, most))
                peak = row["peak_mib"] / 1024
                found.append(
                    Target(f"peak memory of the window, H = {horizon}", "< 4 GiB", f"{peak:.2f} GiB", peak < 4)
                )
    return found


def _adam_on_cpu(cells: list[dict[str, Any]]) -> list[Target]:
    rows = {
        f"{cell['where']['network']}, batch {cell['where']['batch']}": row
        for cell in cells
        for row in cell["rows"]
        if row["name"] == "default"
    }
    ratios = {where: row["ratio"] for where, row in rows.items()}
    worst = max(ratios, key=lambda where: ratios[where])
    measured = f"{min(ratios.values()):.2f} to {ratios[worst]:.2f} ({worst})"
    return [Target("default / Adam, in every cell", f"≤ {MAX_ADAM_RATIO:g}", measured, ratios[worst] <= MAX_ADAM_RATIO)]


def _adam_on_cuda(cells: list[dict[str, Any]]) -> list[Target]:
    found = []
    for cell in cells:
        for row in cell["rows"]:
            if row["name"] == "1,024 slots":
                where = f"1,024 slots, {cell['where']['precision']}"
                found.append(_at_most(f"{where}, ratio to Adam", row, MAX_ADAM_RATIO))
                peak = row["peak_mib"] / 1024
                found.append(Target(f"{where}, peak memory", "< 4 GiB", f"{peak:.2f} GiB", peak < 4))
    return found


def _at_most(what: str, row: dict[str, Any], most: float) -> Target:
    return Target(what, f"≤ {most:g}", f"{row['ratio']:.2f}", row["ratio"] <= most)
