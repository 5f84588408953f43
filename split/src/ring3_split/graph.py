"""The call graph of a driver: its units linked, and its indirect calls resolved.

# Names
Functions are known by their id. A symbol is looked up as the linker and the module loader would:
static functions of the unit, then functions of the module, then what the other modules of the
driver export. What is found nowhere is the kernel's.

# Precision
`signature` is the paper's pointer analysis: a call through a pointer may reach any function whose
address is taken and whose type is that of the pointer, "conservative in the absence of type-casts"
[Microdrivers 2]. `field` looks at where the pointer came from: a call through a pointer that was
loaded from a field reaches the functions that were stored to that field; a call of a parameter
reaches what the callers pass. It falls back to the type for pointers of unknown origin, and for
functions whose address went to a place that is not known. Pointers that one field gets from another
are followed where the driver's data were read; where not, a field of the driver's own that no
function is stored to is called by its type.

# Entries
A function is an entry when its address goes where the kernel calls it: to a field of a struct of
the kernel's headers, to an argument of a function that is not the driver's, or to a place from
which no call of the driver could take it. The init and exit functions of a module, and what it
exports, are entries too.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ring3_split import synchronous
from ring3_split.carried import carried
from ring3_split.entries import Entries
from ring3_split.indirect import Flows, How, Place, Precision, Taken, Targets, is_header
from ring3_split.model import Call, Function, Indirect, ModuleFacts, Region, Shape, Stored, Unit

if TYPE_CHECKING:
    from ring3_split.driver import Driver

EXPORT = "EXPORT_SYMBOL"
LOADER = {
    "init_module": "module.init",
    "cleanup_module": "module.exit",
}  # alias -> the field by which the loader calls it


@dataclass(frozen=True)
class Edge:
    """One place where a function calls another."""

    line: int
    how: How
    held: tuple[Region, ...] = ()  # what may be held there
    # Of an indirect call: the field that the pointer was loaded from, or "parameter N", or "sort:3"
    # where the kernel calls what it is passed at once.
    field: str = ""


@dataclass
class Graph:
    """A driver's calls.

    Inlines of the kernel's headers are nodes as any other; `own` tells them apart.
    """

    driver: Driver
    precision: Precision
    functions: dict[str, Function] = field(default_factory=dict)
    calls: dict[str, dict[str, tuple[Edge, ...]]] = field(default_factory=dict)
    external: dict[str, dict[str, tuple[Call, ...]]] = field(
        default_factory=dict
    )  # caller -> symbol of the kernel -> calls
    entries: dict[str, tuple[Stored, ...]] = field(
        default_factory=dict
    )  # what the kernel may call, and how it knows it
    stored: dict[str, tuple[Stored, ...]] = field(
        default_factory=dict
    )  # every place that takes a function's address
    leaving: dict[str, tuple[Indirect, ...]] = field(
        default_factory=dict
    )  # indirect calls without a target in the driver
    exports: dict[str, str] = field(default_factory=dict)  # exported symbol -> id

    def own(self, function: str) -> bool:
        """Whether a function is the driver's own, and not an inline of a kernel header."""
        return not is_header(self.functions[function].file)

    def owned(self) -> Iterator[tuple[str, Function]]:
        """The driver's own functions."""
        return (
            (key, function)
            for key, function in self.functions.items()
            if not is_header(function.file)
        )

    def callers(self) -> dict[str, dict[str, tuple[Edge, ...]]]:
        """The calls, turned round: callee -> caller -> edges."""
        turned: dict[str, dict[str, tuple[Edge, ...]]] = {}
        for caller, callees in self.calls.items():
            for callee, edges in callees.items():
                turned.setdefault(callee, {})[caller] = edges
        return turned

    def find(self, name: str) -> list[str]:
        """The ids that a person may mean: an id, the end of one, or a function's name."""
        if name in self.functions:
            return [name]
        return sorted(
            key
            for key, function in self.functions.items()
            if function.name == name or key.endswith(f"/{name}")
        )


