"""The minimum cut: the kernel half that costs least, in lines kept there and crossings.

The network [Microdrivers 4]: a source, which is the kernel, and a sink, which is the process. A
function on the source's side pays its lines; a call whose ends are on two sides pays the crossings,
and so does a call of the kernel into the sink's side. Pins and rules are arcs of infinite capacity.
Capacities are integers: the price of a crossing is a fraction, and both weights are multiplied by
its parts. Of several minimum cuts the one with the smallest source side is taken, which keeps the
fewest lines in the kernel.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from ring3_split.graph import lines
from ring3_split.plan.constraints import Constraints, Node, State, constraints, functions
from ring3_split.plan.subject import Subject
from ring3_split.plan.weights import Weights

if TYPE_CHECKING:
    import networkx as nx

SOURCE, SINK = "source", "sink"


def problem(subject: Subject, weights: Weights, critical: bool) -> Problem:
    """The problem of cutting a driver; with `critical`, all that roots call stays in the kernel."""
    sizes = {key: lines(subject.graph.functions[key]) for key in (*subject.placed, *subject.copied)}
    return Problem(sizes, weights, constraints(subject, critical))


def crossings(kernel: Set[str], weights: Weights) -> int:
    """Calls that change sides, with those of the kernel into the user half."""
    between = sum(
        count
        for (one, other), count in weights.calls.items()
        if (one in kernel) != (other in kernel)
    )
    alone = weights.entries.keys() | (
        weights.downcalls.keys() | weights.registers.keys() if weights.whole else set()
    )
    return between + sum(weights.alone(key) for key in alone if key not in kernel)


def placed(key: str) -> Node:
    """The node of a function."""
    return Node(key, State.PLACED)


@dataclass(frozen=True)
class Point:
    """A cut: the functions of the kernel half, and what it costs both ways."""

    kernel: frozenset[str]
    lines: int
    crossings: int
    side: frozenset[Node] = field(
        default=frozenset(), compare=False, repr=False
    )  # the source side of the network


@dataclass(frozen=True)
class Problem:
    """All that a cut is made of."""

    sizes: Mapping[str, int]  # lines of each function of the driver
    weights: Weights
    rules: Constraints

    def point(self, side: frozenset[Node]) -> Point:
        """The costs of a source side."""
        kernel = functions(side)
        return Point(
            kernel, sum(self.sizes[key] for key in kernel), crossings(kernel, self.weights), side
        )

    @cached_property
    def forced(self) -> frozenset[Node]:
        """What the rules alone bring to the kernel's side."""
        return frozenset(self.rules.closure())

    def cut(self, cost: Fraction, least: Point | None = None, most: Point | None = None) -> Point:
        """The best placement when one crossing costs so many lines.

        A dearer crossing never makes the kernel half smaller: dividing all capacities by the price
        leaves only those to the sink to depend on it, and these fall as it rises [Gallo,
        Grigoriadis and Tarjan 1989]. So between `least`, the best placement of a lower price, and
        `most`, that of a higher one, only the functions in which the two differ are to be weighed.
        """
        inside = least.side if least else self.forced
        return self._weigh(cost.denominator, cost.numerator, inside, most.side if most else None)

    def fewest_lines(self) -> Point:
        """The placement with the fewest lines, and of those the one with the fewest crossings."""
        return self._weigh(
            1 + self.weights.calls.total() + sum(self.weights.alone(key) for key in self.sizes),
            1,
            self.forced,
            None,
        )

    def fewest_crossings(self) -> Point:
        """The placement with the fewest crossings, and of those the one with the fewest lines."""
        return self._weigh(1, 1 + sum(self.sizes.values()), self.forced, None)

    def _weigh(
        self, line: int, crossing: int, inside: frozenset[Node], limit: Set[Node] | None
    ) -> Point:
        """The best placement that has all of `inside`, and nothing that is not in `limit`."""
        # A third of the time in which a command starts, and most commands cut nothing.
        import networkx as nx  # noqa: PLC0415
        from networkx.algorithms.flow import preflow_push  # noqa: PLC0415

        network: nx.DiGraph[object] = nx.DiGraph()
        network.add_nodes_from((SOURCE, SINK))
        for (tail, head), capacity in self._capacities(line, crossing, inside, limit).items():
            if tail not in (head, SINK) and head != SOURCE:
                network.add_edge(tail, head, capacity=capacity)
        for cause in self.rules.arcs.keys() - inside:
            if limit is None or cause in limit:
                for effect in self.rules.arcs[cause].keys() - inside:
                    network.add_edge(cause, effect)
                    network[cause][effect].pop("capacity", None)  # infinite
        return self.point(inside | _side(preflow_push(network, SOURCE, SINK)))

    def _capacities(
        self, line: int, crossing: int, inside: Set[Node], limit: Set[Node] | None
    ) -> Counter[tuple[object, object]]:
        """The finite arcs.

        What is `inside` is one node with the source, what is beyond the limit one with the sink.
        """
        nodes: dict[str, object] = {}
        for key in self.sizes:
            node = placed(key)
            nodes[key] = (
                SOURCE if node in inside else node if limit is None or node in limit else SINK
            )
        capacities: Counter[tuple[object, object]] = Counter()
        for (one, other), count in self.weights.calls.items():
            capacities[nodes[one], nodes[other]] += crossing * count
            capacities[nodes[other], nodes[one]] += crossing * count
        for key, end in nodes.items():
            capacities[SOURCE, end] += crossing * self.weights.alone(key)
            capacities[end, SINK] += line * self.sizes[key]
        return capacities


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
