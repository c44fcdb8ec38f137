"""Progress of long computations: a live bar for sweeps, and a status line for the rest."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class ProgressBar:
    """Advances by the cost of steps, not by the number of runs: a wide network takes 1,000 times as long as a small
    one."""

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
        self._task = self._progress.add_task("", total=cost, runs=self._format_count(), speed="")
        self._log = _PeriodicLog(console)

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def update(self, runs: int, steps: int, cost: float) -> None:
        """Adds finished runs, and steps with their cost."""
        self._done += runs
        self._steps += steps
        speed = self._steps / max(1e-9, time.monotonic() - self._started)
        self._progress.update(self._task, advance=cost, runs=self._format_count(), speed=f"{speed:,.0f} steps/s")
        percentage = self._progress.tasks[0].percentage
        self._log.update(f"{self._format_count()}, {percentage:.0f} %, {speed:,.0f} steps/s")

    def _format_count(self) -> str:
        return f"{self._done:,} of {self._runs:,} runs"


class StatusLine:
    """One line of text that is updated in place."""

    def __init__(self, console: Console) -> None:
        self._status = console.status("")
        self._console = console
        self._log = _PeriodicLog(console)

    def __enter__(self) -> StatusLine:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._status.stop()

    def update(self, text: str) -> None:
        self._status.update(text)
        self._log.update(text)


class _PeriodicLog:
    """Prints a line every half minute if the output is not a terminal, where nothing can be updated in place."""

    INTERVAL = 30  # seconds

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = time.monotonic()

    def update(self, text: str) -> None:
        if not self._console.is_terminal and time.monotonic() - self._printed > self.INTERVAL:
            self._console.print(text, markup=False, soft_wrap=True)
            self._printed = time.monotonic()
