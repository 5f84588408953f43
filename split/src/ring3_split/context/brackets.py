"""Objects of functions where the kernel calls one inside a section that another began.

An example is `show` between `start` and `stop`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec

from ring3_split.carried import effect
from ring3_split.graph import Graph
from ring3_split.model import Stored


class Bracket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A struct whose functions may be called inside a section of one of them."""

    begin: str
    quiet: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Inside:
    """A function that the kernel calls inside a section, and who began it."""

    function: str  # id
    field: str
    source: str
    why: str


@cache
def known() -> dict[str, Bracket]:
    """The structs, by name."""
    return msgspec.toml.decode(
        resources.files(__package__).joinpath("brackets.toml").read_bytes(), type=dict[str, Bracket]
    )


def inside(graph: Graph) -> Iterator[Inside]:
    """The driver's functions that are called inside a section, or where none can be ruled out."""
    begun = _begun(graph)
    for function, places in graph.stored.items():
        for place in places:
            struct, _, member = place.field.rpartition(".")
            bracket = known().get(struct)
            why = begun.get((struct, place.object), "")
            if bracket and member != bracket.begin and why:
                yield Inside(function, place.field, bracket.source, why)


def _begun(graph: Graph) -> dict[tuple[str, str], str]:
    """(struct, object) -> how its first function begins a section."""
    found: dict[tuple[str, str], str] = {}
    own: dict[str, list[str]] = defaultdict(list)
    for key, function in graph.functions.items():
        own[function.name].append(key)
    for place in _stored(graph):
        struct, _, member = place.field.rpartition(".")
        bracket = known().get(struct)
        if bracket is None or member != bracket.begin:
            continue
        taken = [
            region
            for key in own.get(place.function, ())
            for region in effect(graph.functions[key]).takes
        ]
        if taken:
            found[struct, place.object] = (
                f"{place.function} returns inside {taken[0].kind}, line {taken[0].line}"
            )
        elif place.function not in own and place.function not in bracket.quiet:
            found[struct, place.object] = (
                f"{place.function} is the kernel's, and may return inside a section"
            )
    return found


def _stored(graph: Graph) -> Iterator[Stored]:
    for module in graph.driver.modules:
        for unit in module.units:
            yield from unit.stored
            for function in unit.functions:
                yield from function.stored
