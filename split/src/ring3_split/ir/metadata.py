"""Debug information: the numbered nodes of a module, each taken apart only when it is asked for."""

from __future__ import annotations

import re
from functools import cached_property

import msgspec

_LOCATION = re.compile(r"line: (\d+)(?:, column: (\d+))?, scope: !(\d+)")
_FIELD = re.compile(r'(\w+): (?:!(\d+)|"([^"]*)"|([^,()]+))')
_REFERENCES = re.compile(r"!(\d+)|null")
_COMPOSITE = re.compile(r'DW_TAG_(?:structure|union)_type, (?:name: "([^"]*)", )?')
_TAG = re.compile(r"tag: DW_TAG_(\w+?)(?:_type)?[,)]")
_TRANSPARENT = frozenset(("typedef", "const", "volatile", "restrict", "atomic"))
_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2})")


def unescape(text: str) -> str:
    """Text of the IR with its escapes (a backslash and two hexadecimal digits) resolved."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text) if "\\" in text else text


class Member(msgspec.Struct, frozen=True):
    """A member of a struct or union. Offset and size are in bits."""

    name: str  # "" of an unnamed struct or union
    type: int
    offset: int
    size: int
    bitfield: bool
    line: int = 0


class Metadata:
    """The numbered metadata of a module: `lines[id]` is the text of node !id."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self._locations: dict[int, tuple[int, int, int]] = {}
        self._nodes: dict[int, dict[str, str]] = {}
        self._members: dict[int, tuple[Member, ...]] = {}
        self._names: dict[int, str] = {}
        self._tags: dict[int, str] = {}
        self._stripped: dict[int, int] = {}
        self._composites: dict[int, int] = {}

    def _location(self, node: int) -> tuple[int, int, int]:
        known = self._locations.get(node)
        if known is None:
            match = _LOCATION.search(self.lines[node])
            known = (int(match[1]), int(match[2] or 0), int(match[3])) if match else (0, 0, 0)
            self._locations[node] = known
        return known

    def line(self, node: int) -> int:
        """Line of a DILocation."""
        return self._location(node)[0]

    def column(self, node: int) -> int:
        """Column of a DILocation, 0 when it has none."""
        return self._location(node)[1]

    def scope(self, node: int) -> int:
        """Scope of a DILocation."""
        return self._location(node)[2]

    def node(self, node: int) -> dict[str, str]:
        """The fields of a specialised node by their names.

        References as plain numbers, strings without quotes.
        """
        known = self._nodes.get(node)
        if known is None:
            text = self.lines[node]
            found = _FIELD.findall(text)
            known = self._nodes[node] = {
                key: reference or string or other for key, reference, string, other in found
            }
            if "\\" in text:
                self._nodes[node] = known = {key: unescape(value) for key, value in known.items()}
        return known

    def reference(self, node: int, key: str) -> int:
        """The node that a field refers to, 0 when it is null or absent. Node 0 is never a type."""
        text = self.node(node).get(key, "0") if node else "0"
        return int(text) if text.isdigit() else 0

    def number(self, node: int, key: str) -> int:
        """A field that is a number, 0 when absent."""
        text = self.node(node).get(key, "0") if node else "0"
        return int(text) if text.lstrip("-").isdigit() else 0

    def elements(self, node: int) -> list[int]:
        """The elements of a list of nodes; null is 0."""
        text = self.lines[node] if node else ""
        return [int(match[1] or 0) for match in _REFERENCES.finditer(text, text.find("{"))]

    def integers(self, node: int) -> list[int]:
        """The elements of a list of integers such as !{i32 5}."""
        return [int(number) for number in re.findall(r"i\d+ (-?\d+)", self.lines[node])]

    def tag(self, node: int) -> str:
        """The kind of a type.

        "structure", "union", "pointer", "typedef", "array", "base", "subroutine" ...
        """
        known = self._tags.get(node)
        if known is None:
            text = self.lines[node] if node else ""
            match = _TAG.search(text)
            other = (
                "base"
                if "!DIBasicType" in text
                else "subroutine"
                if "!DISubroutineType" in text
                else ""
            )
            known = self._tags[node] = match[1] if match else other
        return known

    def strip(self, node: int) -> int:
        """The type without typedefs and qualifiers."""
        known = self._stripped.get(node)
        if known is None:
            known = node
            while known and self.tag(known) in _TRANSPARENT:
                known = self.reference(known, "baseType")
            self._stripped[node] = known
        return known

    def pointee(self, node: int) -> int:
        """What a pointer type points to, or the element type of an array; 0 for anything else."""
        node = self.strip(node)
        return self.reference(node, "baseType") if self.tag(node) in ("pointer", "array") else 0

    def element(self, node: int) -> int:
        """The element type below all dimensions of an array; the type itself when it is none."""
        node = self.strip(node)
        while self.tag(node) == "array":
            node = self.strip(self.reference(node, "baseType"))
        return node

    def composite(self, node: int) -> int:
        """The struct or union that a type is, 0 when it is neither."""
        known = self._composites.get(node)
        if known is None:
            bare = self.strip(node)
            known = self._composites[node] = bare if self.tag(bare) in ("structure", "union") else 0
        return known

    def members(self, node: int) -> tuple[Member, ...]:
        """The members of a struct or union in order."""
        known = self._members.get(node)
        if known is None:
            elements = self.elements(self.reference(node, "elements"))
            known = self._members[node] = tuple(self._member(element) for element in elements)
        return known

    def _member(self, node: int) -> Member:
        fields = self.node(node)
        return Member(
            fields.get("name", ""),
            self.reference(node, "baseType"),
            int(fields.get("offset", 0)),
            self.size(node),
            "DIFlagBitField" in fields.get("flags", ""),
            int(fields.get("line", 0)),
        )

    def size(self, node: int) -> int:
        """Size of a type or member in bits, through typedefs."""
        while node:
            if "size" in self.node(node):
                return self.number(node, "size")
            if self.tag(node) not in _TRANSPARENT:
                break
            node = self.reference(node, "baseType")
        return 0

    @cached_property
    def composites(self) -> dict[str, list[int]]:
        """Defined structs and unions by name; the unnamed ones under ""."""
        found: dict[str, list[int]] = {}
        for index, text in enumerate(self.lines):
            if (
                "!DICompositeType(tag: DW_TAG_" in text
                and (match := _COMPOSITE.search(text))
                and "DIFlagFwdDecl" not in text
            ):
                found.setdefault(match[1] or "", []).append(index)
        return found

    @cached_property
    def typedefs(self) -> dict[int, str]:
        """Names that typedefs give to types that have none of their own, by type."""
        found: dict[int, str] = {}
        for index, text in enumerate(self.lines):
            if "tag: DW_TAG_typedef" in text:
                found.setdefault(
                    self.reference(index, "baseType"), self.node(index).get("name", "")
                )
        return found

    def name(self, node: int) -> str:
        """The name of a struct or union as field names use it.

        Its own, its typedef's, or that of the member that it types.
        """
        known = self._names.get(node)
        if known is None:
            known = self._names[node] = (
                self.node(node).get("name") or self.typedefs.get(node) or self._nested(node)
            )
        return known

    def _nested(self, node: int) -> str:
        """The name of an unnamed struct.

        From the struct around it, or else from its place in the source.
        """
        outer = self.reference(node, "scope")
        if self.tag(outer) not in ("structure", "union"):
            file = self.node(self.reference(node, "file")).get("filename", "")
            return f"unnamed@{file.rpartition('/')[2]}:{self.number(node, 'line')}"
        around = self.name(outer)
        for member in self.members(outer):
            inner = member.type
            while (
                inner
                and inner != node
                and self.tag(inner) in ("array", "pointer", "const", "volatile")
            ):
                inner = self.reference(inner, "baseType")
            if inner == node:
                return f"{around}.{member.name}" if member.name else around
        return around

    def unnamed_part(self, node: int) -> bool:
        """Whether a struct or union has its parent's name, whose members its members then are."""
        outer = self.composite(self.reference(node, "scope"))
        return bool(outer) and self.name(outer) == self.name(node)

    def variable_type(self, node: int) -> int:
        """The type of the variable that a global's !dbg describes.

        That is a DIGlobalVariableExpression or a DIGlobalVariable.
        """
        fields = self.node(node)
        if "var" in fields:
            fields = self.node(int(fields["var"]))
        return int(fields["type"]) if fields.get("type", "").isdigit() else 0

    def file(self, node: int) -> str:
        """The path of a DIFile, absolute when the compiler knows its folder."""
        fields = self.node(node)
        name, folder = fields.get("filename", ""), fields.get("directory", "")
        return name if name.startswith("/") or not folder else f"{folder}/{name}"
