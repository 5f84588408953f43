"""The judge's part about sections that one function begins and another ends.

Seen from the facts of single functions and from the objects that hold them: nothing here knows why
the planner keeps a function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from ring3_split.context import brackets
from ring3_split.model import Given, Region
from ring3_split.plan.file import Side
from ring3_split.plan.subject import Subject
from ring3_split.plan.verdict import Finding


def alone(subject: Subject, sides: Mapping[str, Side]) -> Iterator[Finding]:
    """Functions outside the kernel half that leave an atomic section open or end a caller's."""
    for key in subject.placed:
        if sides[key] is Side.KERNEL:
            continue
        for region in _kept(subject, key):
            text = (
                f"returns inside an atomic section: {_lock(region)}, {subject.at(key, region.line)}"
            )
            yield Finding("unpaired", key, text)
        for given in subject.graph.functions[key].given:
            if given.kind.atomic:
                text = (
                    f"ends an atomic section of its caller: {_lock(given)}, "
                    f"{subject.at(key, given.line)}"
                )
                yield Finding("unpaired", key, text)


def between(subject: Subject, sides: Mapping[str, Side]) -> Iterator[Finding]:
    """Functions outside the kernel half that the kernel calls inside a section of their object.

    Another function of the same object began that section.
    """
    for (struct, name), functions in sorted(_objects(subject).items()):
        first = brackets.known()[struct].begin
        begin = functions.get(first, "")
        kept = _kept(subject, begin) if begin else []
        for member, key in sorted(functions.items()) if kept else ():
            if key != begin and sides.get(key, Side.KERNEL) is not Side.KERNEL:
                path = (
                    f"{subject.name(begin)}, {subject.at(begin, kept[0].line)}: returns with "
                    f"{_lock(kept[0])}",
                    f"-> {subject.name(key)}, called by {struct}.{member} of {name}",
                )
                yield Finding(
                    "bracket", key, f"runs in the atomic section that {struct}.{first} began", path
                )


def _objects(subject: Subject) -> dict[tuple[str, str], dict[str, str]]:
    """Struct and object -> member -> function."""
    found: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for key, places in subject.graph.stored.items():
        for place in places:
            struct, _, member = place.field.rpartition(".")
            if struct in brackets.known() and place.object:
                found[struct, place.object][member] = key
    return found


def _kept(subject: Subject, key: str) -> list[Region]:
    return [
        region
        for region in subject.graph.functions[key].regions
        if region.kept and region.kind.atomic
    ]


def _lock(lock: Region | Given) -> str:
    """A lock as the facts have it."""
    return f"{lock.kind} {lock.lock}".strip()
