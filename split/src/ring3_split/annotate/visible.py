"""What a downcall must show to the kernel, and what it brings back.

The user half works on copies. While it runs, the kernel sees nothing of what it has set: so a
downcall hands over what the kernel may look at, and takes back what may have changed there. Of a
function of the driver that is what its code touches, with all that it calls in either half. Of a
function of the kernel the code is not at hand: it may touch what its arguments lead to by their
types. And one that publishes (registers a device, requests an interrupt, writes a register that may
raise one) lets other code of the driver run on everything: as in the unsplit driver, all that was
set before must be there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

from ring3_split.annotate.addresses import CONSTANT, DIRECTIONS, UNTOUCHED
from ring3_split.annotate.api import Api
from ring3_split.annotate.border import Downcall, Parameter, Ways
from ring3_split.annotate.declared import pointee
from ring3_split.annotate.halves import Halves
from ring3_split.annotate.touched import Touched, ways
from ring3_split.indirect import is_header

LOCAL = (
    "local",
    "memory",
    "never",
    "atomic",
    "?",
)  # ways that touch no object of the driver, or only the caller's own


@dataclass
class Visible:
    """The shared state of the two halves, as downcalls see it."""

    halves: Halves
    touched: Touched
    entries: Mapping[str, list[str]]  # every function that the kernel calls -> by what
    user: Ways = field(init=False)
    kernel: Ways = field(init=False)
    _reached: dict[str, set[str]] = field(default_factory=dict)
    _called_by: dict[str, Ways] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.user = self.touched.fields(self.halves.user_code)
        self.kernel = self.touched.fields(self.halves.kernel_code)

    def complete(self, downcall: Downcall) -> Downcall:
        """Adds to a downcall what must be seen in it."""
        if downcall.way == "driver":
            facts = self.halves.graph.functions[downcall.function]
            downcall.returns = facts.returns
            downcall.parameters = [Parameter(one.name, one.type) for one in facts.parameters]
            self._set(downcall, "code", self._code([downcall.function]))
            return downcall
        api = self.halves.apis.of(downcall.function)
        self._declare(downcall)
        if api is None or api.way in LOCAL:
            return downcall
        self._of_kernel(downcall, api)
        return downcall

    def _declare(self, downcall: Downcall) -> None:
        """The prototype of a function of the kernel; an inline of a header has its own."""
        graph = self.halves.graph
        inline = next(
            (
                one
                for key, one in graph.functions.items()
                if one.name == downcall.function and not graph.own(key)
            ),
            None,
        )
        prototype = self.halves.prototypes.get(downcall.function)
        if inline is not None:
            downcall.returns, downcall.variadic = inline.returns, inline.variadic
            downcall.parameters = [Parameter(one.name, one.type) for one in inline.parameters]
        elif prototype is not None:
            downcall.returns, downcall.variadic = prototype.returns, prototype.variadic
            downcall.parameters = [
                Parameter(f"arg{index}", one) for index, one in enumerate(prototype.parameters)
            ]

    def _of_kernel(self, downcall: Downcall, api: Api) -> None:
        if api.way == "lock":
            # Who takes a lock must see what was done under it, and who gives it back must show it.
            gives = "unlock" in downcall.function or downcall.function.startswith("up")
            all_ways = self._all()
            self._set(
                downcall,
                "all",
                {name: way.replace("w" if gives else "r", "") for name, way in all_ways.items()},
            )
            return
        found = self._arguments(downcall, api)
        downcall.runs = self._entered(api)
        code = self._code(downcall.runs)
        if api.publishes:
            self._set(downcall, "all", _joined(found, code, self._all()))
        else:
            self._set(downcall, "arguments", _joined(found, code))

    def _set(self, downcall: Downcall, scope: str, there: Ways) -> None:
        """Of what is touched there, what the user half has set, and what it looks at."""
        downcall.reads = sorted(
            name for name, way in there.items() if "r" in way and "w" in self.user.get(name, "")
        )
        downcall.writes = sorted(
            name for name, way in there.items() if "w" in way and "r" in self.user.get(name, "")
        )
        downcall.copy_out = self.touched.layouts.members(downcall.reads)
        downcall.copy_in = self.touched.layouts.ranges(downcall.writes)
        downcall.scope = scope if downcall.reads or downcall.writes else ""

    def _code(self, functions: Iterable[str]) -> Ways:
        """What functions touch with all that they call, in either half.

        An upcall on the way sees what was set, too.
        """
        graph = self.halves.graph
        found, todo = set(functions), list(functions)
        while todo:
            for callee in graph.calls.get(todo.pop(), {}):
                if callee not in found:
                    found.add(callee)
                    todo.append(callee)
        return _joined(self.touched.fields(found), *(self._called(one) for one in found))

    def _called(self, function: str) -> Ways:
        """What kernel functions touch that a kernel-half function calls, by argument structs."""
        if function not in self._called_by:
            self._called_by[function] = self._calls_of(function)
        return self._called_by[function]

    def _calls_of(self, function: str) -> Ways:
        if function not in self.halves.kernel_code:
            return {}
        found: Ways = {}
        for symbol in self.halves.graph.external.get(function, {}):
            api = self.halves.apis.of(symbol)
            if api is None or api.way not in LOCAL:
                declared = Downcall(symbol, "", [])
                self._declare(declared)
                found = _joined(found, self._arguments(declared, api or Api(symbol, "downcall")))
        return found

    def _arguments(self, downcall: Downcall, api: Api) -> Ways:
        """What the kernel may touch of the objects that it is given, by their types."""
        found: Ways = {}
        for index, parameter in enumerate(downcall.parameters):
            note = api.arguments.get(index, "").split()
            if note and note[-1].partition("(")[0] in (*UNTOUCHED, "string", "bytes", "dma"):
                continue
            target = pointee(parameter.type)
            if target is None or not target[1]:
                continue
            way = (
                DIRECTIONS.get(note[0], "rw")
                if note
                else "r"
                if CONSTANT.match(parameter.type)
                else "rw"
            )
            for struct in self._reach(target[1]):
                found = _joined(found, dict.fromkeys(self._members.get(struct, ()), way))
        return found

    def _reach(self, struct: str) -> set[str]:
        """The structs of the kernel that one leads to.

        What the driver has behind a `void *` the kernel does not look into.
        """
        if struct not in self._reached:
            found, todo = {struct}, [struct]
            while todo:
                layout = self.touched.layouts.get(todo.pop())
                for member in layout.members if layout else ():
                    target = member.struct or (
                        "" if member.pointee in ("fn", "void") else member.pointee
                    )
                    if target not in found and self._foreign(target):
                        found.add(target)
                        todo.append(target)
            self._reached[struct] = found
        return self._reached[struct]

    def _foreign(self, struct: str) -> bool:
        layout = self.touched.layouts.get(struct)
        return layout is not None and is_header(layout.file)

    @cached_property
    def _members(self) -> dict[str, list[str]]:
        """Fields that the user half touches, by struct."""
        found: dict[str, list[str]] = defaultdict(list)
        for name in self.user:
            found[name.rpartition(".")[0]].append(name)
        return found

    def _all(self) -> Ways:
        """What other code may do meanwhile.

        The kernel half what its code does, the kernel anything with its own structs.
        """
        foreign = {name: "rw" for name in self.user if self._foreign(name.rpartition(".")[0])}
        return _joined(self.kernel, foreign)

    def _entered(self, api: Api) -> list[str]:
        """The driver's functions that the kernel calls before a function of it returns."""
        return sorted(
            key
            for key, by in self.entries.items()
            if any(fnmatchcase(one, pattern) for one in by for pattern in api.enters)
        )


def _joined(*several: Mapping[str, str]) -> Ways:
    found: Ways = {}
    for one in several:
        for name, way in one.items():
            found[name] = ways(found.get(name, ""), way)
    return found
