"""The same work on many things, on all processors.

The processes are forked with the facts in their memory, so that nothing large is copied or written to a pipe on the way in.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, TypeVar

from ring3_split.workers import ignore_interrupts, uninterrupted

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(work: Callable[[Item], Result], items: Sequence[Item], jobs: int) -> Iterator[tuple[Item, Result | Exception]]:
    """Gives each item with what `work` made of it, or the exception that it raised, in the order in which they are done.

    The processes are started by the call itself, before whoever calls has threads. Items are dealt out in turn: put the largest
    first. Results and exceptions are pickled.

    Raises:
        RuntimeError: a process ended before its work was done.
    """
    context = multiprocessing.get_context("fork")
    processes, ends = [], []
    gc.freeze()  # a collection in a child would touch, and so copy, every page of the facts
    for first in range(min(jobs, len(items))):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(work, items[first::jobs], there), daemon=True)
        with uninterrupted():
            process.start()
        there.close()
        processes.append(process)
        ends.append(here)
    gc.unfreeze()
    return _collect(processes, ends, len(items))


def _run(work: Callable[[Item], object], items: Sequence[Item], end: Connection) -> None:
    ignore_interrupts()
    for item in items:
        try:
            end.send((item, work(item)))
        except Exception as error:
            end.send((item, error))
    end.close()


def _collect(processes: list[ForkProcess], ends: list[Connection], expected: int) -> Iterator[tuple[Any, Any]]:
    try:
        left = list(ends)
        while left:
            for end in wait(left):
                assert isinstance(end, Connection)  # noqa: S101 - nothing else was waited for
                try:
                    result = end.recv()
                except EOFError:
                    left.remove(end)
                    continue
                expected -= 1
                yield result
    finally:
        for process in processes:
            process.terminate()
            process.join()
    if expected:
        raise RuntimeError(f"{expected} of the drivers were not looked at: a process ended early (is there memory enough?)")
