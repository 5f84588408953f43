"""What may be done to a member whose address is given away.

Read, written, both, or changed by an atomic operation.

The address is followed to the function that gets it. A function of the driver, or an inline that is
compiled with it, shows what it does to what its parameter points to; for a function of the kernel
api.toml says it, or else its prototype: it does not write through a pointer to const. Only an
address that is lost is taken for read and written.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from ring3_split.annotate.halves import Halves
from ring3_split.annotate.layouts import Layouts
from ring3_split.model import Access, Data

ATOMIC = "atomic"
BOTH = "rw"
# Of a note of api.toml: which way it is copied, for the kernel; and what is no address of a member
# at all.
DIRECTIONS = {"in": "r", "out": "w", "inout": BOTH}
UNTOUCHED = ("handle", "io", "user", "function", "operations")
# What the kernel's functions alone look into: it is where it is, and its bytes mean nothing
# elsewhere.
OBJECTS = frozenset(
    [
        "spinlock",
        "spinlock_t",
        "raw_spinlock",
        "rwlock_t",
        "mutex",
        "semaphore",
        "rw_semaphore",
        "completion",
        "list_head",
        "wait_queue_head",
        "work_struct",
        "delayed_work",
        "timer_list",
        "hrtimer",
        "tasklet_struct",
        "napi_struct",
        "kref",
    ]
)
CONSTANT = re.compile(r"^[^*]*\bconst\b[^*]*\*$")


class Addresses:
    """The addresses of members in the code of a driver."""

    def __init__(self, halves: Halves, data: Iterable[Data], layouts: Layouts) -> None:
        self._halves = halves
        self._layouts = layouts
        self._through: dict[str, dict[str, str]] = {}
        self._handed: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._known: dict[tuple[str, int], str] = {}
        self._names: dict[str, dict[str, str]] = {}
        for unit in data:
            self._through = {**unit.through, **self._through}
            for function, shapes in unit.shapes.items():
                for shape in shapes:
                    kind, _, number = shape.pointer.partition(" ")
                    if shape.what == "flow" and kind == "param":
                        self._handed[function][int(number)].add(shape.detail)

    def way(self, function: str, access: Access) -> str:
        """What may be done through an address that a function gives away.

        "r", "w", "rw", "", or `ATOMIC`.
        """
        callee, _, number = access.to.rpartition(":")
        api = self._halves.apis.of(callee) if callee else None
        if api is not None and api.way == ATOMIC and api.word == int(number):
            return ATOMIC
        member = self._layouts.member(access.field)
        if (
            member is not None
            and member.struct
            and (member.struct in self._layouts or member.struct in OBJECTS)
        ):
            # of an embedded struct its own members say how they are touched; a lock is no data at
            # all
            return ""
        return self._to(function, access.to)

    def ends(self, function: str, to: str) -> list[str]:
        """Where an address goes in the end, behind functions of the driver.

        Functions of the kernel ("NAME:N"), fields.
        """
        found: dict[str, None] = {}
        todo, seen = [(function, to)], set[tuple[str, str]]()
        while todo:
            here = function, to = todo.pop()
            callee, _, number = to.rpartition(":")
            inner = self._callees(function).get(callee) if number.isdigit() else None
            if here in seen:
                continue
            seen.add(here)
            if inner is not None and (self._halves.graph.own(inner) or self._halves.inlined(inner)):
                todo += [
                    (inner, onward)
                    for onward in sorted(self._handed.get(inner, {}).get(int(number), ()))
                ]
            elif to.startswith("field ") or callee:
                found[to] = None
        return list(found)

    def _to(self, function: str, to: str) -> str:
        """What is done with an address behind the place that it goes to."""
        if to == "return":
            return _constant(self._halves.graph.functions[function].returns)
        if to.startswith("field "):
            member = self._layouts.member(to.removeprefix("field "))
            return _constant(member.type) if member is not None else BOTH
        callee, _, number = to.rpartition(":")
        if not callee or not number.isdigit():
            return BOTH
        return self._passed(function, callee, int(number))

    def _passed(self, function: str, callee: str, index: int) -> str:
        """What a callee does to what an argument points to."""
        inner = self._callees(function).get(callee)
        if inner is not None and (self._halves.graph.own(inner) or self._halves.inlined(inner)):
            return self.parameter(inner, index)
        api = self._halves.apis.of(callee)
        note = api.arguments.get(index, "").split() if api else []
        if note and note[0] in DIRECTIONS:
            return DIRECTIONS[note[0]]
        if note and note[-1] in UNTOUCHED:
            return ""
        types = (
            [one.type for one in self._halves.graph.functions[inner].parameters]
            if inner is not None
            else []
        )
        prototype = self._halves.prototypes.get(callee)
        types = types or list(prototype.parameters if prototype else ())
        if index < len(types):
            return _constant(types[index])
        return "r" if api is not None and api.prints else BOTH

    def _callees(self, function: str) -> dict[str, str]:
        if function not in self._names:
            calls = self._halves.graph.calls.get(function, {})
            self._names[function] = {
                self._halves.graph.functions[callee].name: callee for callee in calls
            }
        return self._names[function]

    def parameter(self, function: str, index: int) -> str:
        """What a function does to what a parameter points to, by itself and by what it calls."""
        key = (function, index)
        if key not in self._known:
            self._known[key] = ""  # a function that calls itself does no more than once
            found = self._through.get(function, {}).get(str(index), "")
            for to in sorted(self._handed.get(function, {}).get(index, ())):
                found += self._to(function, to)
            self._known[key] = "".join(way for way in BOTH if way in found)
        return self._known[key]


def _constant(declared: str) -> str:
    """What may be done through a pointer of a declared type."""
    return "r" if CONSTANT.match(declared.strip()) else BOTH
