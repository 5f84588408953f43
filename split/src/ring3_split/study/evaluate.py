"""One driver: linked once at each precision, and every rule looked at on that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ring3_split import roots
from ring3_split.driver import Driver
from ring3_split.graph import Graph, lines, link_each
from ring3_split.model import Module
from ring3_split.roots import Kind, Root
from ring3_split.study import detail, marks
from ring3_split.study.count import Marks
from ring3_split.study.detail import (
    DIRECT,
    FIELD,
    SIGNATURE,
    CallListed,
    Detail,
    Listed,
    RootListed,
)
from ring3_split.study.rules import Calls, Reach

# The narrowest choice of roots that has each kind.
REACH: dict[Kind, Reach] = {
    "interrupt": "data",
    "poll": "data",
    "data": "data",
    "tasklet": "deferred",
    "urb": "deferred",
    "timer": "timers",
}


@dataclass(frozen=True)
class Work:
    """A module to look at: by itself, and with its library modules when it has any."""

    alone: Driver
    together: Driver | None


@dataclass(frozen=True)
class Evaluated:
    """What was found."""

    alone: Marks
    together: Marks | None = None
    libraries: tuple[Module, ...] = ()
    detail: str = ""  # packed, of the driver with its libraries
    error: str = ""  # why nothing was found


@dataclass(frozen=True)
class Linked:
    """A driver's calls at each precision, its roots, and the marks of all its functions.

    Inlines of the kernel are among them.
    """

    signature: Graph
    field: Graph
    roots: Mapping[str, tuple[Root, ...]]
    marks: Marks

    @property
    def own(self) -> Marks:
        """The marks that count: the driver's own functions."""
        return {
            function: mark for function, mark in self.marks.items() if self.signature.own(function)
        }


def evaluate(work: Work) -> Evaluated:
    """Looks at one module."""
    alone = _link(work.alone)
    together = _link(work.together) if work.together else None
    packed = detail.pack(_detail(together or alone))
    if not work.together or not together:
        return Evaluated(alone.own, detail=packed)
    return Evaluated(
        alone.own, together.own, tuple(part.module for part in work.together.modules[1:]), packed
    )


def failed(error: Exception) -> Evaluated:
    """What is said of a module that could not be looked at."""
    return Evaluated({}, error=f"the analysis failed: {type(error).__name__}: {error}")


def _link(driver: Driver) -> Linked:
    signature, field = link_each(driver, ("signature", "field"))
    found = roots.of(signature, driver)
    direct = {
        caller: [
            callee
            for callee, edges in callees.items()
            if any(edge.how == "direct" for edge in edges)
        ]
        for caller, callees in signature.calls.items()
    }
    graphs: dict[Calls, marks.Graph] = {
        "signature": signature.calls,
        "field": field.calls,
        "direct": direct,
    }
    length = {function: lines(facts) for function, facts in signature.functions.items()}
    start = {
        function: [(root.rule, REACH[root.kind]) for root in some]
        for function, some in found.items()
    }
    return Linked(signature, field, found, marks.marks(length, graphs, start))


def _detail(linked: Linked) -> Detail:
    """What the page shows: all functions of the driver itself, and what is critical of the rest."""
    graph = linked.signature
    modules = graph.driver.modules
    home = {
        function.id: place
        for place, facts in enumerate(modules)
        for unit in facts.units
        for function in unit.functions
    }
    shown = [
        function
        for function, (_, bits) in linked.marks.items()
        if bits or (home[function] == 0 and graph.own(function))
    ]
    files = sorted({graph.functions[function].file for function in shown})
    file_place = {file: place for place, file in enumerate(files)}
    listed = []
    for function in shown:
        facts, (length, bits) = graph.functions[function], linked.marks[function]
        counted = length if graph.own(function) else 0
        listed.append(
            Listed(facts.name, file_place[facts.file], facts.line, counted, bits, home[function])
        )
    place = {function: number for number, function in enumerate(shown)}
    found = [
        RootListed(place[function], root.rule, REACH[root.kind], root.template, root.where)
        for function, some in linked.roots.items()
        for root in some
    ]
    names = tuple(facts.module.name for facts in modules)
    return Detail(names, tuple(files), tuple(listed), tuple(found), tuple(_calls(linked, place)))


def _calls(linked: Linked, place: Mapping[str, int]) -> Iterator[CallListed]:
    """The calls between functions critical under some rule, with the precisions of each."""
    critical = {function for function, (_, bits) in linked.marks.items() if bits}
    for caller in critical:
        by_type, by_field = (
            linked.signature.calls.get(caller, {}),
            linked.field.calls.get(caller, {}),
        )
        # Either may have what the other has not: a cast between the field and the function hides it
        # from the type.
        for callee in (by_type.keys() | by_field.keys()) & critical:
            edges = by_type.get(callee, ()) + by_field.get(callee, ())
            direct = any(edge.how == "direct" for edge in edges)
            kinds = (
                DIRECT
                if direct
                else (SIGNATURE if callee in by_type else 0) | (FIELD if callee in by_field else 0)
            )
            yield CallListed(place[caller], place[callee], kinds, min(edge.line for edge in edges))
