"""What is seen of long work: a live bar for sweeps, and a line for the rest."""

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


class Line:
    """One line that says how far work is. Where nobody watches, it is written anew every so many seconds."""

    SECONDS = 30

    def __init__(self, console: Console) -> None:
        self._status = console.status("")
        self._console = console
        self._written = -float("inf")

    def __enter__(self) -> Line:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._status.stop()

    def update(self, text: str) -> None:
        if self._console.is_terminal:
            self._status.update(text)
        elif time.monotonic() - self._written > self.SECONDS:
            self._console.print(text, markup=False)
            self._written = time.monotonic()
