"""The pointers that cross the border, each of which needs an annotation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ring3_split.annotate.border import Interface
from ring3_split.annotate.declared import LISTS, Pointee, pointee
from ring3_split.annotate.flow import parameter
from ring3_split.annotate.halves import Halves
from ring3_split.annotate.layouts import Layouts
from ring3_split.model import Member


@dataclass(frozen=True)
class Item:
    """A pointer at the border."""

    key: str  # "e1000_adapter.tx_ring", "path:function(parameter)", "path:function()" for a result
    kind: Literal["field", "parameter", "result", "variable"]
    type: str
    pointee: Pointee
    struct: str  # that it points to, if it does
    where: str
    place: str  # where its flow begins
    side: Literal[
        "user", "kernel"
    ]  # the half that receives the pointer, and so the code that is looked at
    function: str = ""  # of a parameter or result
    index: int = -1
    union: bool = False  # shares its place with other members


def items(halves: Halves, layouts: Layouts, border: Interface) -> Iterator[Item]:
    """All pointers that cross.

    Members that the user half touches, parameters and results, variables of both halves.
    """
    for struct, kind in border.types.items():
        # Who looks into a packet is asked about that.
        for name in (
            kind.members if struct not in LISTS and struct not in halves.apis.packets else ()
        ):
            yield from _field(f"{struct}.{name}", layouts)
    yield from _variables(border)
    for entry in border.entries:
        yield from _function(halves, entry.function, "user")
    for downcall in border.downcalls:
        if downcall.way == "driver":
            yield from _function(halves, downcall.function, "kernel")


def _variables(border: Interface) -> Iterator[Item]:
    for name, one in border.variables.items():
        shared = one.kernel and "w" in one.user + one.kernel and "*" in one.type
        found = pointee(one.type) if shared else None
        if found:
            yield Item(
                f"variable {name}",
                "variable",
                one.type,
                *found,
                one.where,
                f"global {name}",
                "user",
            )


def _field(field: str, layouts: Layouts) -> Iterator[Item]:
    member = layouts.member(field)
    if member is None:
        return
    found = _member(member)
    if found:
        pointee, struct = found
        where, place = layouts.where(field), f"field {field}"
        layout = layouts.get(field.rpartition(".")[0])
        union = bool(member.union) or (layout is not None and layout.union)
        yield Item(field, "field", member.type, pointee, struct, where, place, "user", union=union)


def _member(member: Member) -> tuple[Pointee, str] | None:
    """What a member points to, if it is a pointer, an array of pointers, or the head of a list."""
    if member.struct in LISTS:
        return "list", ""
    if member.pointee == "fn":
        return "function", ""
    declared = re.sub(r"(\[\w*\])+$", "", member.type)
    if "*" not in declared:
        return None  # an embedded array: its length is its type's
    return pointee(declared)


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
        yield Item(
            f"{function}()", "result", facts.returns, *found, where, f"{function}#", back, function
        )
