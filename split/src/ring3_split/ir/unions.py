"""Which member of a union is meant: all of them are one address in the IR.

The size and the kind of what is done there decide. Where several members fit, the names that stand
in the source decide (nothing stands there inside macros), and else the first one is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from ring3_split.ir.metadata import Member, Metadata
from ring3_split.ir.types import Types

Words = Callable[[], set[str]]
_DEEP = 12  # structs inside structs


class Step(msgspec.Struct, frozen=True):
    """One member further into a struct."""

    name: str  # "struct.member"; "" when the member is unnamed, or holds bit fields
    type: int  # of the member
    at: int = 0  # in `type`, where the storage of bit fields begins, in bits


Way = tuple[Step, ...]


class Enter(Protocol):
    """Makes the step to a member of a struct."""

    def __call__(self, node: int, member: Member) -> Step:
        """The step."""


class Unions:
    """The unions of one module."""

    def __init__(self, metadata: Metadata, types: Types, enter: Enter) -> None:
        self._metadata = metadata
        self._types = types
        self._enter = enter
        self._known: dict[int, list[Way]] = {}

    def accessed(self, node: int, width: int, pointer: bool, words: Words) -> Way:
        """The way to the member that a load or store of `width` bits means."""
        ways = [way for way in self.ways(node) if self._takes(way[-1].type, width)]
        kind = [way for way in ways if (self._tag(way) == "pointer") == pointer]
        return self._named(kind or ways, words)

    def array(self, node: int, text: str, words: Words) -> Way:
        """The way to the array that is indexed as the IR type `text`."""
        size, element = self._types.size(text) * 8, self._types.size(self._types.element(text)) * 8
        ways = [
            way
            for way in self.ways(node)
            if self._tag(way) == "array" and self._metadata.size(way[-1].type) == size
        ]
        fitting = [
            way
            for way in ways
            if self._metadata.size(self._metadata.pointee(way[-1].type)) == element
        ]
        return self._named(fitting, words)

    def addressed(self, node: int, words: Words) -> Way:
        """The way to the member whose address is taken.

        Of a union that has a name only if the source names the member.
        """
        ways = self.ways(node)
        return self._named(
            ways
            if self._metadata.unnamed_part(node)
            else [way for way in ways if self._means(way, words())],
            words,
        )

    def ways(self, node: int) -> list[Way]:
        """The ways to all that begins where a struct or union begins."""
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = self._leaves(node, ())
        return known

    def _leaves(self, node: int, path: Way) -> list[Way]:
        found: list[Way] = []
        for member in self._metadata.members(node):
            if member.offset or member.bitfield:
                continue
            inner = self._metadata.composite(member.type)
            if inner and not member.size:
                continue  # a struct without members
            way = (*path, self._enter(node, member))
            if member.name or self._has_bits(inner):
                found.append(way)
            if inner and len(path) < _DEEP:
                found += self._leaves(inner, way)
        return found

    def _named(self, ways: list[Way], words: Words) -> Way:
        """The way that the source names, or else the first."""
        if len(ways) > 1:
            spelled = words()
            ways = [way for way in ways if self._means(way, spelled)] or ways
        return ways[0] if ways else ()

    def _means(self, way: Way, words: set[str]) -> bool:
        """Whether the source names a way: by a member on it, or by a bit field at its end."""
        if any(step.name.rpartition(".")[2] in words for step in way if step.name):
            return True
        node = self._metadata.composite(way[-1].type)
        return bool(node) and any(
            member.bitfield and member.name in words for member in self._metadata.members(node)
        )

    def _tag(self, way: Way) -> str:
        return self._metadata.tag(self._metadata.strip(way[-1].type))

    def _takes(self, type_: int, width: int) -> bool:
        """Whether a member can be accessed by so many bits.

        All of it, or a unit of its bit fields.
        """
        size = self._metadata.size(type_)
        return size == width or (size > width and self._has_bits(self._metadata.composite(type_)))

    def _has_bits(self, node: int) -> bool:
        return bool(node) and any(member.bitfield for member in self._metadata.members(node)[:1])
