"""From IR struct types and indices to the fields of the source, by debug information.

Clang numbers the elements of an IR struct anew (padding, storage of bit fields), emits unions as
their largest member, and names unnamed types "anon.7". What survives is the byte offset; so a field
is found by its offset in the struct of the debug information that has the IR struct's name, size,
or place.
"""

from __future__ import annotations

from functools import cached_property

from ring3_split.ir.metadata import Member, Metadata
from ring3_split.ir.module import IrModule
from ring3_split.ir.unions import Step, Unions

__all__ = ["Fields", "Step"]


class Fields:
    """The fields of one module."""

    def __init__(self, module: IrModule) -> None:
        self._types = module.types
        self.metadata: Metadata = module.metadata
        self.unions = Unions(module.metadata, module.types, self.enter)
        self.owners: dict[str, int] = {}  # structs by name, of all fields that were ever named here
        self._structs: dict[tuple[str, int], int] = {}
        self._unnamed: dict[str, list[int]] = {}  # unnamed structs with the layout of an IR struct
        self._steps: dict[tuple[str, int, int], tuple[Step, ...]] = {}

    @classmethod
    def of(cls, module: IrModule) -> Fields:
        """The fields of a module, which are made once."""
        known = module.kept.get("fields")
        if not isinstance(known, cls):
            known = module.kept["fields"] = cls(module)
        return known

    @cached_property
    def _named(self) -> dict[str, list[int]]:
        """Structs by name, those that only a typedef names included."""
        named = {name: list(nodes) for name, nodes in self.metadata.composites.items() if name}
        for node, name in self.metadata.typedefs.items():
            if self.metadata.composite(node) == node and not self.metadata.node(node).get("name"):
                named.setdefault(name, []).append(node)
        return named

    def struct(self, text: str, place: int = 0) -> int:
        """The debug information's struct for an IR struct, found at a place of type `place`.

        An IR struct is for example "%struct.e1000_hw".

        0 when none fits.
        """
        key = (text, place)
        if key not in self._structs:
            self._structs[key] = self._find(text, place)
        return self._structs[key]

    def _find(self, text: str, place: int) -> int:
        _, _, name = text.strip('%"').partition(".")
        if not name:
            return 0
        for candidate in (name, name.rpartition(".")[0]):
            nodes = [node for node in self._named.get(candidate, ()) if self._fits(node, text)]
            if nodes:
                return self._nearest(nodes, place)
        if not name.startswith("anon"):
            return 0
        if place and (
            found := next((node for node, _ in self._inner(place) if self._fits(node, text)), 0)
        ):
            return found
        if text not in self._unnamed:
            self._unnamed[text] = [
                node for node in self.metadata.composites.get("", ()) if self._fits(node, text)
            ]
        return self._unnamed[text][0] if len(self._unnamed[text]) == 1 else 0

    def _nearest(self, nodes: list[int], place: int) -> int:
        """The one of equal candidates that is at the place, or else the first."""
        if len(nodes) > 1 and place:
            inside = {node for node, _ in self._inner(place)}
            return next((node for node in nodes if node in inside), nodes[0])
        return nodes[0]

    def _fits(self, node: int, text: str) -> bool:
        """Whether a struct has the size and the kind of an IR struct."""
        if self.metadata.size(node) != self._types.size(text) * 8:
            return False
        if (self.metadata.tag(node) == "union") != text.strip('%"').startswith("union"):
            return False
        if self.metadata.tag(node) == "union":
            return True
        elements = {
            self._types.offset(text, i) * 8: element
            for i, element in enumerate(self._types.elements(text))
        }
        members = [
            member for member in self.metadata.members(node) if member.size and not member.bitfield
        ]
        return all(
            member.offset in elements and self._alike(member, elements[member.offset])
            for member in members
        )

    def _alike(self, member: Member, element: str) -> bool:
        """Whether a member can be an element.

        Both a struct, a union, an array, a pointer, or none of these.
        """
        tag = self.metadata.tag(self.metadata.strip(member.type))
        if tag in ("structure", "union"):
            return element.startswith(
                ("{", "<{", f"%{tag.removesuffix('ure')}", f'%"{tag.removesuffix("ure")}')
            )
        kinds = {"array": ("[", "<"), "pointer": ("ptr",)}
        return element.startswith(
            kinds.get(tag, ("i", "f", "d", "h", "x", "b", "<", "{", "[", "p"))
        )

    def _inner(self, place: int, path: tuple[Step, ...] = ()) -> list[tuple[int, tuple[Step, ...]]]:
        """The structs that begin where a place begins, outermost first, with the way to each."""
        node = self.metadata.composite(self.metadata.element(place))
        if not node or len(path) > 12:
            return []
        found = [(node, path)]
        for member in self.metadata.members(node):
            if member.offset == 0 and self.metadata.composite(self.metadata.element(member.type)):
                found += self._inner(member.type, (*path, self.enter(node, member)))
        return found

    def enter(self, node: int, member: Member) -> Step:
        """The step to a member."""
        return Step(self.title(node, member), member.type)

    def title(self, node: int, member: Member) -> str:
        """The member's field name, "struct.member"; nothing for an unnamed member."""
        if not member.name:
            return ""
        struct = self.metadata.name(node)
        if struct not in self.owners:
            self.owners[struct] = self._around(node)
        return f"{struct}.{member.name}"

    def _around(self, node: int) -> int:
        """The struct that has the name: for an unnamed struct or union the one around it."""
        outer = self.metadata.composite(self.metadata.reference(node, "scope"))
        while outer and self.metadata.name(outer) == self.metadata.name(node):
            node, outer = outer, self.metadata.composite(self.metadata.reference(outer, "scope"))
        return node

    def steps(self, text: str, index: int, place: int) -> tuple[Step, ...]:
        """The way from a place to element `index` of the IR struct that lies there.

        () when no struct is known.
        """
        key = (text, index, place)
        if key not in self._steps:
            self._steps[key] = self._walk(text, index, place)
        return self._steps[key]

    def _walk(self, text: str, index: int, place: int) -> tuple[Step, ...]:
        node = self.struct(text, place)
        if not node:
            return ()
        before = (
            next((path for inner, path in self._inner(place) if inner == node), ()) if place else ()
        )
        elements = self._types.elements(text)
        offset = self._types.offset(text, index) * 8
        size = self._types.size(elements[index]) * 8 if index < len(elements) else 0
        members = [
            m
            for m in self.metadata.members(node)
            if m.offset == offset and not m.bitfield and bool(m.size) == bool(size)
        ]
        if not size:  # the IR has arrays without a length, and leaves out structs without members
            members = [m for m in members if self._alike(m, elements[index])]
        if members:
            order = (
                index - next(i for i in range(index + 1) if self._same(text, i, index))
                if not size
                else 0
            )
            return (*before, self.enter(node, members[min(order, len(members) - 1)]))
        return (*before, Step("", node, offset))

    def _same(self, text: str, first: int, second: int) -> bool:
        """Whether two elements without size stand at one offset."""
        sizes = [self._types.size(self._types.elements(text)[index]) for index in (first, second)]
        return sizes == [0, 0] and self._types.offset(text, first) == self._types.offset(
            text, second
        )

    def bits(self, node: int, start: int, width: int) -> Step | None:
        """The bit field that begins at bit `start` of a struct, else the first in `width` bits."""
        fields = [
            member for member in self.metadata.members(node) if member.bitfield and member.name
        ]
        exact = [member for member in fields if member.offset == start]
        inside = [
            member
            for member in fields
            if start <= member.offset < start + width
            or member.offset <= start < member.offset + member.size
        ]
        for member in (*exact, *inside):
            return self.enter(node, member)
        return None

    def at(self, node: int, offset: int) -> tuple[Step, ...]:
        """The way to the innermost member at a bit offset of a type, through arrays."""
        path: tuple[Step, ...] = ()
        while True:
            node = self.metadata.strip(node)
            if self.metadata.tag(node) == "array":
                node = self.metadata.element(node)
                offset %= self.metadata.size(node) or 1
            node = self.metadata.composite(node)
            member = self._covering(node, offset) if node else None
            if member is None:
                return path
            path = (*path, self.enter(node, member))
            node, offset = member.type, offset - member.offset

    def _covering(self, node: int, offset: int) -> Member | None:
        """The member that a bit offset lies in; of a union the first that has a pointer there."""
        members = self.metadata.members(node)
        covering = [m for m in members if m.offset <= offset < m.offset + m.size]
        if (
            not covering
            and members
            and members[-1].offset <= offset
            and self.metadata.element(members[-1].type) != members[-1].type
        ):
            return members[
                -1
            ]  # an array without a length at the end, which the initialiser gives elements
        if len(covering) > 1:
            pointers = [m for m in covering if self._pointer_at(m, offset - m.offset)]
            return (pointers or covering)[0]
        return covering[0] if covering else None

    def _pointer_at(self, member: Member, offset: int) -> bool:
        inner = self.at(member.type, offset)
        last = inner[-1].type if inner else self.metadata.element(member.type)
        return self.metadata.tag(self.metadata.strip(last)) == "pointer"