def lines(function: Function) -> int:
    """Source lines of a function, from its first to its last."""
    return function.end - function.line + 1


def link(driver: Driver, precision: Precision = "signature") -> Graph:
    """The graph of a driver at a precision."""
    return link_each(driver, (precision,))[0]


def link_each(
    driver: Driver, precisions: Iterable[Precision], *, carry: bool = True
) -> list[Graph]:
    """The graphs of a driver at several precisions, which share all but the calls through pointers.

    `carry` says whether locks that are taken in one unit and given back in another are followed.
    """
    linker = _Linker(Graph(driver, "signature"))
    graph = linker.graph
    names = [_globals(module) for module in driver.modules]
    for module, symbols in zip(driver.modules, names, strict=True):
        graph.exports |= {
            symbol: symbols[symbol]
            for unit in module.units
            for symbol in unit.exports
            if symbol in symbols
        }
    linker.taken.exporting = bool(graph.exports)
    for module, symbols in zip(driver.modules, names, strict=True):
        visible = graph.exports | symbols
        for unit in module.units:
            linker.unit(unit, visible)
    if driver.modules:
        linker.exported(driver.modules[0], names[0])
    linker.finish()
    graphs = [linker.at(precision) for precision in precisions]
    return [carried(graph) for graph in graphs] if carry else graphs


def _flows(graph: Graph) -> Flows | None:
    """Where the pointers go that come from fields and parameters.

    None where the driver's data were not read.
    """
    data = graph.driver.data
    if not data:
        return None
    ids = {function.name: key for key, function in graph.functions.items()}
    flows: dict[str, dict[Place, None]] = defaultdict(dict)
    for function, shape in (
        (key, shape) for one in data for key, some in one.shapes.items() for shape in some
    ):
        kind, _, name = shape.pointer.partition(" ")
        if shape.what == "flow" and kind in ("field", "param"):
            stored = _flow(shape)
            place = Place(stored, ids.get(stored.api, "") if stored.api else "", function)
            flows[name if kind == "field" else f"{function}:{name}"][place] = None
    return {name: tuple(places) for name, places in flows.items()}


def _flow(shape: Shape) -> Stored:
    """A place that a pointer is handed on to, as if a function were: "callee:2", "field S.M".

    Else somewhere.
    """
    if shape.detail.startswith("field "):
        return Stored("", shape.line, field=shape.detail.removeprefix("field "))
    api, _, argument = shape.detail.rpartition(":")
    return (
        Stored("", shape.line, api=api, argument=int(argument))
        if api and argument.isdigit()
        else Stored("", shape.line)
    )


def _globals(module: ModuleFacts) -> dict[str, str]:
    """The symbols that a module's units see of each other."""
    names: dict[str, str] = {}
    for unit in module.units:
        own = {function.name: function.id for function in unit.functions}
        names |= {function.name: function.id for function in unit.functions if not function.static}
        names |= {alias: own[target] for alias, target in unit.aliases.items() if target in own}
    return names


