"""Variables whose address the kernel keeps, and pointers that point inside of something.

A table of the driver that is handed to the kernel must be where the kernel finds it after the call:
in the kernel half, by its symbol, and not in a copy for the time of a message. A pointer that was
computed from another one crosses as that and an offset.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from ring3_split.annotate.border import Interior, Kept, Type
from ring3_split.annotate.halves import Halves
from ring3_split.annotate.layouts import Layouts
from ring3_split.annotate.touched import Touched
from ring3_split.model import Data, Variable

TRANSIENT = ("in", "out", "inout", "string", "bytes", "user")  # notes on what a call only looks at


def kept(halves: Halves, data: Iterable[Data], touched: Touched) -> dict[str, Kept]:
    """The driver's variables whose address its user functions give to the kernel."""
    data = tuple(data)
    own = {name: one for unit in data for name, one in unit.variables.items() if not one.external}
    tables = {
        place.object for places in halves.graph.stored.values() for place in places if place.object
    }
    written: dict[str, str] = defaultdict(str)
    for key, _ in halves.graph.owned():
        for name, way in touched.variables.get(key, {}).items():
            written[name] += way
    ends: dict[str, dict[str, str]] = defaultdict(dict)  # variable -> end -> first site
    for unit in data:
        for function in sorted(halves.user & unit.handed.keys()):
            for one in unit.handed[function]:
                if one.variable in own and not touched.layouts.omitted(one.variable):
                    for end in touched.addresses.ends(function, one.to):
                        ends[one.variable].setdefault(
                            end, f"{halves.graph.functions[function].file}:{one.line}"
                        )
    return {
        name: _kept(halves, own[name], reaching, name in tables, written.get(name, ""))
        for name, to in sorted(ends.items())
        if (reaching := {end: site for end, site in to.items() if _reaches(halves, touched, end)})
    }


def _kept(
    halves: Halves, variable: Variable, reaching: dict[str, str], functions: bool, ways: str
) -> Kept:
    return Kept(
        variable.type,
        f"{variable.file}:{variable.line}" if variable.file else "",
        sorted(reaching),
        sorted(set(reaching.values())),
        keeps=any(_keeps(halves, end) for end in reaching),
        functions=functions,
        writable=""
        if re.match(r"const\b", variable.type)
        else "".join(way for way in "wa" if way in ways),
    )


def _reaches(halves: Halves, touched: Touched, end: str) -> bool:
    """Whether an end is in the kernel.

    A function that runs there, or a member of a struct that crosses.
    """
    if end.startswith("field "):
        return end.removeprefix("field ").rpartition(".")[0] in touched.crossing
    api = halves.apis.of(end.rpartition(":")[0])
    return api is None or api.way in ("downcall", "never")


def _keeps(halves: Halves, end: str) -> bool:
    """Whether the kernel may use what it was given when the call is over."""
    symbol, _, index = end.rpartition(":")
    api = halves.apis.of(symbol) if symbol and not end.startswith("field ") else None
    note = api.arguments.get(int(index), "").split() if api else []
    return not note or note[0].partition("(")[0] not in TRANSIENT


def interior(
    halves: Halves, data: Iterable[Data], types: dict[str, Type]
) -> dict[str, list[Interior]]:
    """Pointer members of crossing structs that the driver points to the inside of something."""
    found: dict[str, dict[tuple[str, str], Interior]] = defaultdict(dict)
    for unit in data:
        for function in sorted((halves.user | halves.kernel) & unit.shapes.keys()):
            for shape in unit.shapes[function]:
                name = shape.pointer.removeprefix("field ")
                if shape.what == "interior" and name.rpartition(".")[0] in types:
                    inside, _, offset = shape.detail.partition(" + ")
                    where = f"{halves.graph.functions[function].file}:{shape.line}"
                    found[name].setdefault((inside, offset), Interior(inside, offset, where))
    return {name: list(places.values()) for name, places in sorted(found.items())}


def beside(layouts: Layouts, name: str, places: Iterable[Interior]) -> str:
    """The member of the same struct that a pointer is always inside of.

    "" if it is not always that.
    """
    members = {place.inside.removeprefix("field ") for place in places}
    struct = name.rpartition(".")[0]
    if len(members) != 1 or any(place.inside.startswith("member ") for place in places):
        return ""
    other = next(iter(members))
    return (
        other.rpartition(".")[2]
        if other.rpartition(".")[0] == struct and layouts.member(other) is not None
        else ""
    )
