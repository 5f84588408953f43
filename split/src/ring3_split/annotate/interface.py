"""The interface of a plan: what the halves call of each other, and which fields each side touches.

Everything here is stored as JSON for the code generator; docs/split.md says what each field means.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ring3_split.annotate import entered
from ring3_split.annotate.addresses import Addresses
from ring3_split.annotate.border import (
    Allocated,
    Downcall,
    Entry,
    Interface,
    Parameter,
    Shared,
    Type,
    Use,
    Ways,
    Word,
)
from ring3_split.annotate.crossing import crossing
from ring3_split.annotate.halves import Halves
from ring3_split.annotate.kept import interior, kept
from ring3_split.annotate.layouts import Layouts
from ring3_split.annotate.locks import locks
from ring3_split.annotate.touched import Touched
from ring3_split.annotate.validate import checks
from ring3_split.annotate.visible import Visible
from ring3_split.annotate.whole import whole
from ring3_split.graph import Graph
from ring3_split.indirect import is_header
from ring3_split.model import Data, Stored, Variable


def interface(
    halves: Halves, data: Iterable[Data], layouts: Layouts, driver: str, kernel: str
) -> Interface:
    """The border of a driver's halves."""
    data = tuple(data)
    touched = Touched(data, layouts, Addresses(halves, data, layouts))
    touched.whole = whole(halves.graph, data, layouts)
    up, down = entries(halves), _downcalls(halves)
    touched.crossing = crossing(
        halves, data, layouts, [*up, *(one.function for one in down if one.way == "driver")]
    )
    visible = Visible(
        halves,
        touched,
        {key: list(map(caller, places)) for key, places in halves.graph.entries.items()},
    )
    types, words = _types(visible.user, visible.kernel, layouts), _words(halves, touched)
    _mark(types, words)
    return Interface(
        driver=driver,
        kernel=kernel,
        entries=[
            entered.complete(_entry(halves, touched, key, by), halves, touched)
            for key, by in sorted(up.items())
        ],
        downcalls=[visible.complete(one) for one in down],
        types=_behind(halves, data, types),
        variables=_variables(touched, halves, data),
        words=words,
        kept=kept(halves, data, touched),
        interior=interior(halves, data, types),
        locks=locks(halves),
        checks=checks(halves, data, touched, types),
    )


def _words(halves: Halves, touched: Touched) -> dict[str, Word]:
    """The words that user functions change by atomic operations.

    One of the kernel's structs, or of both halves, is shared.
    """
    kernel = touched.fields(halves.kernel_code)
    found = {}
    for name, sites in touched.words(halves.user_code).items():
        layout = touched.layouts.get(name.rpartition(".")[0])
        shared = name in kernel or layout is None or is_header(layout.file)
        at = sorted(place(halves.graph, function, line) for function, line in sites)
        found[name] = Word("shared" if shared else "local", sorted(set(sites.values())), at)
    return found


def _mark(types: dict[str, Type], words: dict[str, Word]) -> None:
    for name, word in words.items():
        struct, _, member = name.rpartition(".")
        if word.place == "shared" and struct in types and member in types[struct].members:
            types[struct].members[member].atomic = True


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
    """How the kernel knows a function.

    The field that it is stored to, or the function that it is passed to.
    """
    return stored.field or (
        f"{stored.api}:{stored.argument}" if stored.api else stored.object or "address taken"
    )


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
        copy_in=touched.layouts.ranges((*reads, *writes)),
        copy_out=touched.layouts.members(writes),
        calls=halves.called(code),
        variables={
            name: way
            for name, way in touched.globals(code).items()
            if not touched.layouts.omitted(name)
        },
        whole=sorted(
            touched.crossing & set().union(*(touched.whole.get(one, set()) for one in code))
        ),
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
        at = [
            place(graph, site.function, site.line)
            + (f" (through {site.through})" if site.through else "")
            for site in sites
        ]
        if api is None:
            downcalls.append(Downcall(symbol, "?", at))
        else:
            known = (
                api.reason,
                api.rtnl,
                api.waits,
                api.symbols,
                api.arguments,
                api.result,
                api.frees,
            )
            made = Allocated(**api.allocates) if api.allocates else None
            downcalls.append(
                Downcall(symbol, api.way, at, *known, allocates=made, task=api.task, word=api.word)
            )
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
        one = found.setdefault(
            struct, Type(f"{layout.file}:{layout.line}", layout.size, layouts.count(struct), {})
        )
        one.members[member.name] = Use(
            member.type,
            member.offset,
            member.size,
            way,
            kernel.get(name, ""),
            member.bits,
            member.struct,
        )
    return found


def _behind(halves: Halves, data: tuple[Data, ...], types: dict[str, Type]) -> dict[str, Type]:
    """Notes which objects lie behind another in one allocation.

    What a function that gives such a place is used as.
    """
    for unit in data:
        for function in halves.user_code & unit.shapes.keys():
            for shape in unit.shapes[function]:
                accessor = shape.pointer.removeprefix("call ")
                if shape.what == "cast" and accessor in halves.apis.areas and shape.detail in types:
                    types[shape.detail].behind, types[shape.detail].by = (
                        halves.apis.areas[accessor],
                        accessor,
                    )
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
            found[name] = Shared(
                way, kernel.get(name, ""), one.type, f"{one.file}:{one.line}" if one.file else ""
            )
        else:
            users = sorted(
                function
                for function in halves.user_code
                if name in touched.variables.get(function, ())
            )
            found[name] = Shared(
                way, kernel.get(name, ""), way=halves.apis.variable(name) or "?", users=users
            )
    return found
