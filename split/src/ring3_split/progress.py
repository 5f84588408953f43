"""How far a long run is: a bar on a terminal.

Elsewhere, where rich prints nothing before the end, a line now and then.
"""

from __future__ import annotations

import posixpath
import sys
import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

# Few enough units are read before anyone wonders.
QUIET = 3.0  # seconds
EVERY = 10.0  # seconds between lines


class Progress(Bar):
    """Counts up to `total` on standard error, used as a context."""

    def __init__(self, what: str, total: int, of: str = "units") -> None:
        """Nothing is shown yet. `of` says what is counted."""
        name, unit = TextColumn("{task.description}"), TextColumn("{task.fields[unit]}")
        columns = (
            name,
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            unit,
        )
        super().__init__(
            *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
        )
        self._counted = self.add_task(what, total=total, unit="")
        self._of = of
        self._next = time.monotonic() + QUIET

    def did(self, unit: str) -> None:
        """One more is done: `unit`."""
        self.update(self._counted, advance=1, unit=posixpath.basename(unit))
        if self.disable and time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            (task,) = self.tasks
            left = (task.elapsed or 0) * (task.remaining or 0) / task.completed
            about = f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min"
            print(
                f"{task.description}: {task.completed} of {task.total} {self._of}, about {about} "
                "left",
                file=sys.stderr,
                flush=True,
            )
