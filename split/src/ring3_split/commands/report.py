"""What a command prints that measures or counts in guests.

What they say where it disturbs no result, and the result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec


def heard(verbose: bool) -> Callable[[str, bool], None]:
    """Shows a line of a guest, or the name of its step; without `verbose` the names alone."""

    def show(line: str, step: bool) -> None:
        if step or verbose:
            print(line if step else f"    {line}", file=sys.stderr, flush=True)

    return show


def show(result: object, words: str, machine: bool) -> None:
    """Prints a result, as JSON or in words."""
    if machine:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    else:
        print(words)
