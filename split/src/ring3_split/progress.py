"""How far a long run is: a bar on a terminal, a line now and then elsewhere; both on standard error."""

from __future__ import annotations

import posixpath
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

# Few enough units are read before anyone wonders.
QUIET = 3.0  # seconds
EVERY = 10.0  # seconds between lines


class Progress:
    """Counts up to `total`, used as a context."""

    def __init__(self, what: str, total: int, of: str = "units") -> None:
        """Nothing is shown yet. `of` says what is counted."""
        self._what, self._total, self._of, self._done = what, total, of, 0
        self._start = time.monotonic()
        self._next = self._start + QUIET
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            text = TextColumn("{task.description}")
            columns = (
                text,
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[unit]}"),
            )
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task(self._what, total=self._total, unit="")
            self._bar.start()
        return self

    def advance(self, unit: str) -> None:
        """One more is done: `unit`."""
        self._done += 1
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=1, unit=posixpath.basename(unit))
        elif now >= self._next:
            self._next = now + EVERY
            left = (now - self._start) * (self._total - self._done) / self._done
            print(
                f"{self._what}: {self._done} of {self._total} {self._of}, about {_minutes(left)} left",
                file=sys.stderr,
                flush=True,
            )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
