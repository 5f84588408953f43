"""Atomic sections that one function begins and another ends, across the units of a driver.

The reader follows a lock through the functions of one unit. A function that returns with a spinlock
held, or gives back its caller's, may also stand in another unit or be called through a pointer;
here its callers get the region that they hold by it.

The order of the lines stands for the order of the code: a region begins behind the call that takes,
and ends at the last line behind it that gives back. What has no end is kept, so that the caller is
such a function itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from ring3_split.model import Function, Given, Kind, Region
from ring3_split.reader.locks import SPINNING, family

if TYPE_CHECKING:
    from ring3_split.graph import Edge, Graph

ROUNDS = 6  # of callers that become such functions in turn; a longer chain is a recursion


@dataclass(frozen=True)
class Effect:
    """What calling a function does to the atomic sections of its caller."""

    takes: tuple[Region, ...] = ()
    gives: tuple[Given, ...] = ()


@dataclass(frozen=True)
class Change:
    """An effect of a call that the reader did not see, and the line of the call."""

    line: int
    takes: tuple[Kind, ...]
    gives: tuple[Kind, ...]


def effect(function: Function) -> Effect:
    """What a function leaves to its caller.

    A lock that it gives back and takes again is neither.
    """
    kept = [region for region in function.regions if region.kept and region.kind.atomic]
    given = [one for one in function.given if one.kind.atomic]
    both = {family(region.kind) for region in kept} & {family(one.kind) for one in given}
    takes = tuple(region for region in kept if family(region.kind) not in both)
    return Effect(takes, tuple(one for one in given if family(one.kind) not in both))


def carried(graph: Graph) -> Graph:
    """The graph with the regions that functions of other units begin and end."""
    seen = {
        key: one
        for key, function in graph.functions.items()
        if (one := effect(function)) != Effect()
    }
    effects = dict(seen)
    grown: dict[str, Function] = {}
    callers = graph.callers() if effects else {}
    changed = set(effects)
    for _ in range(ROUNDS):
        touched = sorted({caller for key in changed for caller in callers.get(key, ())})
        changed = set()
        for key in touched:
            changes = [
                change
                for change in _changes(graph, key, effects, seen)
                if change.takes or change.gives
            ]
            if changes:
                grown[key] = _grown(
                    graph.functions[key], sorted(changes, key=lambda change: change.line)
                )
                if (after := effect(grown[key])) != effects.get(key, Effect()):
                    effects[key] = after
                    changed.add(key)
    if not grown:
        return graph
    calls = {
        key: _held(some, grown[key], graph.functions[key]) if key in grown else some
        for key, some in graph.calls.items()
    }
    return replace(graph, functions={**graph.functions, **grown}, calls=calls)


def _changes(
    graph: Graph, key: str, effects: Mapping[str, Effect], seen: Mapping[str, Effect]
) -> Iterator[Change]:
    """The effects of a function's calls that the reader did not see."""
    own = graph.functions[key].file
    pointers: dict[tuple[int, str], set[str]] = defaultdict(
        set
    )  # a call through a pointer -> what it may reach
    for callee, edges in graph.calls[key].items():
        now, file = effects.get(callee, Effect()), graph.functions[callee].file
        for edge in edges:
            if edge.how != "direct":
                pointers[edge.line, edge.field].add(callee)
            elif now != Effect() and callee != key:
                known = (
                    Effect() if file != own and file.endswith(".c") else seen.get(callee, Effect())
                )
                yield Change(
                    edge.line, _kinds(now.takes, known.takes), _kinds(now.gives, known.gives)
                )
    for (line, _), callees in pointers.items():
        # Who calls through a pointer must know what is held then: it is what all the functions take
        # that may be there.
        if all(callee in effects for callee in callees):
            every = [effects[callee] for callee in sorted(callees)]
            takes = set.intersection(*({one.kind for one in each.takes} for each in every))
            gives = set.intersection(*({one.kind for one in each.gives} for each in every))
            yield Change(line, tuple(sorted(takes)), tuple(sorted(gives)))


def _kinds(now: tuple[Region | Given, ...], known: tuple[Region | Given, ...]) -> tuple[Kind, ...]:
    """What is new of an effect."""
    return tuple(one.kind for one in now if one not in known)


def _grown(function: Function, changes: list[Change]) -> Function:
    """A function with the regions that its calls begin, and without those that they end."""
    regions, given = list(function.regions), list(function.given)
    for change in changes:
        for kind in change.takes:
            ends = _ends(function, kind, change.line, changes)
            given = [
                one for one in given if one.line not in ends or family(one.kind) != family(kind)
            ]
            regions.append(_region(function, kind, change.line, ends))
    for change in changes:
        for kind in change.gives:
            ended = [r for r in regions if family(r.kind) == family(kind) and r.line < change.line]
            if not ended:
                given.append(Given(kind, _unnamed(kind), change.line))
            regions = [
                msgspec.structs.replace(region, kept=False) if region in ended else region
                for region in regions
            ]
    begun: dict[int, Region] = dict(
        enumerate(regions[len(function.regions) :], len(function.regions))
    )
    indirect = tuple(
        msgspec.structs.replace(
            call,
            held=(
                *call.held,
                *(place for place, region in begun.items() if call.line in region.lines),
            ),
        )
        for call in function.indirect
    )
    return msgspec.structs.replace(
        function, regions=tuple(regions), given=tuple(dict.fromkeys(given)), indirect=indirect
    )


def _ends(function: Function, kind: Kind, line: int, changes: list[Change]) -> tuple[int, ...]:
    """The lines behind a call where what it took may be given back."""
    found = {
        change.line for change in changes for given in change.gives if family(given) == family(kind)
    }
    found |= {one.line for one in function.given if family(one.kind) == family(kind)}
    return tuple(sorted(at for at in found if at > line))


def _region(function: Function, kind: Kind, line: int, ends: tuple[int, ...]) -> Region:
    last = ends[-1] if ends else function.end
    places = {call.line for call in function.calls} | {call.line for call in function.indirect}
    lines = tuple(sorted(at for at in places if line < at <= last))
    return Region(kind, _unnamed(kind), line, lines, ends, kept=not ends)


def _unnamed(kind: Kind) -> str:
    """The name of a lock of which the caller knows nothing."""
    return "?" if kind in SPINNING else ""


def _held(
    callees: Mapping[str, tuple[Edge, ...]], after: Function, before: Function
) -> dict[str, tuple[Edge, ...]]:
    """A function's calls, with what is held by its new regions."""
    new = after.regions[len(before.regions) :]
    return {
        callee: tuple(
            replace(edge, held=(*edge.held, *(r for r in new if edge.line in r.lines)))
            for edge in edges
        )
        for callee, edges in callees.items()
    }
