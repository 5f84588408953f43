"""Where a pointer goes.

From a field or a parameter through calls, fields and results, and what is done to it on the way.

# Places
A place holds a pointer: `field S.M`, `global G`, `PATH:F#2` (a parameter), `PATH:F#` (a result),
`call F` (a result of the kernel). Sinks are written `kernel F#2` (an argument of the kernel) and
`unknown` (an argument of a call through a pointer that cannot be resolved).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ring3_split.annotate.halves import Halves
from ring3_split.model import Access, Data, Shape

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Seen:
    """Something that is done to a pointer, and where."""

    function: str  # id
    line: int
    what: str  # a shape's, or "member": a member is reached through it at a constant offset
    detail: str = ""


@dataclass
class Trace:
    """All places that a pointer reaches, and all that is done to it there."""

    places: list[str]
    seen: list[Seen]

    def of(self, *what: str) -> list[Seen]:
        """What was seen of these kinds, in the order of file and line."""
        return [one for one in self.seen if one.what in what]


@dataclass
class Flows:
    """Pointer flow over some functions of a driver."""

    seen: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    onward: dict[str, dict[str, Seen]] = field(default_factory=lambda: defaultdict(dict))

    def trace(self, place: str) -> Trace:
        """What becomes of the pointer in a place."""
        places = {place: None}
        queue = deque([place])
        while queue:
            for target in self.onward.get(queue.popleft(), {}):
                # A field is a place of its own, with an annotation of its own; the trace does not
                # go on from it.
                if target not in places:
                    places[target] = None
                    if not target.startswith(("field ", "kernel ", UNKNOWN)):
                        queue.append(target)
        seen = {
            one: None
            for reached in places
            if not reached.startswith("field ")
            for one in self.seen.get(reached, ())
        }
        seen |= dict.fromkeys(self.seen.get(place, ()))
        ways = {place: None for place in places if not place.startswith("field ")} | {place: None}
        arrows = [
            Seen(arrow.function, arrow.line, "flow", target)
            for way in ways
            for target, arrow in self.onward.get(way, {}).items()
        ]
        return Trace(
            list(places),
            sorted(
                [*seen, *arrows], key=lambda one: (one.function, one.line, one.what, one.detail)
            ),
        )

    def sources(self, place: str) -> list[Seen]:
        """What flows into a place directly; `detail` is where from."""
        return [
            Seen(arrow.function, arrow.line, "flow", source)
            for source, targets in self.onward.items()
            for target, arrow in targets.items()
            if target == place
        ]


def parameter(function: str, index: int) -> str:
    """The place of a parameter."""
    return f"{function}#{index}"


def flows(halves: Halves, data: Iterable[Data], functions: set[str]) -> Flows:
    """The flows in these functions of a driver."""
    result = Flows()
    done: set[str] = set()
    for unit in data:
        for function in sorted((unit.shapes.keys() | unit.accesses.keys()) & functions - done):
            place = _Places(halves, function)
            for access in unit.accesses.get(function, ()):
                result.seen[place.of(access.base)].extend(_members(function, access))
            for shape in unit.shapes.get(function, ()):
                source = place.of(shape.pointer)
                if shape.what != "flow":
                    result.seen[source].append(Seen(function, shape.line, shape.what, shape.detail))
                    continue
                for target in place.targets(shape):
                    result.onward[source].setdefault(
                        target, Seen(function, shape.line, "flow", target)
                    )
            done.add(function)
    return result


def _members(function: str, access: Access) -> list[Seen]:
    # Of an embedded struct, the pointer is to the struct around it.
    return [Seen(function, line, "member", access.within or access.field) for line in access.lines]


class _Places:
    """Names of places, as one function sees them."""

    def __init__(self, halves: Halves, function: str) -> None:
        self.function = function
        self.calls = halves.graph.calls.get(function, {})
        # Functions that api.toml names are the kernel's, whether a header defines them or not.
        self.names = {
            halves.graph.functions[callee].name: callee
            for callee, edges in self.calls.items()
            if any(edge.how == "direct" for edge in edges)
            and (halves.graph.own(callee) or halves.inlined(callee))
        }

    def of(self, text: str) -> str:
        """The place of a fact's `base` or `pointer`."""
        kind, _, name = text.partition(" ")
        if kind == "param":
            return parameter(self.function, int(name))
        if kind == "call" and name in self.names:
            return f"{self.names[name]}#"
        return text or UNKNOWN

    def targets(self, shape: Shape) -> list[str]:
        """The places that a flow leads to."""
        if shape.detail == "return":
            return [f"{self.function}#"]
        if shape.detail.startswith(("field ", "global ")):
            return [shape.detail]
        callee, _, index = shape.detail.rpartition(":")
        if callee in self.names:
            return [parameter(self.names[callee], int(index))]
        if callee:
            return [f"kernel {callee}#{index}"]
        indirect = [
            parameter(target, int(index))
            for target, edges in self.calls.items()
            if any(edge.line == shape.line and edge.how != "direct" for edge in edges)
        ]
        return indirect or [UNKNOWN]
