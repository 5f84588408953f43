"""Work in several processes, one task each at a time.

A process that dies or hangs costs its task, and nothing else.

This is why it is no pool of a library: of 41 tasks, one of which kills its process,
concurrent.futures loses 32, and so does pebble, after two minutes, if the process dies while it
writes to the pipe that all share. Here each process has its own.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Literal, TypeVar

from ring3_split.errors import Refusal

STILLBORN = (
    "a process ended before it could begin: is there memory left? "
    "A Python script that reads drivers must do so under `if __name__ == '__main__':`, because "
    "each process imports it"
)
DAY = 86400.0  # seconds
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass
class Lost(Exception):  # noqa: N818 - no error of the program
    """What became of a task that came to no result."""

    reason: str


@dataclass
class _Worker(Generic[Task]):
    process: BaseProcess
    pipe: Connection
    untold: Callable[[Task], object] | None  # the work, which goes before the first task
    task: Task | None = None
    deadline: float = 0.0
    begun: bool = False  # it said that it is there


def run(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    jobs: int | None,
    time_limit: float = DAY,
    start: Literal["spawn", "fork"] = "spawn",
) -> Iterator[tuple[Task, Result | Exception]]:
    """Starts tasks in order and yields each as soon as it is done.

    With it come its result, what it raised, or `Lost`.

    A process is a fresh interpreter, because a fork of a process with threads, such as a progress
    bar's, may hang; `work` is a function that it can import, or a partial of one. A "fork" has all
    that `work` refers to without a copy: the call itself starts it, before its caller has threads.
    When the caller stops asking, or is interrupted, the processes are ended; a result that was
    given is not lost by it.

    Raises:
        Refusal: a process ended before it began.
    """
    workers: list[_Worker[Task]] = []
    for _ in range(min(len(tasks), jobs or len(os.sched_getaffinity(0)))):
        workers.append(_start(work, start, workers))
    return _results(work, list(reversed(tasks)), workers, time_limit, start)


def _results(
    work: Callable[[Task], Result],
    waiting: list[Task],
    workers: list[_Worker[Task]],
    time_limit: float,
    start: str,
) -> Iterator[tuple[Task, Any]]:
    try:
        for worker in workers:
            _give(worker, waiting, time_limit)
        while any(w.task is not None for w in workers):
            for i, worker in enumerate(workers):
                outcome = _outcome(worker)
                if outcome is None or worker.task is None:
                    continue
                task, worker.task = worker.task, None
                if isinstance(outcome, Lost):
                    _end(worker)
                    # in its place
                    worker = workers[i] = _start(work, start, workers) if waiting else worker  # noqa: PLW2901
                _give(worker, waiting, time_limit)
                yield task, outcome
            busy = [w for w in workers if w.task is not None]
            wait(
                [w.pipe for w in busy],
                timeout=max(0.0, min((w.deadline for w in busy), default=0.0) - time.monotonic()),
            )
    finally:
        for worker in workers:
            _end(worker)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Keeps Ctrl-C back, also from processes that are started meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(
    work: Callable[[Task], Result], start: str, others: Iterable[_Worker[Task]]
) -> _Worker[Task]:
    context = multiprocessing.get_context(start)
    ours, theirs = context.Pipe()
    # A fork has the ends that are ours, too, and would not see them closed.
    copies = [ours, *(other.pipe for other in others)] if start == "fork" else []
    # A fork has the work. To another process multiprocessing would write it through a pipe whose
    # other end we hold, too: when that process dies before it has read all, the write never ends.
    known = work if start == "fork" else None
    process: BaseProcess = context.Process(target=_serve, args=(theirs, known, copies), daemon=True)  # type: ignore[attr-defined]
    resource_tracker.ensure_running()  # it would let Ctrl-C through again when it is started
    gc.freeze()  # a collection in a fork would touch, and so copy, every page
    with _uninterrupted():
        process.start()
    gc.unfreeze()
    theirs.close()
    return _Worker(process, ours, None if start == "fork" else work)


def _give(worker: _Worker[Task], waiting: list[Task], time_limit: float) -> None:
    if waiting:
        worker.task = waiting.pop()
        worker.deadline = time.monotonic() + time_limit
        with contextlib.suppress(OSError):  # it died: its end is seen when its outcome is asked for
            if worker.untold is not None:
                worker.pipe.send(worker.untold)
                worker.untold = None
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
            f"its process was ended by signal {-code}" if code and code < 0 else "its process ended"
        )
    return Lost("it took too long") if time.monotonic() > worker.deadline else None


def _end(worker: _Worker[Task]) -> None:
    worker.pipe.close()
    if worker.process.is_alive():
        worker.process.kill()
    worker.process.join(5)


def _serve(
    pipe: Connection, known: Callable[[Any], object] | None, copies: Iterable[Connection]
) -> None:
    """What a process does: tasks, until nobody is there who gives any."""
    # The one who gives them is interrupted too, and ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for copy in copies:
        copy.close()
    try:
        pipe.send(None)
        work = known or pipe.recv()
        while True:
            task = pipe.recv()
            try:
                result = work(task)
            except Exception as error:
                result = error
            pipe.send(result)
    except (EOFError, OSError):
        return
