"""Work in several processes, one task each at a time. A process that dies or hangs costs its task, and nothing else."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from ring3_split.errors import Refusal

STILLBORN = (
    "a process ended before it could begin: is there memory left? "
    "A Python script that reads drivers must do so under `if __name__ == '__main__':`, because each process imports it"
)
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Lost:
    """What became of a task that came to no result."""

    reason: str


@dataclass
class _Worker(Generic[Task]):
    process: BaseProcess
    pipe: Connection
    task: Task | None = None
    deadline: float = 0.0
    begun: bool = False  # it said that it is there


def run(
    work: Callable[[Task], Result], tasks: Sequence[Task], jobs: int | None, time_limit: float
) -> Iterator[tuple[Task, Result | Lost]]:
    """Does all tasks, and gives each back with its result as soon as it is done, in no order.

    `work` is a function that another process can import, or a partial of one. When the caller stops asking, or is
    interrupted, the processes are ended; a result that was given is not lost by it.

    Raises:
        Refusal: a process ended before it began.
    """
    waiting = list(reversed(tasks))
    workers: list[_Worker[Task]] = []
    try:
        for _ in range(min(len(tasks), jobs or len(os.sched_getaffinity(0)))):
            workers.append(_start(work))
            _give(workers[-1], waiting, time_limit)
        while any(w.task is not None for w in workers):
            for i, worker in enumerate(workers):
                outcome = _outcome(worker)
                if outcome is None or worker.task is None:
                    continue
                task, worker.task = worker.task, None
                if isinstance(outcome, Lost):
                    _end(worker)
                    worker = workers[i] = _start(work) if waiting else worker  # noqa: PLW2901 - it takes the dead one's place
                _give(worker, waiting, time_limit)
                yield task, outcome
            busy = [w for w in workers if w.task is not None]
            wait([w.pipe for w in busy], timeout=max(0.0, min((w.deadline for w in busy), default=0.0) - time.monotonic()))
    finally:
        for worker in workers:
            _end(worker)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Keeps Ctrl-C back, also from processes that are started meanwhile, until they `ignore_interrupts`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """Leaves Ctrl-C to the process that started this one, and will end it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _start(work: Callable[[Task], Result]) -> _Worker[Task]:
    # A fresh interpreter: a fork of a process with threads, such as a progress bar's, may hang.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work), daemon=True)
    resource_tracker.ensure_running()  # it would let Ctrl-C through again when it is started
    with uninterrupted():
        process.start()
    theirs.close()
    return _Worker(process, ours)


def _give(worker: _Worker[Task], waiting: list[Task], time_limit: float) -> None:
    if waiting:
        worker.task = waiting.pop()
        worker.deadline = time.monotonic() + time_limit
        with contextlib.suppress(OSError):  # it died: its end is seen when its outcome is asked for
            worker.pipe.send(worker.task)


def _outcome(worker: _Worker[Task]) -> Any:
    """The result of a worker's task, `Lost`, or None while it works."""
    try:
        if worker.task is None:
            return None
        if worker.pipe.poll() and not worker.begun:
            worker.begun = worker.pipe.recv() is None
        if worker.pipe.poll():
            return worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(5)
        if not worker.begun:
            # Another one would fare no better, and this is no fault of the task.
            raise Refusal(STILLBORN) from None
        code = worker.process.exitcode
        return Lost(
            f"the process that read it was ended by signal {-code}" if code and code < 0 else "the process that read it ended"
        )
    return Lost("it took too long") if time.monotonic() > worker.deadline else None


def _end(worker: _Worker[Task]) -> None:
    worker.pipe.close()
    if worker.process.is_alive():
        worker.process.kill()
    worker.process.join(5)


def _serve(pipe: Connection, work: Callable[[Task], Result]) -> None:
    """What a process does: tasks, until nobody is there who gives any."""
    # The one who gives them is interrupted too, and ends us.
    ignore_interrupts()
    try:
        pipe.send(None)
        while True:
            pipe.send(work(pipe.recv()))
    except (EOFError, OSError):
        return
