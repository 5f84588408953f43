"""What must stay in the kernel besides the critical functions, and why.

Code that runs where it may not sleep cannot be a call to a process [Microdrivers 3]: what the kernel enters in atomic context,
what is called while a spinlock is held or interrupts are off, and all that these call in turn. An entry of which no table
knows the context is taken for one that may not sleep. Who takes a spinlock that code of the kernel half takes stays with it.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from ring3_split import context, critical, roots
from ring3_split.critical import Chain
from ring3_split.graph import Graph
from ring3_split.model import Function, Region
from ring3_split.plan.fixed import fixed
from ring3_split.plan.locks import SPINNING

Kind = Literal["atomic", "unknown", "region", "fixed", "lock", "called"]


@dataclass(frozen=True)
class Reason:
    """Why a function stays."""

    kind: Kind
    text: str
    chain: Chain | None = None  # of "called": from a function that stays for a reason of its own


def stays(graph: Graph, roots_: Collection[str], structs: Mapping[str, str]) -> dict[str, tuple[Reason, ...]]:
    """The driver's functions that stay though no root calls them, with all reasons. `structs`: struct -> file."""
    is_critical = critical.propagate(graph, roots_).keys()
    found: dict[str, list[Reason]] = defaultdict(list)
    for function, entries in context.of(graph).items():
        found[function] += [_atomic(entry) for entry in entries if entry.context == "atomic"]
    for function, places in context.unknown(graph).items():
        found[function] += [Reason("unknown", f"{roots.where(place)}: whether it may sleep is not known") for place in places]
    for function, texts in _sections(graph).items():
        found[function] += [Reason("region", text) for text in texts]
    for function, text in fixed(graph, structs).items():
        found[function].append(Reason("fixed", text))
    # What only loads the module, or is bound to the processor for what it does itself, may well call into a process.
    start = [function for function, reasons in found.items() if any(reason.kind != "fixed" for reason in reasons)]
    for function, chain in critical.propagate(graph, start).items():
        if len(chain.functions) > 1 and function not in is_critical:
            found[function].append(Reason("called", f"called by {graph.functions[chain.functions[-2]].name}", chain))
    _shared_locks(graph, found, is_critical)
    return {
        function: tuple(dict.fromkeys(reasons))
        for function, reasons in found.items()
        if reasons and graph.own(function) and function not in is_critical
    }


def _shared_locks(graph: Graph, found: dict[str, list[Reason]], is_critical: Collection[str]) -> None:
    """Adds those that take a spinlock which a function that stays takes: a process cannot spin on it.

    Their own locks are shared in turn, but what they call outside of a lock's region may well be in a process.
    """
    takers: dict[str, list[str]] = defaultdict(list)
    for key, function in graph.owned():
        parameters = {parameter.name for parameter in function.parameters}
        for lock in {region.lock for region in function.regions if region.kind in SPINNING} - parameters - {"?"}:
            takers[lock].append(key)
    waiting = [key for key, _ in graph.owned() if key in is_critical or found.get(key)]
    stay = set(waiting)
    for stayer in waiting:  # grows while it is walked
        for lock, users in takers.items():
            for user in users if stayer in users else ():
                if user not in stay:
                    text = f"takes {lock}, as {graph.functions[stayer].name} does, which stays"
                    found[user].append(Reason("lock", text))
                    stay.add(user)
                    waiting.append(user)


def _atomic(entry: context.Entry) -> Reason:
    why = f": {entry.why}" if entry.why else ""
    return Reason("atomic", f"{entry.by} is called in atomic context{why} [{entry.source}]")


def _sections(graph: Graph) -> dict[str, list[str]]:
    """The functions that are called where the caller may not sleep."""
    found: dict[str, list[str]] = defaultdict(list)
    for caller, callees in graph.calls.items():
        for callee, edges in callees.items():
            for edge in edges:
                held = [region for region in edge.held if region.kind.atomic]
                if held:
                    by = graph.functions[caller]
                    found[callee].append(f"called by {by.name} at {place(by, edge.line)} while it {holds(held[0])}")
    return found


def holds(region: Region) -> str:
    """What a region is, in words."""
    what = {
        "irq-off": "has interrupts off",
        "bh-off": "has softirqs off",
        "preempt-off": "has preemption off",
        "rcu": "reads under RCU",
        "rtnl": "holds rtnl",
    }.get(region.kind, f"holds {region.name if region.lock != '?' else 'a lock'}")
    return f"{what} (since line {region.line})"


def place(function: Function, line: int | None = None) -> str:
    """A line of a function's file, as "e1000_main.c:810"."""
    return f"{posixpath.basename(function.file)}:{line or function.line}"
