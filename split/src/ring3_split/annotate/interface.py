"""The interface of a plan: what the halves call of each other, and which fields each side touches.

Everything here is stored as JSON for the code generator; docs/split.md says what each field means.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from ring3_split.annotate.crossing import crossing
from ring3_split.annotate.halves import Halves
from ring3_split.annotate.layouts import Layouts
from ring3_split.annotate.whole import whole
from ring3_split.graph import Graph
from ring3_split.model import Access, Data, Stored, Variable

Ways = dict[str, str]  # field or global -> "r", "w" or "rw"


class Parameter(msgspec.Struct, omit_defaults=True):
    """A parameter of a function at the border."""

    name: str
    type: str


class Entry(msgspec.Struct, omit_defaults=True):
    """A user function that the kernel or the kernel half calls: an upcall."""

    function: str
    where: str  # path:line
    returns: str
    parameters: list[Parameter]
    called_by: list[str]  # "net_device_ops.ndo_open", "request_irq:1", or the id of a function of the kernel half
    functions: int  # user functions of the driver that it may run, itself included
    reads: list[str]  # fields
    writes: list[str]
    copy_in: dict[str, list[tuple[int, int]]] = {}  # by struct: bytes to copy to the user half, (offset, size)
    copy_out: dict[str, list[tuple[int, int]]] = {}  # by struct: bytes that may come back
    whole: list[str] = []  # structs of which it reads members by computed offsets: no list of fields is complete


class Downcall(msgspec.Struct, omit_defaults=True):
    """A function that the user half calls and that runs in the kernel."""

    function: str  # id of a driver's function, or symbol of the kernel
    way: str  # "driver", one of api.toml, or "?"
    sites: list[str]  # path:line
    reason: str = ""
    rtnl: bool = False
    waits: str = ""
    symbols: bool = False  # functions of the driver are handed to it
    arguments: dict[int, str] = {}  # notes of api.toml on pointers; one without is an object that the tracker knows
    result: str = ""
    frees: int | None = None  # the argument whose object is gone afterwards


class Use(msgspec.Struct, omit_defaults=True):
    """A member that the user half touches."""

    type: str
    offset: int
    size: int
    user: str  # "r", "w", "rw"
    kernel: str = ""  # the same, of the driver's kernel half
    bits: tuple[int, int] | None = None
    struct: str = ""  # an embedded struct, which has uses of its own


class Type(msgspec.Struct, omit_defaults=True):
    """A struct of which the user half touches members."""

    where: str
    size: int
    count: int  # members
    members: dict[str, Use]
    behind: str = ""  # the struct behind which it lies in one allocation: "net_device"
    by: str = ""  # the function that leads here from there: "netdev_priv"


class Shared(msgspec.Struct, omit_defaults=True):
    """A global variable that the user half touches."""

    user: str  # "r", "w", "rw"
    kernel: str = ""  # the same, of the driver's kernel half
    type: str = ""
    where: str = ""  # "" of a variable of the kernel
    way: str = ""  # of a variable of the kernel: one of api.toml, or "?"
    users: list[str] = []  # of a variable of the kernel: the functions that touch it


class Interface(msgspec.Struct):
    """The border of a plan."""

    driver: str
    kernel: str
    entries: list[Entry]
    downcalls: list[Downcall]
    types: dict[str, Type]
    variables: dict[str, Shared]


def interface(halves: Halves, data: Iterable[Data], layouts: Layouts, driver: str, kernel: str) -> Interface:
    """The border of a driver's halves."""
    data = tuple(data)
    touched = Touched(data, layouts)
    touched.whole = whole(halves.graph, data, layouts)
    up, down = entries(halves), _downcalls(halves)
    touched.crossing = crossing(halves, data, layouts, [*up, *(one.function for one in down if one.way == "driver")])
    return Interface(
        driver=driver,
        kernel=kernel,
        entries=[_entry(halves, touched, function, by) for function, by in sorted(up.items())],
        downcalls=down,
        types=_behind(halves, data, _types(touched.fields(halves.user_code), touched.fields(halves.kernel_code), layouts)),
        variables=_variables(touched, halves, data),
    )


def entries(halves: Halves) -> dict[str, list[str]]:
    """User functions that are called from outside the user half, each with who calls it."""
    graph = halves.graph
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for function in halves.user - halves.kernel:
        for stored in graph.entries.get(function, ()):
            found[function][caller(stored)] = None
    for function in sorted(halves.kernel_code):
        for callee in graph.calls.get(function, {}):
            if callee in halves.user - halves.kernel:
                found[callee][function] = None
    return {function: list(by) for function, by in found.items()}


def caller(stored: Stored) -> str:
    """How the kernel knows a function: the field that it is stored to, or the function that it is passed to."""
    return stored.field or (f"{stored.api}:{stored.argument}" if stored.api else stored.object or "address taken")


