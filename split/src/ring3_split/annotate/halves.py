"""The two halves of a plan as code.

Which functions run where, with the header inlines that are compiled into the user half.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ring3_split.annotate.api import Apis
from ring3_split.graph import Graph
from ring3_split.model import Indirect
from ring3_split.prototypes import Prototype


@dataclass(frozen=True)
class Site:
    """A place in the driver's own code from which a function of the kernel is called."""

    function: str  # id
    line: int
    through: str = ""  # the header inline that calls it, when the driver does not itself


@dataclass
class Halves:
    """A placement of a driver's functions, and what follows from it for calls."""

    graph: Graph
    apis: Apis
    user: set[str]  # the driver's own functions that run in the user half
    kernel: set[str]  # ... in the kernel half; a replicated function is in both
    prototypes: Mapping[str, Prototype] = field(default_factory=dict)  # of functions of the kernel
    _closures: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict)

    @cached_property
    def user_code(self) -> set[str]:
        """User functions and the inlines that are compiled in with them."""
        return self.user | self._inlines(self.user)

    @cached_property
    def kernel_code(self) -> set[str]:
        """Kernel functions and the inlines that they use."""
        return self.kernel | self._inlines(self.kernel)

    def reachable(self, entry: str) -> set[str]:
        """User functions and their inlines that an upcall of `entry` may run."""
        found, todo = {entry}, [entry]
        while todo:
            for callee in self.graph.calls.get(todo.pop(), {}):
                if callee not in found and (callee in self.user or self.inlined(callee)):
                    found.add(callee)
                    todo.append(callee)
        return found

    def compiled(self, function: str) -> set[str]:
        """A function and the inlines that are compiled in with it."""
        return {function} | self._inlines([function])

    def inlined(self, function: str) -> bool:
        """Whether a function is an inline of a header that is taken apart, not one of api.toml."""
        return (
            not self.graph.own(function)
            and self.apis.of(self.graph.functions[function].name) is None
        )

    def called(self, code: Iterable[str]) -> list[str]:
        """The functions of the kernel, inlines that api.toml names included, that code calls."""
        found: set[str] = set()
        for one in code:
            found |= self.graph.external.get(one, {}).keys()
            found |= {_pointer(pointer) for pointer in self.graph.leaving.get(one, ())}
            inlines = (
                callee for callee in self.graph.calls.get(one, {}) if not self.graph.own(callee)
            )
            found |= {
                self.graph.functions[callee].name for callee in inlines if not self.inlined(callee)
            }
        return sorted(found)

    def callees(self) -> int:
        """Distinct kernel functions, header inlines included, that user functions call directly."""
        inlines = {
            callee
            for one in self.user
            for callee in self.graph.calls.get(one, {})
            if not self.graph.own(callee)
        }
        return len(inlines) + len(
            {symbol for one in self.user for symbol in self.graph.external.get(one, {})}
        )

    def kernel_calls(self) -> dict[str, list[Site]]:
        """Functions of the kernel that user functions call.

        Symbol -> places in the driver's own code.
        """
        found: dict[str, list[Site]] = {}
        for function in sorted(self.user):
            for symbol, calls in self.graph.external.get(function, {}).items():
                found.setdefault(symbol, []).extend(Site(function, call.line) for call in calls)
            for pointer in self.graph.leaving.get(function, ()):
                found.setdefault(_pointer(pointer), []).append(Site(function, pointer.line))
            for callee, edges in self.graph.calls.get(function, {}).items():
                if self.graph.own(callee):
                    continue
                name = self.graph.functions[callee].name
                symbols, through = (
                    ({name}, "") if not self.inlined(callee) else (self._closure(callee)[1], name)
                )
                for symbol in sorted(symbols):
                    found.setdefault(symbol, []).extend(
                        Site(function, edge.line, through) for edge in edges
                    )
        return dict(sorted(found.items()))

    def _inlines(self, functions: Iterable[str]) -> set[str]:
        callees = (
            callee for function in functions for callee in self.graph.calls.get(function, {})
        )
        return set().union(
            *(self._closure(callee)[0] for callee in callees if self.inlined(callee))
        )

    def _closure(self, inline: str) -> tuple[set[str], set[str]]:
        """The inlines that an inline calls, itself included, and the kernel functions they call."""
        if inline not in self._closures:
            inlines, symbols, todo = {inline}, set[str](), [inline]
            while todo:
                function = todo.pop()
                symbols |= self.graph.external.get(function, {}).keys()
                symbols |= {_pointer(pointer) for pointer in self.graph.leaving.get(function, ())}
                for callee in self.graph.calls.get(function, {}).keys() - inlines:
                    if self.inlined(callee):
                        inlines.add(callee)
                        todo.append(callee)
                    elif not self.graph.own(callee):
                        symbols.add(self.graph.functions[callee].name)
            self._closures[inline] = (inlines, symbols)
        return self._closures[inline]


def _pointer(call: Indirect) -> str:
    """What a call through a pointer to a function of the kernel is known by."""
    return call.field or (
        f"parameter {call.parameter}"
        if call.parameter >= 0
        else f"a pointer to a function of type {call.signature}"
    )


def halves(
    graph: Graph,
    apis: Apis,
    sides: Mapping[str, str],
    keep: Iterable[str] = (),
    prototypes: Mapping[str, Prototype] | None = None,
) -> Halves:
    """The halves of a placement ("kernel", "user" or "both" for each function id).

    A function that the placement does not name is of the kernel half, and so are those in `keep`,
    whatever the placement says.
    """
    kept = set(keep)
    own = [function for function, _ in graph.owned()]
    placed = {
        function: "kernel" if function in kept else str(sides.get(function, "kernel"))
        for function in own
    }
    return Halves(
        graph,
        apis,
        user={function for function, side in placed.items() if side in ("user", "both")},
        kernel={function for function, side in placed.items() if side in ("kernel", "both")},
        prototypes=prototypes or {},
    )
