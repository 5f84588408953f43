"""Addresses of functions: where they go, and which of them a call through a pointer may reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ring3_split.model import Function, Indirect, Stored

Precision = Literal["signature", "field"]
How = Literal["direct", "signature", "field"]
Site = tuple[str, int]  # a function's id ("" for an initialiser) and a line


def is_header(path: str) -> bool:
    """Whether a file is a header of the kernel, so that what it defines is no driver's."""
    return path.startswith(("include/", "/", "..")) or (
        path.startswith("arch/") and "/include/" in path
    )


@dataclass(frozen=True)
class Place:
    """Where an address goes.

    `callee` is the id of `stored.api` where the driver or a header defines it.
    """

    stored: Stored
    callee: str = ""
    by: str = ""  # the function that takes the address, or hands it on


# Where a pointer goes that was loaded from a field, "struct.member", or came in as a parameter,
# "function id:N".
Flows = Mapping[str, tuple[Place, ...]]


class Taken:
    """The functions of a driver whose address is taken."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self.functions = functions
        self.places: dict[str, dict[Place, None]] = defaultdict(dict)
        self.passed: dict[tuple[str, int], dict[Site, set[str]]] = defaultdict(
            lambda: defaultdict(set)
        )
        self.sites: dict[str, set[Site]] = defaultdict(
            set
        )  # where a function is called by its name
        self.structs: dict[str, str] = {}  # struct -> file that defines it
        self.exporting = False  # whether a module of the driver exports anything
        self.known: dict[str, list[Stored]] = defaultdict(
            list
        )  # functions that other modules know by their symbol

    def add(self, stored: Stored, names: Mapping[str, str], site: Site) -> None:
        """Notes that the address of a function is taken.

        `names` are the symbols that the unit sees.
        """
        target = names.get(stored.function)
        if target is None:
            return  # a function of the kernel
        callee = names.get(stored.api, "") if stored.api else ""
        self.places[target][Place(stored, callee, site[0])] = None
        if callee:
            self.passed[callee, stored.argument][site].add(target)


class Targets:
    """Resolves calls through pointers at one precision."""

    def __init__(self, taken: Taken, precision: Precision, flows: Flows | None = None) -> None:
        self.taken = taken
        self.precision = precision
        self.by_type: dict[int | None, list[str]] = defaultdict(list)
        self.by_field: dict[str, list[str]] = defaultdict(list)
        self.escaped: dict[int | None, list[str]] = defaultdict(list)
        for target, places in taken.places.items():
            signature = taken.functions[target].signature
            self.by_type[signature].append(target)
            if any(_escapes(place) for place in places):
                self.escaped[signature].append(target)
            for name in {place.stored.field for place in places if place.stored.field}:
                self.by_field[name].append(target)
        for name, targets in {
            name: tuple(targets) for name, targets in self.by_field.items()
        }.items():
            for other in _carried(name, flows or {}):
                self.by_field[other] += targets

    def of(self, caller: str, call: Indirect) -> dict[str, How]:
        """The functions that a call may reach, and by which rule."""
        exact = self._exact(caller, call) if self.precision == "field" else None
        if exact is None:
            return dict.fromkeys(self.by_type.get(call.signature, ()), "signature")
        found: dict[str, How] = {}
        if call.field:
            found |= dict.fromkeys(self.escaped.get(call.signature, ()), "signature")
        return found | dict.fromkeys(exact, "field")

    def _exact(self, caller: str, call: Indirect) -> list[str] | None:
        """The functions that were stored to a call's field or passed for its parameter.

        None if that is not known.
        """
        if call.field:
            found = self.by_field.get(call.field)
            if found is None and not is_header(
                self.taken.structs.get(call.field.partition(".")[0], "/")
            ):
                # a field of the driver's own that is called was filled: with what another field
                # held
                return None
            return found or []
        if call.parameter < 0 or caller in self.taken.places or caller in self.taken.known:
            return None  # others may call this caller, and pass what nobody sees
        passed = self.taken.passed.get((caller, call.parameter), {})
        sites = self.taken.sites.get(caller, set())
        if not sites <= passed.keys():
            return None  # some caller hands on a pointer that it has from elsewhere
        return sorted({target for targets in passed.values() for target in targets})


def _carried(name: str, flows: Flows) -> list[str]:
    """The fields that get what a field holds, over parameters and other fields."""
    found = [name]
    for key in found:  # grows while it is walked
        for place in flows.get(key, ()):
            onward = place.stored.field or (
                f"{place.callee}:{place.stored.argument}" if place.callee else ""
            )
            if onward and onward not in found:
                found.append(onward)
    return found[1:]


def _escapes(place: Place) -> bool:
    """Whether the driver may find an address again in a field that the facts do not name.

    A function of the kernel keeps what it is given; one of the driver, or an inline of a header,
    may store it anywhere.
    """
    return not place.stored.field and (not place.stored.api or bool(place.callee))
