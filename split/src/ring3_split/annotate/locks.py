"""The locks that user functions take.

Where each is, who else takes it, and what becomes of it when the user half dies.

A mutex of both halves, and rtnl, is taken in the kernel by the thread that runs the user function;
it is held while a process works, and must be given back when that process is gone. Spinlocks are
told with what the planner knows of them.
"""

from __future__ import annotations

from collections import defaultdict

from ring3_split import context
from ring3_split.annotate.border import Lock, Taker
from ring3_split.annotate.halves import Halves
from ring3_split.model import Kind, Region
from ring3_split.plan import locks as spinning

GIVEN_BACK = "the run time gives it back in the kernel, on the thread that served the call"


def locks(halves: Halves) -> dict[str, Lock]:
    """Locks by name; of spinlocks also those that only the kernel half takes.

    These are for a person who wants to move the functions that take them.
    """
    graph = halves.graph
    facts = spinning.facts(
        graph, context.of(graph), dict.fromkeys(context.unknown(graph), "an entry")
    )
    takers: dict[str, dict[str, Region]] = defaultdict(dict)
    kinds: dict[str, set[str]] = defaultdict(set)
    for key, function in graph.owned():
        for region in function.regions:
            name = "rtnl" if region.kind is Kind.RTNL else region.lock
            if region.kind in (*spinning.SPINNING, Kind.MUTEX, Kind.RTNL) and name not in ("", "?"):
                takers[name].setdefault(key, region)
                kinds[name].add(region.kind)
    return {
        name: _lock(halves, name, by, kinds[name], facts.get(name))
        for name, by in sorted(takers.items())
        if name in facts or by.keys() & halves.user
    }


def _lock(
    halves: Halves, name: str, by: dict[str, Region], kinds: set[str], known: spinning.Facts | None
) -> Lock:
    found = [
        Taker(
            key,
            "both"
            if key in halves.user & halves.kernel
            else "user"
            if key in halves.user
            else "kernel",
            f"{halves.graph.functions[key].file}:{region.line}",
            sorted(f"{where}: {how}" for where, how in known.contexts.get(key, ()))
            if known
            else [],
        )
        for key, region in sorted(by.items())
    ]
    user, kernel = (any(one.half in (half, "both") for one in found) for half in ("user", "kernel"))
    spins = known is not None
    way = (
        "kernel"
        if not user
        else "local"
        if not kernel and name != "rtnl"
        else "combolock"
        if spins
        else "downcall"
    )
    return Lock(
        kinds=sorted(kinds),
        takers=found,
        way=way,
        on_death=GIVEN_BACK if way in ("downcall", "combolock") else "",
        combolock=known.obstacle if known else "",
        hold_off=[f"{entry}: {how}" for entry, how in sorted(known.hold_off.items())]
        if known
        else [],
    )
