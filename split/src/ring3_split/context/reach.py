"""Which functions of the kernel may run in atomic context, and which surely do not.

# May be atomic
A function that is called in a region of a spinlock, RCU, or with interrupts, bottom halves or
preemption off; one that the kernel enters so (a timer, an interrupt); and what these call, at any
depth. Three things end a chain, because the kernel itself would be wrong otherwise: a call that is
made while a mutex or rtnl is held, taken in the same function; a function that says
`might_sleep()`; and one that gives back its caller's lock or section.

# Not followed
Calls through a pointer whose origin is not known, and calls of a parameter by an inline of a header
(`kref_put`): they would lead from each of its callers to what any of them passes. Who passes a
function to be called at once counts as its caller.

# In process context for certain
A function that sleeps itself; one that is called only while a mutex is held, or only by such
functions, or by the kernel as the tables know. An exported function has callers that nobody sees:
it is neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from ring3_split import context
from ring3_split.graph import Edge, Graph
from ring3_split.model import Kind, Region

# what might_sleep() is, in kernels that can be preempted
ASSERTS = "include/linux/kernel.h:might_resched"
SLEEPING = (Kind.MUTEX, Kind.RTNL)
# Fields by which chains of every kind call, atomic and blocking ones: whose function is called
# where, they cannot tell.
MIXED = frozenset(("notifier_block.notifier_call",))


@dataclass(frozen=True)
class Came:
    """How a function is reached in atomic context.

    By a call, or from outside by what `words` say.
    """

    words: str
    caller: str = ""
    line: int = 0


def inside(held: tuple[Region, ...]) -> Region | None:
    """The atomic region in which a call stands."""
    return next((region for region in held if region.kind.atomic), None)


def sleepable(held: tuple[Region, ...]) -> bool:
    """Whether a call stands where the caller must be able to sleep."""
    return inside(held) is None and any(region.kind in SLEEPING for region in held)


def atomic(graph: Graph) -> dict[str, Came]:
    """The functions that may run in atomic context, each by a shortest way."""
    found: dict[str, Came] = {}
    ending = {caller for caller, callees in graph.calls.items() if ASSERTS in callees}
    ending |= {
        key
        for key, function in graph.functions.items()
        if any(one.kind.atomic for one in function.given)
    }
    for key, entries in sorted(context.of(graph).items()):
        by = next((entry for entry in entries if entry.context == "atomic"), None)
        if by is not None:
            found[key] = Came(
                f"called by {by.by} [{by.source}]" + (f": {by.why}" if by.why else "")
            )
    for caller, callees in sorted(graph.calls.items()):
        for callee, edges in callees.items():
            at = next(
                (edge for edge in edges if _followed(graph, caller, edge) and inside(edge.held)),
                None,
            )
            if at is not None and callee not in found and callee not in ending:
                found[callee] = Came(under(inside(at.held)), caller, at.line)
    todo = deque(found)
    while todo:
        caller = todo.popleft()
        for callee, edges in graph.calls.get(caller, {}).items():
            at = next(
                (
                    edge
                    for edge in edges
                    if _followed(graph, caller, edge) and not sleepable(edge.held)
                ),
                None,
            )
            if at is not None and callee not in found and callee not in ending:
                found[callee] = Came("", caller, at.line)
                todo.append(callee)
    return found


def _followed(graph: Graph, caller: str, edge: Edge) -> bool:
    """Whether a call leads where it seems to."""
    if edge.how != "field" or edge.field in MIXED:
        return edge.how == "direct"
    return graph.own(caller) or not edge.field.startswith("parameter")


def process(graph: Graph, sleeping: frozenset[str]) -> dict[str, str]:
    """The functions that run in process context for certain, and why.

    `sleeping`: functions of the kernel that may sleep.
    """
    found: dict[str, str] = {}
    for key, function in graph.functions.items():
        at = next(
            (
                call
                for call in function.calls
                if call.callee in sleeping and inside(_held(function.regions, call.held)) is None
            ),
            None,
        )
        if at is not None:
            found[key] = f"calls {at.callee} at line {at.line}"
    known, unknown = context.of(graph), context.unknown(graph)
    callers = graph.callers()
    todo = deque(graph.functions)
    while todo:
        key = todo.popleft()
        if (
            key not in found
            and key not in unknown
            and (why := _certain(key, known, callers.get(key, {}), found))
        ):
            found[key] = why
            todo.extend(graph.calls.get(key, {}))
    return found


def _held(regions: tuple[Region, ...], held: tuple[int, ...]) -> tuple[Region, ...]:
    return tuple(regions[place] for place in held)


def _certain(
    key: str,
    known: Mapping[str, tuple[context.Entry, ...]],
    callers: Mapping[str, tuple[Edge, ...]],
    found: Mapping[str, str],
) -> str:
    """Why a function runs in process context for certain, if it does."""
    entries = known.get(key, ())
    if any(entry.context == "atomic" for entry in entries) or not (entries or callers):
        return ""
    for caller, edges in callers.items():
        for edge in edges:
            if inside(edge.held) or not (sleepable(edge.held) or caller in found):
                return ""
    return f"is called by {entries[0].by if entries else next(iter(callers)).rpartition(':')[2]}"


def under(region: Region | None) -> str:
    """A region in words."""
    return (
        f"under {region.kind} {region.lock}".rstrip() + f", taken at line {region.line}"
        if region
        else ""
    )
