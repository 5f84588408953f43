"""Which fields and global variables the code of a half touches, and how."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache

from ring3_split.annotate.addresses import ATOMIC, Addresses
from ring3_split.annotate.border import Ways
from ring3_split.annotate.layouts import Layouts
from ring3_split.model import Access, Data


class Touched:
    """Which fields and globals functions touch."""

    def __init__(self, data: Iterable[Data], layouts: Layouts, addresses: Addresses) -> None:
        self.layouts = layouts
        self.addresses = addresses
        self.whole: dict[
            str, set[str]
        ] = {}  # by function: structs that it reaches into by computed offsets
        self.crossing: set[str] = set()  # structs that cross; all others are private to a half
        self.accesses: dict[str, tuple[Access, ...]] = {}
        self.variables: dict[str, dict[str, str]] = {}
        for unit in data:
            # An inline of a header is seen in every unit; once is enough.
            self.accesses = {**unit.accesses, **self.accesses}
            self.variables = {**unit.globals, **self.variables}

    def fields(self, functions: Iterable[str]) -> Ways:
        """Fields that these functions touch.

        An atomic operation on a word is no write: it happens where the word is.
        """
        found: Ways = {}
        for function in functions:
            for access in self._crossing(function):
                found[access.field] = ways(
                    found.get(access.field, ""), self.way(function, access).replace(ATOMIC, "r")
                )
                # Embedded structs on the way there: their own members say how they are touched.
                for outer in (*around(access.within), *around(access.field.rpartition(".")[0])):
                    found.setdefault(outer, "")
        return dict(sorted(found.items()))

    def words(self, functions: Iterable[str]) -> dict[str, dict[tuple[str, int], str]]:
        """Fields that these functions change by atomic operations.

        Function and line -> operation.
        """
        found: dict[str, dict[tuple[str, int], str]] = defaultdict(dict)
        for function in sorted(functions):
            for access in self._crossing(function):
                if self.way(function, access) == ATOMIC:
                    operation = access.to.rpartition(":")[0]
                    found[access.field] |= dict.fromkeys(
                        ((function, line) for line in access.lines), operation
                    )
        return dict(sorted(found.items()))

    def globals(self, functions: Iterable[str]) -> Ways:
        """Global variables that these functions touch."""
        found: Ways = {}
        for function in functions:
            for name, way in self.variables.get(function, {}).items():
                found[name] = ways(found.get(name, ""), way.replace("a", "rw"))
        return dict(sorted(found.items()))

    def way(self, function: str, access: Access) -> str:
        """How an access touches its field."""
        return access.way if access.way != "a" else self.addresses.way(function, access)

    def _crossing(self, function: str) -> Iterator[Access]:
        for access in self.accesses.get(function, ()):
            struct = access.field.rpartition(".")[0]
            # A member of an unnamed struct crosses with the struct around it that has a name.
            crosses = struct in self.crossing or struct.partition(".")[0] in self.crossing
            if crosses and not self.layouts.omitted(access.field):
                yield access


def around(field: str) -> Iterator[str]:
    """A field, and the fields of unnamed structs that it lies in: `S.u.v.m`, `S.u.v`, `S.u`."""
    while "." in field:
        yield field
        field = field.rpartition(".")[0]


@cache
def ways(one: str, other: str) -> str:
    """The union of two ways."""
    return "".join(way for way in "rw" if way in one + other)
