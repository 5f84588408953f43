"""Under which rules each function of a driver is critical."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from ring3_split.study.rules import Calls, Finder, Reach, Rule, bit

Graph = Mapping[str, Iterable[str]]
"""Callees of each function, by id."""

Start = Mapping[str, Iterable[tuple[Finder, Reach]]]
"""Root functions: who found each, and the narrowest choice of roots that it is in."""


def start_bits(start: Start, calls: Calls) -> dict[str, int]:
    """Of each root function the rules, among those with these calls, that have it as a root."""
    order = get_args(Reach)
    bits = {}
    for function, found in start.items():
        mark = 0
        for finder, narrowest in found:
            for reach in order[order.index(narrowest) :]:
                mark |= bit(Rule(calls, finder, reach))
        bits[function] = mark
    return bits


def spread(graph: Graph, start: Mapping[str, int]) -> dict[str, int]:
    """Hands the bits of each function on to all that it calls, and so on: all rules at once."""
    bits = dict(start)
    todo = list(start)
    while todo:
        caller = todo.pop()
        have = bits[caller]
        for callee in graph.get(caller, ()):
            before = bits.get(callee, 0)
            if have & ~before:
                bits[callee] = before | have
                todo.append(callee)
    return bits


def marks(
    lines: Mapping[str, int], graphs: Mapping[Calls, Graph], start: Start
) -> dict[str, tuple[int, int]]:
    """Lines of each function with its bit for every rule.

    Args:
        lines: of each function of the driver, by id. Others are followed but not counted.
        graphs: the driver's calls, at each precision.
        start: its root functions.
    """
    total = dict.fromkeys(lines, 0)
    for calls, graph in graphs.items():
        for function, bits in spread(graph, start_bits(start, calls)).items():
            if function in total:
                total[function] |= bits
    return {function: (lines[function], bits) for function, bits in total.items()}
