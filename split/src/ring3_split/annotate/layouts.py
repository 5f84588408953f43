"""The layouts of all units of a driver, asked by field."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate

from ring3_split.model import Data, Layout, Member


class Layouts:
    """Structs by name, members by field."""

    def __init__(self, data: Iterable[Data], omit: Iterable[str] = ()) -> None:
        self.structs: dict[str, Layout] = {}
        for unit in data:
            for name, layout in unit.layouts.items():
                # A struct that a unit only declares has no members there.
                if name not in self.structs or len(layout.members) > len(
                    self.structs[name].members
                ):
                    self.structs[name] = layout
        self._omit = re.compile("|".join(map(translate, omit)) or "(?!)")
        self._omitted: dict[str, bool] = {}
        self.fields = {
            f"{name}.{member.name}": member
            for name, layout in self.structs.items()
            for member in layout.members
        }

    def __contains__(self, struct: object) -> bool:
        return struct in self.structs

    def get(self, struct: str) -> Layout | None:
        """The layout of a struct."""
        return self.structs.get(struct)

    def member(self, field: str) -> Member | None:
        """The member that a field names."""
        return self.fields.get(field)

    def omitted(self, field: str) -> bool:
        """Whether a field has no bytes to send."""
        known = self._omitted.get(field)
        if known is None:
            known = self._omitted[field] = self._omit.match(field) is not None
        return known

    def count(self, struct: str) -> int:
        """Members that have bytes."""
        return sum(
            not self.omitted(f"{struct}.{member.name}") for member in self.structs[struct].members
        )

    def ranges(self, fields: Iterable[str]) -> dict[str, list[tuple[int, int]]]:
        """By struct: the bytes of these fields as (offset, size), neighbours joined.

        Members of a union once.
        """
        taken: dict[str, list[tuple[int, int]]] = {}
        for field in fields:
            member = self.member(field)
            if member and member.size:
                taken.setdefault(field.rpartition(".")[0], []).append((member.offset, member.size))
        return {struct: joined(sorted(ranges)) for struct, ranges in taken.items()}

    def members(self, fields: Iterable[str]) -> dict[str, list[tuple[int, int]]]:
        """By struct: the bytes of these fields as (offset, size), one range a place, in order."""
        taken: dict[str, set[tuple[int, int]]] = {}
        for field in fields:
            member = self.member(field)
            if member and member.size:
                taken.setdefault(field.rpartition(".")[0], set()).add((member.offset, member.size))
        return {struct: sorted(ranges) for struct, ranges in taken.items()}

    def where(self, field: str) -> str:
        """The place of a member, or of its struct where the line is not known."""
        struct, _, _ = field.rpartition(".")
        layout, member = self.get(struct), self.member(field)
        if layout is None:
            return ""
        return f"{layout.file}:{(member.line if member else 0) or layout.line}"


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted ranges of (offset, size), with those that touch or overlap made one."""
    found: list[tuple[int, int]] = []
    for offset, size in ranges:
        if found and offset <= sum(found[-1]):
            start, length = found[-1]
            found[-1] = (start, max(length, offset + size - start))
        else:
            found.append((offset, size))
    return found
