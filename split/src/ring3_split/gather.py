"""The facts of modules: from the cache, and what is not there by clang and the reader, in parallel.

# Resuming
Each unit's facts are kept as soon as they are read, so that a run that is ended, in whatever way,
goes on where it was. Two runs at once do the same work twice and nothing worse.

# Failing
A unit that cannot be read is a `Failure` of its module, and is tried again in the next run. Only
what concerns all units ends a run: no room in the cache, no clang.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path

from ring3_split import reader, workers
from ring3_split.errors import Refusal
from ring3_split.files import FULL, refused
from ring3_split.kernel import Kernel, macros
from ring3_split.model import Data, Failure, Module, ModuleFacts, Unit
from ring3_split.precompiled import Precompiler, dependencies
from ring3_split.progress import Progress
from ring3_split.store import Store, open_store

Read = Callable[[Path, str, Path], tuple[Unit, Data]]
# clang has a limit of its own; the reader's text is at most some ten megabytes.
TIME_LIMIT = 600  # seconds for a unit


@dataclass(frozen=True, eq=False)
class Task:
    """One unit of a module, which it is itself alone: a source may belong to several."""

    module: Module
    source: str


def gather(
    kernel: Kernel, modules: Sequence[Module], jobs: int | None = None, read: Read = reader.read
) -> list[ModuleFacts]:
    """The facts of modules, in their order.

    `jobs` units at a time, one for each processor if not said.

    Raises:
        Refusal: no room in the cache.
    """
    store = open_store(kernel)
    tasks = [[Task(module, source) for source in module.sources] for module in modules]
    found = {task: store.unit(task.module, task.source) for task in chain.from_iterable(tasks)}
    missing = [task for task, unit in found.items() if unit is None]
    failures = _read_all(store, missing, jobs, read) if missing else {}
    for task in missing:
        found[task] = None if task in failures else store.unit(task.module, task.source)
        if found[task] is None:
            failures.setdefault(
                task, Failure(task.source, "it changed while it was read; run it again")
            )
    return [
        _facts(module, own, found, failures) for module, own in zip(modules, tasks, strict=True)
    ]


def gather_data(
    kernel: Kernel, module: Module, jobs: int | None = None, read: Read = reader.read
) -> list[Data]:
    """The data facts of a module's units, but for those that fail.

    They are read, if they are not in the cache.
    """
    gather(kernel, [module], jobs, read)
    store = open_store(kernel)
    found = (store.data(module, source) for source in module.sources)
    return [data for data in found if data is not None]


def _facts(
    module: Module, tasks: list[Task], found: dict[Task, Unit | None], failures: dict[Task, Failure]
) -> ModuleFacts:
    units = tuple(unit for unit in map(found.get, tasks) if unit is not None)
    return ModuleFacts(module, units, tuple(failures[task] for task in tasks if task in failures))


def _read_all(store: Store, tasks: list[Task], jobs: int | None, read: Read) -> dict[Task, Failure]:
    """Reads units into the store; those that fail, with the reason."""
    failures: dict[Task, Failure] = {}
    with (
        _scratch(store.kernel.folder) as scratch,
        Progress(f"reading {store.kernel.name}", len(tasks)) as progress,
    ):
        work = partial(_work, Reading(store, scratch, read))
        for task, outcome in workers.run(work, tasks, jobs, TIME_LIMIT):
            if isinstance(outcome, Refusal):
                raise outcome
            if reason := str(outcome):
                failures[task] = Failure(task.source, reason)
            progress.did(task.source)
    return failures


@dataclass(frozen=True)
class Reading:
    """What a process needs to read units."""

    store: Store
    scratch: Path  # where the IR is while it is read
    read: Read


def _work(reading: Reading, task: Task) -> str:
    """Reads one unit into the store; why not, or ""."""
    try:
        with tempfile.TemporaryDirectory(dir=reading.scratch) as folder:
            return _read(reading, task, Path(folder))
    except Refusal:
        raise
    except OSError as error:
        if error.errno in FULL:
            raise refused(error, reading.scratch) from None
        return str(error)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return (
            f"the reader failed: {type(error).__name__}: {error} "
            f"({Path(last.filename).name}:{last.lineno})"
        )


def _read(reading: Reading, task: Task, folder: Path) -> str:
    kernel, ir, listed = reading.store.kernel, folder / "unit.ll", folder / "unit.d"
    for flags in ways(kernel, task):
        error = kernel.compiler.compile(
            task.source, ir, (*flags, "-MD", "-MF", str(listed)), kernel.root
        )
        if not error:
            try:
                facts = reading.read(ir, task.source, kernel.root)
            except Refusal as refusal:
                return str(refusal)
            reading.store.put(
                task.module, facts, task.source, own_files(kernel, dependencies(listed))
            )
            return ""
        if "No space left on device" in error:
            raise Refusal(
                f"no room left in {folder.parent}: free some, or name another for facts with "
                "--cache; what was read is kept"
            )
    return error


def ways(kernel: Kernel, task: Task) -> Iterator[tuple[str, ...]]:
    """The flags to try: with compiled headers, if the unit cannot tell.

    Then as the kernel has it.
    """
    own, kind = (
        kernel.own_flags(task.module, task.source),
        () if task.module.builtin else ("-DMODULE",),
    )
    headers = _precompiler(kernel).headers(task.source, (*kernel.base, *kind))
    if headers is not None and headers.fit(
        (kernel.root / task.source).read_text(errors="replace"), own
    ):
        yield (
            *kernel.base,
            "-include-pch",
            str(headers.file),
            *own,
            *macros(task.module, task.source),
        )
    yield kernel.flags(task.module, task.source)


@cache
def _precompiler(kernel: Kernel) -> Precompiler:
    return Precompiler(kernel.compiler, kernel.root, kernel.folder / "pch", kernel.key)


def own_files(kernel: Kernel, files: list[str]) -> list[str]:
    """Of the files that a unit was read from, those that the kernel's key does not speak for."""
    return [
        f for f in dict.fromkeys(os.path.normpath(file) for file in files) if not kernel.covers(f)
    ]


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder for this run's IR. What a run that was killed has left is removed."""
    for left in folder.glob("work-*"):
        if not Path(f"/proc/{left.name.removeprefix('work-')}").exists():
            shutil.rmtree(left, ignore_errors=True)
    scratch = folder / f"work-{os.getpid()}"
    try:
        scratch.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(error, scratch) from None
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
