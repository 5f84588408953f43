"""Layouts of the structs whose fields are touched, and of those that they embed."""

from __future__ import annotations

from collections.abc import Iterable

from ring3_split.ir.metadata import Member as Described
from ring3_split.model import Layout, Member
from ring3_split.reader.unit import Context


class Layouts:
    """The layouts of one unit."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._metadata = context.metadata
        self._found: dict[str, Layout] = {}

    def of(self, fields: Iterable[str]) -> dict[str, Layout]:
        """The layouts of the structs that fields belong to, by name."""
        owners = self._context.fields.owners
        for field in fields:
            node = owners.get(field.rpartition(".")[0])
            if node:
                self._add(node)
        return self._found

    def _add(self, node: int) -> None:
        """Adds a struct and what it embeds."""
        waiting = [node]
        while waiting:
            node = waiting.pop()
            name = self._metadata.name(node)
            if name in self._found or self._metadata.unnamed_part(node):
                continue
            members: list[Member] = []
            self._members(node, 0, 0, [0], members)
            self._found[name] = Layout(
                name,
                self._context.file(node),
                self._metadata.number(node, "line"),
                self._metadata.size(node) // 8,
                tuple(members),
                self._metadata.tag(node) == "union",
            )
            waiting += self._embedded(node)

    def _embedded(self, node: int) -> list[int]:
        """The structs that a struct has inside, through unnamed members and arrays."""
        found = []
        for member in self._metadata.members(node):
            inner = self._metadata.composite(self._metadata.element(member.type))
            if inner:
                found += [inner] if member.name else self._embedded(inner)
        return found

    def _members(
        self, node: int, offset: int, union: int, unions: list[int], out: list[Member]
    ) -> None:
        """Appends the members; those of unnamed structs and unions stand among them.

        `unions` counts unnamed unions.
        """
        for member in self._metadata.members(node):
            inner = self._metadata.composite(member.type)
            if member.name:
                out.append(self._member(member, offset, union))
            elif inner:
                number = union
                if not union and self._metadata.tag(inner) == "union":
                    unions[0] += 1
                    number = unions[0]
                self._members(inner, offset + member.offset, number, unions, out)

    def _member(self, member: Described, offset: int, union: int) -> Member:
        metadata = self._metadata
        start = offset + member.offset
        stripped = metadata.strip(member.type)
        array = metadata.tag(stripped) == "array"
        element = metadata.element(member.type)
        size = metadata.size(element)
        embedded = metadata.composite(element)
        return Member(
            name=member.name,
            type=self._context.ctypes.name(member.type),
            offset=start // 8,
            size=(start % 8 + member.size + 7) // 8,
            bits=(start, member.size) if member.bitfield else None,
            count=(member.size // size if size else 0) if array else None,
            pointee=self._pointee(element) if metadata.tag(element) == "pointer" else "",
            struct=metadata.name(embedded) if embedded else "",
            union=union,
            line=member.line,
        )

    def _pointee(self, pointer: int) -> str:
        """What a pointer points to.

        The name of a struct, "fn", "void", or the type as C writes it.
        """
        metadata = self._metadata
        target = metadata.reference(pointer, "baseType")
        bare = metadata.strip(target)
        if not bare:
            return "void"
        if metadata.tag(bare) == "subroutine":
            return "fn"
        if metadata.tag(bare) in ("structure", "union"):
            return metadata.name(bare)
        return self._context.ctypes.name(target).removeprefix("const ")
