"""Which structs cross: those that the halves hand to each other, and what is reached from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ring3_split.annotate.declared import pointee
from ring3_split.annotate.halves import Halves
from ring3_split.annotate.layouts import Layouts
from ring3_split.model import Data

# Shapes whose detail names a struct that a pointer without that type leads to.
LEADING = ("cast", "container", "list")


def crossing(
    halves: Halves, data: Iterable[Data], layouts: Layouts, border: Iterable[str]
) -> set[str]:
    """The structs that cross, given the functions at the border.

    A struct that only lives on the user half's stack, or in a constant table, is not among them.
    """
    edges = _edges(halves, data, layouts)
    found: set[str] = set()
    todo = [*_signatures(halves, border), *edges.pop("", ())]
    while todo:
        struct = todo.pop()
        if struct not in found:
            found.add(struct)
            todo += edges.get(struct, ())
    return found


def _signatures(halves: Halves, border: Iterable[str]) -> Iterator[str]:
    for function in border:
        facts = halves.graph.functions[function]
        for declared in (facts.returns, *(parameter.type for parameter in facts.parameters)):
            target = pointee(declared)
            if target and target[1]:
                yield target[1]


def _edges(halves: Halves, data: Iterable[Data], layouts: Layouts) -> dict[str, set[str]]:
    """Struct -> structs that the user half reaches from it.

    "" -> structs that it has from the kernel or by a cast.
    """
    edges: dict[str, set[str]] = {"": set()}
    for unit in data:
        for function in halves.user_code & (unit.accesses.keys() | unit.shapes.keys()):
            for access in unit.accesses.get(function, ()):
                struct = (access.within or access.field).rpartition(".")[0]
                edges.setdefault(struct, set()).add(access.field.rpartition(".")[0])
                kind, _, name = access.base.partition(" ")
                if kind in ("call", "param"):
                    # The types of parameters of inner functions come from what was passed to them.
                    edges[""] |= {struct} if kind == "call" else set()
                elif kind == "field":
                    edges.setdefault(name.rpartition(".")[0], set()).add(struct)
                member = layouts.member(access.field)
                if member is not None:
                    target = pointee(member.type)
                    reached = {member.struct, target[1] if target else ""} - {""}
                    edges.setdefault(access.field.rpartition(".")[0], set()).update(reached)
            for shape in unit.shapes.get(function, ()):
                if shape.what in LEADING and shape.detail:
                    edges[""].add(shape.detail.removeprefix("struct ").partition(".")[0])
    return edges
