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
        self._unwatched = _Unwatched(console)

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
        share = self._progress.tasks[0].percentage
        self._unwatched.update(f"{self._count()}, {share:.0f} %, {speed:,.0f} steps/s")

    def _count(self) -> str:
        return f"{self._done:,} of {self._runs:,} runs"


class Line:
    """One line that says how far work is."""

    def __init__(self, console: Console) -> None:
        self._status = console.status("")
        self._console = console
        self._unwatched = _Unwatched(console)

    def __enter__(self) -> Line:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._status.stop()

    def update(self, text: str) -> None:
        self._status.update(text)
        self._unwatched.update(text)


class _Unwatched:
    """Where output goes to a file nothing can move: a line is written every half minute."""

    SECONDS = 30

    def __init__(self, console: Console) -> None:
        self._console = console
        self._written = time.monotonic()

    def update(self, text: str) -> None:
        if not self._console.is_terminal and time.monotonic() - self._written > self.SECONDS:
            self._console.print(text, markup=False, soft_wrap=True)
            self._written = time.monotonic()