class Touched:
    """Which fields and globals functions touch."""

    def __init__(self, data: tuple[Data, ...], layouts: Layouts) -> None:
        self.layouts = layouts
        self.whole: dict[str, set[str]] = {}  # by function: structs that it reaches into by computed offsets
        self.crossing: set[str] = set()  # structs that cross; all others are private to a half
        self.accesses: dict[str, tuple[Access, ...]] = {}
        self.variables: dict[str, dict[str, str]] = {}
        for unit in data:
            # An inline of a header is seen in every unit; once is enough.
            self.accesses = {**unit.accesses, **self.accesses}
            self.variables = {**unit.globals, **self.variables}

    def fields(self, functions: Iterable[str]) -> Ways:
        """Fields that these functions touch."""
        found: Ways = {}
        for function in functions:
            for access in self.accesses.get(function, ()):
                if access.field.rpartition(".")[0] in self.crossing and not self.layouts.omitted(access.field):
                    found[access.field] = ways(found.get(access.field, ""), self._way(access))
                    # Embedded structs on the way there: their own members say how they are touched.
                    for outer in (*around(access.within), *around(access.field.rpartition(".")[0])):
                        found.setdefault(outer, "")
        return dict(sorted(found.items()))

    def globals(self, functions: Iterable[str]) -> Ways:
        """Global variables that these functions touch."""
        found: Ways = {}
        for function in functions:
            for name, way in self.variables.get(function, {}).items():
                found[name] = ways(found.get(name, ""), way.replace("a", "rw"))
        return dict(sorted(found.items()))

    def _way(self, access: Access) -> str:
        """The address of an embedded struct says nothing: its own members do. Any other address may be read and written."""
        if access.way != "a":
            return access.way
        member = self.layouts.member(access.field)
        return "" if member is not None and member.struct and member.struct in self.layouts else "rw"


def around(field: str) -> Iterator[str]:
    """A field, and the fields of unnamed structs that it lies in: `S.u.v.m`, `S.u.v`, `S.u`."""
    while "." in field:
        yield field
        field = field.rpartition(".")[0]


def ways(one: str, other: str) -> str:
    """The union of two ways."""
    return "".join(way for way in "rw" if way in one + other)


def _entry(halves: Halves, touched: Touched, function: str, by: list[str]) -> Entry:
    code = halves.reachable(function)
    fields = touched.fields(code)
    reads = [name for name, way in fields.items() if "r" in way]
    writes = [name for name, way in fields.items() if "w" in way]
    facts = halves.graph.functions[function]
    return Entry(
        function=function,
        where=f"{facts.file}:{facts.line}",
        returns=facts.returns,
        parameters=[Parameter(parameter.name, parameter.type) for parameter in facts.parameters],
        called_by=by,
        functions=sum(halves.graph.own(one) for one in code),
        reads=reads,
        writes=writes,
        copy_in=touched.layouts.ranges(reads),
        copy_out=touched.layouts.ranges(writes),
        whole=sorted(touched.crossing & set().union(*(touched.whole.get(one, set()) for one in code))),
    )


def _downcalls(halves: Halves) -> list[Downcall]:
    graph = halves.graph
    found: dict[str, list[str]] = defaultdict(list)
    for function in sorted(halves.user):
        for callee, edges in graph.calls.get(function, {}).items():
            if callee in halves.kernel - halves.user:
                found[callee] += [place(graph, function, edge.line) for edge in edges]
    downcalls = [Downcall(function, "driver", sites) for function, sites in sorted(found.items())]
    for symbol, sites in halves.kernel_calls().items():
        api = halves.apis.of(symbol)
        at = [place(graph, site.function, site.line) + (f" (through {site.through})" if site.through else "") for site in sites]
        if api is None:
            downcalls.append(Downcall(symbol, "?", at))
        else:
            known = (api.reason, api.rtnl, api.waits, api.symbols, api.arguments, api.result, api.frees)
            downcalls.append(Downcall(symbol, api.way, at, *known))
    return downcalls


def place(graph: Graph, function: str, line: int) -> str:
    """A place in a function's file."""
    return f"{graph.functions[function].file}:{line}"


def _types(user: Ways, kernel: Ways, layouts: Layouts) -> dict[str, Type]:
    found: dict[str, Type] = {}
    for name, way in user.items():
        struct, _, _ = name.rpartition(".")
        layout, member = layouts.get(struct), layouts.member(name)
        if layout is None or member is None or (not way and not member.struct):
            continue
        one = found.setdefault(struct, Type(f"{layout.file}:{layout.line}", layout.size, layouts.count(struct), {}))
        one.members[member.name] = Use(
            member.type, member.offset, member.size, way, kernel.get(name, ""), member.bits, member.struct
        )
    return found


def _behind(halves: Halves, data: tuple[Data, ...], types: dict[str, Type]) -> dict[str, Type]:
    """Notes which objects lie behind another in one allocation: what a function that gives such a place is used as."""
    for unit in data:
        for function in halves.user_code & unit.shapes.keys():
            for shape in unit.shapes[function]:
                accessor = shape.pointer.removeprefix("call ")
                if shape.what == "cast" and accessor in halves.apis.areas and shape.detail in types:
                    types[shape.detail].behind, types[shape.detail].by = halves.apis.areas[accessor], accessor
    return types


def _variables(touched: Touched, halves: Halves, data: tuple[Data, ...]) -> dict[str, Shared]:
    own: dict[str, Variable] = {}
    for unit in data:
        own |= {name: one for name, one in unit.variables.items() if not one.external}
    kernel = touched.globals(halves.kernel_code)
    found = {}
    for name, way in touched.globals(halves.user_code).items():
        one = own.get(name)
        if touched.layouts.omitted(name):
            continue
        if one:
            found[name] = Shared(way, kernel.get(name, ""), one.type, f"{one.file}:{one.line}" if one.file else "")
        else:
            users = sorted(function for function in halves.user_code if name in touched.variables.get(function, ()))
            found[name] = Shared(way, kernel.get(name, ""), way=halves.apis.variable(name) or "?", users=users)
    return found
