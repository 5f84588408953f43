"""What the kernel half must know of each entry to live without the user half.

Entries of a frozen system, failure, re-arming.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

from ring3_split.annotate.border import Entry, Rearm
from ring3_split.annotate.halves import Halves
from ring3_split.annotate.touched import Touched


def complete(entry: Entry, halves: Halves, touched: Touched) -> Entry:
    """Adds to an entry what is done when no user half answers."""
    code = halves.reachable(entry.function)
    entry.frozen = next((why for by in entry.called_by if (why := frozen(by))), "")
    entry.boot = any(
        fnmatchcase(by, pattern)
        for by in entry.called_by
        for pattern in _table()["boot"]["patterns"]
    )
    entry.failure = _failure(entry)
    entry.rearm = _rearm(entry.function, code, halves, touched)
    entry.task = _task(code, halves)
    return entry


def frozen(by: str) -> str:
    """Why an operation is called when no process can run; "" if it is not.

    The first pattern that fits is believed.
    """
    return next(
        (why for pattern, why in _table()["frozen"].items() if fnmatchcase(by, pattern)), ""
    )


def _failure(entry: Entry) -> str:
    """What an entry returns when the user half cannot be asked.

    C, in which arg1 is the second parameter.
    """
    told = next(
        (
            value
            for by in entry.called_by
            for name, value in _table()["failure"].items()
            if fnmatchcase(by, name)
        ),
        None,
    )
    if told is not None:
        index = told.removeprefix("arg")
        return (
            entry.parameters[int(index)].name
            if index.isdigit() and told != index and int(index) < len(entry.parameters)
            else told
        )
    declared = entry.returns.strip()
    if declared == "void":
        return ""
    if declared.endswith("*"):
        return "NULL"
    if declared in ("bool", "_Bool"):
        return "false"
    return (
        "0"
        if declared.startswith(("unsigned", "u8", "u16", "u32", "u64", "__u", "uint", "size_t"))
        else "-EIO"
    )


def _rearm(function: str, code: Iterable[str], halves: Halves, touched: Touched) -> list[Rearm]:
    """Where the code of an entry arms the timer, or queues the work, whose function it is."""
    owners = {place.owner for place in halves.graph.stored.get(function, ()) if place.owner}
    found = []
    for key in sorted(code):
        for access in touched.accesses.get(key, ()):
            by, _, index = access.to.rpartition(":")
            owner = next((name for name in (access.field, access.within) if name in owners), "")
            if owner and index.isdigit() and _table()["arms"].get(by) == int(index):
                file = halves.graph.functions[key].file
                found += [Rearm(by, owner, f"{file}:{line}") for line in access.lines]
    return found


def _task(code: Iterable[str], halves: Halves) -> list[str]:
    """The functions of the kernel that an entry may call and that mean the task of its caller."""
    return [name for name in halves.called(code) if (api := halves.apis.of(name)) and api.task]


@cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(
        resources.files("ring3_split.annotate").joinpath("entered.toml").read_text()
    )
