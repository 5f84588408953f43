"""Calls of the kernel's own functions that a function would make from a process.

Downcalls and accesses to registers.

Each place of the code counts once, an inline of a header for each function of the kernel that it
leads to. With a profile a place counts as often as its function ran: the tracer sees the driver's
functions only, and not how often a loop in one of them turned.
"""

from __future__ import annotations

from collections import Counter

from ring3_split.annotate.api import known
from ring3_split.annotate.halves import halves
from ring3_split.graph import Graph

DOWN = (
    "downcall",
    "lock",
    "atomic",
    "memory",
)  # ways that enter the kernel; what nobody knows is taken for one
MMIO = "mmio"


def outside(graph: Graph) -> tuple[Counter[str], Counter[str]]:
    """By function: its calls of the kernel and register accesses, if it ran in the user half."""
    apis = known()
    everything = halves(graph, apis, {key: "user" for key, _ in graph.owned()})
    downcalls, registers = Counter[str](), Counter[str]()
    for symbol, sites in everything.kernel_calls().items():
        api = apis.of(symbol)
        way = api.way if api else "downcall"
        for site in sites:
            if way == MMIO:
                registers[site.function] += 1
            elif way in DOWN:
                downcalls[site.function] += 1
    return downcalls, registers
