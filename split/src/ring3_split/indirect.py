"""Addresses of functions: where they go, and which of them a call through a pointer may reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from ring3_split import synchronous
from ring3_split.model import Function, Indirect, Stored

Precision = Literal["signature", "field"]
How = Literal["direct", "signature", "field"]
# Where a pointer goes that was loaded from a field, "struct.member", or came in as a parameter, "function id:N".
Flows = Mapping[str, tuple[Stored, ...]]
Site = tuple[str, int]  # a function's id ("" for an initialiser) and a line


def is_header(path: str) -> bool:
    """Whether a file is a header of the kernel, so that what it defines is no driver's."""
    return path.startswith(("include/", "/", "..")) or (path.startswith("arch/") and "/include/" in path)


@dataclass(frozen=True)
class Place:
    """Where an address goes; `callee` is the id of `stored.api` where the driver or a header defines it."""

    stored: Stored
    callee: str = ""


class Taken:
    """The functions of a driver whose address is taken."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self.functions = functions
        self.places: dict[str, dict[Place, None]] = defaultdict(dict)
        self.passed: dict[tuple[str, int], dict[Site, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.sites: dict[str, set[Site]] = defaultdict(set)  # where a function is called by its name
        self.structs: dict[str, str] = {}  # struct -> file that defines it
        self.exporting = False  # whether a module of the driver exports anything
        self.known: dict[str, list[Stored]] = defaultdict(list)  # functions that other modules know by their symbol

    def add(self, stored: Stored, names: Mapping[str, str], site: Site) -> None:
        """Notes that the address of a function is taken; `names` are the symbols that the unit sees."""
        target = names.get(stored.function)
        if target is None:
            return  # a function of the kernel
        callee = names.get(stored.api, "") if stored.api else ""
        self.places[target][Place(stored, callee)] = None
        if callee:
            self.passed[callee, stored.argument][site].add(target)

    def entries(self, calls: Iterable[tuple[str, Indirect]], flows: Flows | None) -> dict[str, tuple[Stored, ...]]:
        """The functions whose address goes where the kernel calls it, with those places.

        `calls` are all calls through pointers that the driver makes, with their callers. `flows` says where what is loaded
        from a field goes, None if that was not read.
        """
        calls = list(calls)
        loaded = {call.field for _, call in calls if call.field}
        called = {(caller, call.parameter) for caller, call in calls if call.parameter >= 0}
        unknown = {call.signature for _, call in calls if not call.field and call.parameter < 0}

        def reached(target: str, place: Place) -> Iterable[Stored]:
            stored = place.stored
            if synchronous.argument(stored):
                return ()
            if stored.field:
                if self._kernels(stored.field) or stored.field in loaded:
                    return (stored,) if self._kernels(stored.field) else ()
                return self._handed_on(stored, flows)
            if place.callee and not is_header(self.functions[place.callee].file):
                places = _moved(stored, flows, f"{place.callee}:{stored.argument}")
                return places if places or (place.callee, stored.argument) in called else (stored,)
            if stored.api:
                return (stored,)
            return () if self.functions[target].signature in unknown else (stored,)

        found = {
            target: tuple(dict.fromkeys(stored for place in places for stored in reached(target, place)))
            for target, places in self.places.items()
        }
        for target, stored in self.known.items():
            found[target] = (*found.get(target, ()), *stored)
        return {target: places for target, places in found.items() if places}

    def _handed_on(self, stored: Stored, flows: Flows | None) -> tuple[Stored, ...]:
        """Where the kernel finds a function that was stored to a field of the driver's own which no call loads."""
        if flows is None:
            return (stored,)
        places = _moved(stored, flows, stored.field)
        # Another module may call what a header declares, if it can get at the driver's objects at all.
        shared = self.exporting and not self.structs.get(stored.field.rpartition(".")[0], "").endswith(".c")
        return (stored,) if shared and not places else places

    def _kernels(self, name: str) -> bool:
        """Whether a field belongs to a struct of the kernel's headers; so it is taken to be where that is not known."""
        file = self.structs.get(name.rpartition(".")[0], "")
        return not file or is_header(file)


def _moved(stored: Stored, flows: Flows | None, key: str) -> tuple[Stored, ...]:
    """The places that a function gets to from a field or a parameter."""
    places = flows.get(key, ()) if flows else ()
    return tuple(msgspec.structs.replace(place, function=stored.function) for place in places)


class Targets:
    """Resolves calls through pointers at one precision."""

    def __init__(self, taken: Taken, precision: Precision) -> None:
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
        """The functions that were stored to a call's field or passed for its parameter; None if that is not known."""
        if call.field:
            return self.by_field.get(call.field, [])
        if call.parameter < 0 or caller in self.taken.places or caller in self.taken.known:
            return None  # others may call this caller, and pass what nobody sees
        passed = self.taken.passed.get((caller, call.parameter), {})
        sites = self.taken.sites.get(caller, set())
        if not sites <= passed.keys():
            return None  # some caller hands on a pointer that it has from elsewhere
        return sorted({target for targets in passed.values() for target in targets})


def _escapes(place: Place) -> bool:
    """Whether the driver may find an address again in a field that the facts do not name.

    A function of the kernel keeps what it is given; one of the driver, or an inline of a header, may store it anywhere.
    """
    return not place.stored.field and (not place.stored.api or bool(place.callee))
