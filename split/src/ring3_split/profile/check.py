"""Whether the static graph has what was seen at run time."""

from __future__ import annotations

from collections.abc import Iterable

from ring3_split.graph import Graph
from ring3_split.profile.record import Pair


def missing(graph: Graph, pairs: Iterable[Pair], *, optimised: bool = False) -> tuple[Pair, ...]:
    """The pairs that the graph does not have.

    A call by the kernel must be to an entry, or to a callback that it calls at once for a function
    that passes it. A call of the driver's may pass through inline functions of headers, which are
    functions of their own in the graph and code of their caller at run time. In an `optimised`
    binary it may pass through any function: some are inlined into others, and one that ends with a
    call jumps, so that its caller seems to call.
    """
    silent = (
        set(graph.functions)
        if optimised
        else {key for key in graph.functions if not graph.own(key)}
    )
    entries = frozenset(graph.entries) | _passed(graph)
    if optimised:
        entries = entries.union(*(_called(graph, entry, silent) for entry in entries))
    reach: dict[str, frozenset[str]] = {"": entries}
    found = []
    for pair in pairs:
        if pair.caller not in reach:
            reach[pair.caller] = _called(graph, pair.caller, silent)
        if pair.callee not in reach[pair.caller]:
            found.append(pair)
    return tuple(found)


def _passed(graph: Graph) -> frozenset[str]:
    """The callbacks that the kernel calls before it returns.

    Edges by an argument of its API, "sort:3".
    """
    found = (
        key
        for callees in graph.calls.values()
        for key, edges in callees.items()
        if any(":" in e.field for e in edges)
    )
    return frozenset(found)


def _called(graph: Graph, caller: str, silent: set[str]) -> frozenset[str]:
    """What a function calls, directly or through silent ones."""
    seen: set[str] = set()
    waiting = [caller]
    while waiting:
        for callee in graph.calls.get(waiting.pop(), ()):
            if callee not in seen:
                seen.add(callee)
                waiting += [callee] if callee in silent else []
    return frozenset(seen)
