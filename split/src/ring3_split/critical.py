"""Functions that a set of functions calls, each with the shortest chain of calls to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ring3_split.graph import Edge, Graph


@dataclass(frozen=True)
class Chain:
    """A way from a start to a function.

    `edges[i]` leads from `functions[i]` to `functions[i + 1]`.
    """

    functions: tuple[str, ...]
    edges: tuple[Edge, ...] = ()

    @property
    def root(self) -> str:
        """Where the chain starts."""
        return self.functions[0]


def propagate(graph: Graph, start: Iterable[str]) -> dict[str, Chain]:
    """The functions that `start` may call, directly or not, and `start` itself.

    propagation. [Microdrivers 2].

    Of chains of one length, the one whose start comes first by name is given, and direct calls come
    before indirect ones, so that the answer is the same each time.
    """
    found = {function: Chain((function,)) for function in sorted(set(start))}
    queue = deque(found)
    while queue:
        caller = queue.popleft()
        for callee, edges in sorted(
            graph.calls.get(caller, {}).items(),
            key=lambda item: (item[1][0].how != "direct", item[0]),
        ):
            if callee not in found:
                chain = found[caller]
                found[callee] = Chain(
                    (*chain.functions, callee), (*chain.edges, min(edges, key=_plainness))
                )
                queue.append(callee)
    return found


def _plainness(edge: Edge) -> tuple[bool, bool, int]:
    return edge.how != "direct", edge.how == "signature", edge.line