class _Linker:
    """What is known while a graph is made.

    The inner dicts are ordered sets: a header's inline is met once a unit.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.edges: dict[str, dict[str, dict[Edge, None]]] = defaultdict(lambda: defaultdict(dict))
        self.external: dict[str, dict[str, dict[Call, None]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self.indirect: dict[tuple[str, Indirect], tuple[Region, ...]] = {}
        self.taken = Taken(graph.functions)
        self.flows: Flows | None = None

    def unit(self, unit: Unit, symbols: dict[str, str]) -> None:
        """Adds a unit's functions, direct calls and taken addresses."""
        names = ChainMap({function.name: function.id for function in unit.functions}, symbols)
        names |= {alias: names[target] for alias, target in unit.aliases.items() if target in names}
        self.taken.structs |= unit.structs
        for function in unit.functions:
            if function.id in self.graph.functions and is_header(function.file):
                continue  # the same inline, seen in another unit
            self.graph.functions.setdefault(function.id, function)
            self._function(function, names)
        for stored in unit.stored:
            self.taken.add(stored, names, ("", stored.line))
        for alias, place in LOADER.items():
            if alias in unit.aliases and alias in names:
                function = self.graph.functions[names[alias]]
                stored = Stored(function.name, function.line, field=place, object="__this_module")
                self.taken.known[function.id].append(stored)

    def _function(self, function: Function, names: Mapping[str, str]) -> None:
        key = function.id
        for call in function.calls:
            callee = names.get(call.callee)
            if callee is not None:
                edge = Edge(
                    call.line, "direct", tuple(function.regions[index] for index in call.held)
                )
                self.edges[key][callee][edge] = None
                self.taken.sites[callee].add((key, call.line))
            else:
                self.external[key][call.callee][call] = None
        for pointer in function.indirect:
            self.indirect[key, pointer] = tuple(function.regions[index] for index in pointer.held)
        for stored in function.stored:
            self.taken.add(stored, names, (key, stored.line))
            if synchronous.argument(stored) and stored.function in names:
                self._at_once(function, names[stored.function], stored)

    def _at_once(self, function: Function, target: str, stored: Stored) -> None:
        """Adds the call of a callback that the kernel makes before it returns to who passed it."""
        at = (
            call.held
            for call in function.calls
            if (call.callee, call.line) == (stored.api, stored.line)
        )
        held = tuple(function.regions[index] for index in next(at, ()))
        self.edges[function.id][target][
            Edge(stored.line, "field", held, synchronous.argument(stored))
        ] = None

    def exported(self, module: ModuleFacts, names: dict[str, str]) -> None:
        """Notes that other modules may call what the driver's own module exports."""
        for symbol in sorted(
            {symbol for unit in module.units for symbol in unit.exports if symbol in names}
        ):
            function = self.graph.functions[names[symbol]]
            self.taken.known[function.id].append(Stored(symbol, function.line, api=EXPORT))

    def finish(self) -> None:
        """Sets the direct calls, and finds the entries."""
        graph = self.graph
        self.flows = _flows(graph)
        entries = Entries(self.taken, self.indirect, self.flows)
        graph.entries = entries.find()
        for (caller, target), stored in entries.at_once.items():
            self._at_once(graph.functions[caller], target, stored)
        graph.calls = {
            caller: {callee: tuple(edges) for callee, edges in callees.items()}
            for caller, callees in self.edges.items()
        }
        graph.external = {
            caller: {name: tuple(calls) for name, calls in names.items()}
            for caller, names in self.external.items()
        }
        graph.stored = {
            function: tuple(dict.fromkeys(place.stored for place in places))
            for function, places in self.taken.places.items()
        }

    def at(self, precision: Precision) -> Graph:
        """The same graph with the calls through pointers resolved."""
        targets = Targets(self.taken, precision, self.flows)
        leaving: dict[str, list[Indirect]] = defaultdict(list)
        edges: dict[str, dict[str, dict[Edge, None]]] = defaultdict(lambda: defaultdict(dict))
        for (caller, call), held in self.indirect.items():
            found = targets.of(caller, call)
            for target, how in found.items():
                origin = call.field or (
                    f"parameter {call.parameter}" if call.parameter >= 0 else ""
                )
                edges[caller][target][Edge(call.line, how, held, origin)] = None
            if not found:
                leaving[caller].append(call)
        calls = dict(self.graph.calls)
        for caller, callees in edges.items():
            direct = calls.get(caller, {})
            calls[caller] = direct | {
                callee: (*direct.get(callee, ()), *found) for callee, found in callees.items()
            }
        left = {caller: tuple(some) for caller, some in leaving.items()}
        return replace(self.graph, precision=precision, calls=calls, leaving=left)
