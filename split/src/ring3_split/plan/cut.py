"""The minimum cut: the kernel half that costs least, in lines kept there and crossings.

The network [Microdrivers 4]: a source, which is the kernel, and a sink, which is the process. A function on the source's side
pays its lines; a call whose ends are on two sides pays the crossings, and so does a call of the kernel into the sink's side.
Pins and rules are arcs of infinite capacity. Capacities are integers: the price of a crossing is a fraction, and both weights
are multiplied by its parts. Of several minimum cuts the one with the smallest source side is taken, which keeps the fewest
lines in the kernel.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import networkx as nx
from networkx.algorithms.flow import preflow_push

from ring3_split.graph import lines
from ring3_split.plan.constraints import Constraints, Node, State, constraints, functions
from ring3_split.plan.subject import Subject
from ring3_split.plan.weights import Weights

SOURCE, SINK = "source", "sink"


def problem(subject: Subject, weights: Weights, critical: bool) -> Problem:
    """The problem of cutting a driver; with `critical`, all that roots call stays in the kernel."""
    sizes = {key: lines(subject.graph.functions[key]) for key in (*subject.placed, *subject.copied)}
    return Problem(sizes, weights, constraints(subject, critical))


def crossings(kernel: AbstractSet[str], weights: Weights) -> int:
    """Calls that change sides, with those of the kernel into the user half."""
    between = sum(count for (one, other), count in weights.calls.items() if (one in kernel) != (other in kernel))
    return between + sum(count for key, count in weights.entries.items() if key not in kernel)


def placed(key: str) -> Node:
    """The node of a function."""
    return Node(key, State.PLACED)


@dataclass(frozen=True)
class Point:
    """A cut: the functions of the kernel half, and what it costs both ways."""

    kernel: frozenset[str]
    lines: int
    crossings: int


@dataclass(frozen=True)
class Problem:
    """All that a cut is made of."""

    sizes: Mapping[str, int]  # lines of each function of the driver
    weights: Weights
    rules: Constraints

    def point(self, kernel: frozenset[str]) -> Point:
        """The costs of a placement."""
        return Point(kernel, sum(self.sizes[key] for key in kernel), crossings(kernel, self.weights))

    @cached_property
    def forced(self) -> frozenset[Node]:
        """What the rules alone bring to the kernel's side."""
        return frozenset(self.rules.closure())

    def cut(self, cost: Fraction) -> Point:
        """The best placement when one crossing costs so many lines."""
        return self.weigh(cost.denominator, cost.numerator)

    def fewest_lines(self) -> Point:
        """The placement with the fewest lines, and of those the one with the fewest crossings."""
        return self.weigh(1 + self.weights.calls.total() + self.weights.entries.total(), 1)

    def fewest_crossings(self) -> Point:
        """The placement with the fewest crossings, and of those the one with the fewest lines."""
        return self.weigh(1, 1 + sum(self.sizes.values()))

    def weigh(self, line: int, crossing: int) -> Point:
        """The best placement when a line costs `line` and a crossing `crossing`."""
        residual = preflow_push(self._network(line, crossing), SOURCE, SINK)
        return self.point(functions(self.forced | _side(residual)))

    def _network(self, line: int, crossing: int) -> nx.DiGraph[object]:
        """The flow network. An arc without capacity is infinite; all that the rules force is one node with the source."""
        network: nx.DiGraph[object] = nx.DiGraph()
        network.add_nodes_from((SOURCE, SINK))
        free = {key: size for key, size in self.sizes.items() if placed(key) not in self.forced}
        entering = Counter({key: count for key, count in self.weights.entries.items() if key in free})
        for one, other in {(min(pair), max(pair)) for pair in self.weights.calls}:
            count = self.weights.between(one, other)
            if one in free and other in free:
                network.add_edge(placed(one), placed(other), capacity=crossing * count)
                network.add_edge(placed(other), placed(one), capacity=crossing * count)
            elif one in free or other in free:
                entering[one if one in free else other] += count
        for key, size in free.items():
            network.add_edge(SOURCE, placed(key), capacity=crossing * entering[key])
            network.add_edge(placed(key), SINK, capacity=line * size)
        for cause in self.rules.arcs.keys() - self.forced:
            for effect in self.rules.arcs[cause].keys() - self.forced:
                network.add_edge(cause, effect)
                network[cause][effect].pop("capacity", None)
        return network


def _side(residual: nx.DiGraph[object]) -> set[Node]:
    """What the source still reaches: the smallest source side of all minimum cuts."""
    found: set[object] = {SOURCE}
    todo: deque[object] = deque(found)
    while todo:
        for node, arc in residual[todo.popleft()].items():
            if node not in found and arc["capacity"] > arc["flow"]:
                found.add(node)
                todo.append(node)
    return {node for node in found if isinstance(node, Node)}
