"""A live bar: runs finished, steps a second, time left."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """Moves by what runs cost, not by how many are done: one of a wide network takes a thousand times a small one's."""

    def __init__(self, console: Console, runs: int, cost: float) -> None:
        self._runs = runs
        self._done = self._steps = 0
        self._started = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.fields[runs]}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("", total=cost, runs=self._count(), speed="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def update(self, runs: int, steps: int, cost: float) -> None:
        self._done += runs
        self._steps += steps
        speed = self._steps / max(1e-9, time.monotonic() - self._started)
        self._progress.update(self._task, advance=cost, runs=self._count(), speed=f"{speed:,.0f} steps/s")

    def _count(self) -> str:
        return f"{self._done:,} of {self._runs:,} runs"
