"""Entries: the driver's functions that the kernel may call, and the places that name them.

A function is followed from where its address goes: through fields of the driver's own structs and
parameters of its own functions, as far as the driver's data say where pointers go that come from
there, to the kernel or to a call of the driver.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from ring3_split import synchronous
from ring3_split.indirect import Flows, Place, Taken, is_header
from ring3_split.model import Indirect, Stored


class Entries:
    """Finds entries.

    `calls` are all calls through pointers that the driver makes, with their callers.
    """

    def __init__(
        self, taken: Taken, calls: Iterable[tuple[str, Indirect]], flows: Flows | None
    ) -> None:
        calls = list(calls)
        # Functions that hand on what they were given to be called at once, and what that is.
        self.at_once: dict[tuple[str, str], Stored] = {}
        self._taken = taken
        self._flows = flows
        self._loaded = {call.field for _, call in calls if call.field}
        self._called = {(caller, call.parameter) for caller, call in calls if call.parameter >= 0}
        self._unknown = {
            call.signature for _, call in calls if not call.field and call.parameter < 0
        }

    def find(self) -> dict[str, tuple[Stored, ...]]:
        """The entries, each with the places where the kernel finds it."""
        found: dict[str, dict[Stored, None]] = {}
        for target, places in self._taken.places.items():
            seen: set[str] = set()
            found[target] = {
                stored: None for place in places for stored in self._reached(target, place, seen)
            }
        for target, known in self._taken.known.items():
            found.setdefault(target, {}).update(dict.fromkeys(known))
        return {target: tuple(places) for target, places in found.items() if places}

    def _reached(self, target: str, place: Place, seen: set[str]) -> list[Stored]:
        """Where the kernel finds a function whose address goes to a place.

        `seen` are the keys that were followed.
        """
        stored = place.stored
        if synchronous.argument(stored):
            if place.by:
                self.at_once[place.by, target] = stored
            return []
        if stored.field:
            if self._kernels(stored.field):
                return [stored]
            at_home = stored.field in self._loaded or not self._shared(stored.field)
            return self._followed(target, stored, stored.field, seen, at_home=at_home)
        if place.callee and not is_header(self._taken.functions[place.callee].file):
            at_home = (place.callee, stored.argument) in self._called
            return self._followed(
                target, stored, f"{place.callee}:{stored.argument}", seen, at_home=at_home
            )
        if stored.api:
            return [stored]
        # A pointer in a local variable: the calls of it are facts, those of unknown origin by their
        # type.
        called = any(caller == place.by for caller, _ in self._taken.sites[target])
        return (
            [] if called or self._taken.functions[target].signature in self._unknown else [stored]
        )

    def _followed(
        self, target: str, stored: Stored, key: str, seen: set[str], *, at_home: bool
    ) -> list[Stored]:
        """Where a function goes on to from a field or a parameter.

        If nowhere, `at_home` says that the driver calls it.
        """
        if key in seen:
            return []
        seen.add(key)
        onward = self._flows.get(key, ()) if self._flows else ()
        if not onward:
            return [] if at_home else [stored]
        name = stored.function
        moved = (
            replace(place, stored=msgspec.structs.replace(place.stored, function=name))
            for place in onward
        )
        return [found for place in moved for found in self._reached(target, place, seen)]

    def _kernels(self, name: str) -> bool:
        """Whether a field belongs to a struct of the kernel's headers.

        So it is taken to be where that is not known.
        """
        file = self._taken.structs.get(name.rpartition(".")[0], "")
        return not file or is_header(file)

    def _shared(self, name: str) -> bool:
        """Whether another module may call what is in a field.

        If it can see the struct, and get at the driver's objects.
        """
        if self._flows is None:
            return True
        return self._taken.exporting and not self._taken.structs.get(
            name.rpartition(".")[0], ""
        ).endswith(".c")
