"""What a kernel module's file says of itself.

Sections, functions, and where the tracer's hooks are [ELF-64, little endian].
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ring3_split.errors import Refusal

SYMTAB, STRTAB, RELA = 2, 3, 4
FUNCTION, FILE = 2, 4
EXECUTABLE = 4
# the room before a function that the kernel reserves, with a symbol of its own [objtool]
PADDING = "__pfx_"
HOOKS = "__mcount_loc"  # addresses of the tracer's hooks, one a function


@dataclass(frozen=True)
class Section:
    """A section of the file."""

    name: str
    kind: int
    offset: int
    size: int
    link: int
    info: int
    code: bool


@dataclass(frozen=True)
class Symbol:
    """A function's symbol. `file` is the base name of the source that a local symbol comes from."""

    name: str
    section: int
    value: int
    size: int
    file: str


class Object:
    """A relocatable object file."""

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        self.path = path
        self.content = path.read_bytes() if content is None else content
        if self.content[:6] != b"\x7fELF\x02\x01":
            raise Refusal(f"{path} is no kernel module for a 64-bit little-endian machine")

    @cached_property
    def sections(self) -> list[Section]:
        """All sections, by number."""
        table, count, names = (
            struct.unpack_from("<Q", self.content, 0x28)[0],
            *struct.unpack_from("<HH", self.content, 0x3C),
        )
        rows = [
            struct.unpack_from("<IIQQQQIIQQ", self.content, table + 64 * index)
            for index in range(count)
        ]
        strings = rows[names][4]
        return [
            Section(
                self._text(strings + row[0]),
                row[1],
                row[4],
                row[5],
                row[6],
                row[7],
                bool(row[2] & EXECUTABLE),
            )
            for row in rows
        ]

    def _text(self, at: int) -> str:
        return self.content[at : self.content.index(b"\0", at)].decode()

    @cached_property
    def _rows(self) -> list[tuple[str, int, int, int, int]]:
        """(name, binding and kind, section, value, size) of all symbols."""
        table = next((section for section in self.sections if section.kind == SYMTAB), None)
        if table is None:
            raise Refusal(f"{self.path} has no symbols")
        strings = self.sections[table.link].offset
        rows = struct.iter_unpack("<IBBHQQ", self.content[table.offset : table.offset + table.size])
        return [(self._text(strings + row[0]), row[1], row[3], row[4], row[5]) for row in rows]

    @cached_property
    def functions(self) -> list[Symbol]:
        """All functions, in the order of the symbol table: one function may have several names."""
        found, file = [], ""
        for name, info, section, value, size in self._rows:
            local, kind = info >> 4 == 0, info & 15
            if kind == FILE:
                file = name
            elif (
                kind == FUNCTION
                and 0 < section < len(self.sections)
                and not name.startswith(PADDING)
            ):
                found.append(Symbol(name, section, value, size, file if local else ""))
        return found

    def function(self, section: int, offset: int) -> list[Symbol]:
        """The functions whose code is at an offset of a section: one, with all its names."""
        return [
            f
            for f in self.functions
            if f.section == section and f.value <= offset < f.value + max(f.size, 1)
        ]

    def hooks(self) -> list[tuple[int, int]]:
        """(section, offset) of every hook of the tracer."""
        found = []
        for section in self.sections:
            if section.kind != RELA or self.sections[section.info].name != HOOKS:
                continue
            for _, info, addend in struct.iter_unpack(
                "<QQq", self.content[section.offset : section.offset + section.size]
            ):
                _, _, home, value, _ = self._rows[info >> 32]
                found.append((home, value + addend))
        return found

    @cached_property
    def imported(self) -> dict[tuple[int, int], str]:
        """(section, offset) of every reference to a symbol undefined here, and the symbol."""
        found = {}
        for section in self.sections:
            if section.kind == RELA and self.sections[section.info].code:
                for at, info, _ in struct.iter_unpack(
                    "<QQq", self.content[section.offset : section.offset + section.size]
                ):
                    name, _, home, _, _ = self._rows[info >> 32]
                    if home == 0:
                        found[section.info, at] = name
        return found

    def number(self, name: str) -> int | None:
        """A section's number."""
        return next(
            (index for index, section in enumerate(self.sections) if section.name == name), None
        )

    def needs(self) -> list[str]:
        """The modules that must be loaded before it."""
        for section in self.sections:
            if section.name == ".modinfo":
                entries = self.content[section.offset : section.offset + section.size].split(b"\0")
                words = next((entry[8:] for entry in entries if entry.startswith(b"depends=")), b"")
                return [word for word in words.decode().split(",") if word]
        return []
