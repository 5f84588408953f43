"""Facts of each spinlock.

Who takes it, how the kernel comes there, and whether it can be a combolock.

A combolock is a spinlock as long as only the kernel half takes it; while the user half holds it, it
is a lock that one sleeps for [ASPLOS 2008]. Code that must not sleep cannot wait for it then, so
each entry that takes it in atomic context has to be held off for that time: an interrupt is
disabled, a queue stopped, a timer run later. Where one cannot be, the lock stays a spinlock.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources

from ring3_split.context import Entry
from ring3_split.graph import Edge, Graph
from ring3_split.indirect import is_header
from ring3_split.model import Kind, Region

# Regions of a lock that one spins on; the other atomic regions have nothing that could move to a
# process.
SPINNING = frozenset({Kind.SPIN, Kind.SPIN_BH, Kind.SPIN_IRQ})


@dataclass
class Facts:
    """What is known of one lock."""

    kinds: set[str] = field(default_factory=set)
    takers: dict[str, int] = field(default_factory=dict)  # function -> line
    contexts: dict[str, set[tuple[str, str]]] = field(
        default_factory=dict
    )  # function -> context and by what
    hold_off: dict[str, str] = field(default_factory=dict)  # entry -> how it is kept from running
    obstacle: str = ""  # why it can be no combolock; "" if it can


def facts(
    graph: Graph, contexts: Mapping[str, tuple[Entry, ...]], unknown: Mapping[str, str]
) -> dict[str, Facts]:
    """The spinlocks that the driver's own functions take and that have a name."""
    found: dict[str, Facts] = defaultdict(Facts)
    for key, function in graph.owned():
        parameters = {one.name for one in function.parameters}
        for region in function.regions:
            if region.kind in SPINNING and region.lock not in ("?", *parameters):
                found[region.lock].kinds.add(region.kind)
                found[region.lock].takers.setdefault(key, region.line)
                outer = [one.lock for one in function.regions if _around(one, region)]
                if outer:
                    found[
                        region.lock
                    ].obstacle = (
                        f"{function.name} takes it while it holds {outer[0] or 'an atomic section'}"
                    )
    callers = graph.callers()
    for name, one in found.items():
        one.obstacle = one.obstacle or _kernels(graph, name)
        for taker in one.takers:
            one.contexts[taker] = _contexts(taker, callers, contexts, unknown)
            one.obstacle = one.obstacle or _nested(graph, taker, callers)
        _judge(one)
    return dict(sorted(found.items()))


def _kernels(graph: Graph, lock: str) -> str:
    """Why a lock is not the driver's to give to another half; "" if it is."""
    struct = lock.partition(".")[0]
    files = [data.layouts[struct].file for data in graph.driver.data if struct in data.layouts]
    return (
        f"struct {struct} is the kernel's, whose own code may take it"
        if any(map(is_header, files))
        else ""
    )


def _around(outer: Region, inner: Region) -> bool:
    """Whether a lock is taken inside of another atomic section of the function."""
    return (
        outer.kind.atomic
        and outer.lock != inner.lock
        and outer.line != inner.line
        and inner.line in outer.lines
    )


def _nested(graph: Graph, taker: str, callers: Mapping[str, Mapping[str, tuple[Edge, ...]]]) -> str:
    """A caller that holds another lock where it calls a taker, at any depth.

    "" if there is none.
    """
    seen, todo = {taker}, [taker]
    while todo:
        key = todo.pop()
        for caller, edges in callers.get(key, {}).items():
            held = next(
                (region for edge in edges for region in edge.held if region.kind.atomic), None
            )
            if held is not None:
                return (
                    f"{graph.functions[caller].name} calls {graph.functions[taker].name} under "
                    f"{held.lock or held.kind}"
                )
            if caller not in seen:
                seen.add(caller)
                todo.append(caller)
    return ""


def _contexts(
    taker: str,
    callers: Mapping[str, Mapping[str, tuple[Edge, ...]]],
    contexts: Mapping[str, tuple[Entry, ...]],
    unknown: Mapping[str, str],
) -> set[tuple[str, str]]:
    """How the kernel comes to a function: over all its callers back to entries."""
    found: set[tuple[str, str]] = set()
    seen, todo = {taker}, [taker]
    while todo:
        key = todo.pop()
        found |= {(entry.context, entry.by) for entry in contexts.get(key, ())}
        if key in unknown:
            found.add(("unknown", unknown[key]))
        for caller in callers.get(key, {}):
            if caller not in seen:
                seen.add(caller)
                todo.append(caller)
    return found


def _judge(one: Facts) -> None:
    for context, by in sorted(set().union(*one.contexts.values())):
        if context == "process":
            continue
        way = next((how for pattern, how in _table().items() if fnmatchcase(by, pattern)), "")
        if way:
            one.hold_off[by] = way
        elif not one.obstacle:
            where = "a context that is not known" if context == "unknown" else "atomic context"
            one.obstacle = f"{by} takes it in {where}, and cannot be held off"


@cache
def _table() -> dict[str, str]:
    return tomllib.loads(resources.files("ring3_split.plan").joinpath("holding.toml").read_text())
