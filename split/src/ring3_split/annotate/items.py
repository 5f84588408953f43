"""The pointers that cross the border, each of which needs an annotation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ring3_split.annotate.flow import parameter
from ring3_split.annotate.halves import Halves
from ring3_split.annotate.interface import Interface
from ring3_split.annotate.layouts import Layouts
from ring3_split.model import Member

Pointee = Literal["struct", "void", "char", "number", "function", "pointer", "list"]

NUMBERS = re.compile(
    r"^(unsigned|signed|int|long|short|bool|_Bool|size_t|ssize_t|[us](8|16|32|64)|__\w+|u?int\d+_t|\w+_t|enum \w+)\b"
)


@dataclass(frozen=True)
class Item:
    """A pointer at the border."""

    key: str  # "e1000_adapter.tx_ring", "path:function(parameter)", "path:function()" for a result
    kind: Literal["field", "parameter", "result"]
    type: str
    pointee: Pointee
    struct: str  # that it points to, if it does
    where: str
    place: str  # where its flow begins
    side: Literal["user", "kernel"]  # the half that receives the pointer, and so the code that is looked at
    function: str = ""  # of a parameter or result
    index: int = -1
    union: bool = False  # shares its place with other members


def items(halves: Halves, layouts: Layouts, border: Interface) -> Iterator[Item]:
    """All pointers that cross: members that the user half touches, parameters and results of upcalls and downcalls."""
    for struct, kind in border.types.items():
        for name in kind.members:
            yield from _field(f"{struct}.{name}", layouts)
    for entry in border.entries:
        yield from _function(halves, entry.function, "user")
    for downcall in border.downcalls:
        if downcall.way == "driver":
            yield from _function(halves, downcall.function, "kernel")


def _field(field: str, layouts: Layouts) -> Iterator[Item]:
    member = layouts.member(field)
    if member is None:
        return
    found = _member(member)
    if found:
        pointee, struct = found
        where, place = layouts.where(field), f"field {field}"
        yield Item(field, "field", member.type, pointee, struct, where, place, "user", union=bool(member.union))


def _member(member: Member) -> tuple[Pointee, str] | None:
    """What a member points to, if it is a pointer or the head of a list."""
    if member.struct in ("list_head", "hlist_head"):
        return "list", ""
    if member.pointee == "fn":
        return "function", ""
    if member.pointee in ("void", "char"):
        return member.pointee, ""  # type: ignore[return-value]
    if member.pointee:
        return "struct", member.pointee
    return pointee(member.type)


def _function(halves: Halves, function: str, side: Literal["user", "kernel"]) -> Iterator[Item]:
    facts = halves.graph.functions[function]
    where = f"{facts.file}:{facts.line}"
    for index, one in enumerate(facts.parameters):
        found = pointee(one.type)
        if found:
            key, place = f"{function}({one.name})", parameter(function, index)
            yield Item(key, "parameter", one.type, *found, where, place, side, function, index)
    found = pointee(facts.returns)
    if found:
        # The other half receives what a function gives back.
        back: Literal["user", "kernel"] = "kernel" if side == "user" else "user"
        yield Item(f"{function}()", "result", facts.returns, *found, where, f"{function}#", back, function)


def pointee(declared: str) -> tuple[Pointee, str] | None:
    """What a type as C writes it points to; None if it is no pointer."""
    text = re.sub(r"\b(const|volatile|restrict|__restrict)\b", "", declared).strip()
    text = re.sub(r"\s*\[\w*\]$", " *", text)  # an array parameter is a pointer
    if "(*" in text:
        return "function", ""
    if not text.endswith("*"):
        return None
    inner = text[:-1].strip()
    match = re.fullmatch(r"(?:struct|union)\s+(\w+)", inner)
    if match:
        return "struct", match[1]
    if NUMBERS.match(inner):
        return "pointer" if inner.endswith("*") else "number", ""
    plain: dict[str, Pointee] = {"void": "void", "char": "char"}
    return ("pointer", "") if inner.endswith("*") else (plain.get(inner, "struct"), "" if inner in plain else inner)
