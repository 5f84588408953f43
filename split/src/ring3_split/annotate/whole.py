"""Structs that a function reaches into by computed offsets: no list of fields is complete."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from ring3_split.annotate.declared import pointee
from ring3_split.annotate.layouts import Layouts
from ring3_split.graph import Graph
from ring3_split.model import Data, Shape

BACK = re.compile(r"-\d+")  # to the struct around a member: no offset into this one


def whole(graph: Graph, data: Iterable[Data], layouts: Layouts) -> dict[str, set[str]]:
    """By function: the structs whose address it moves by a computed offset.

    Tables of statistics are read that way.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for unit in data:
        for function, shapes in unit.shapes.items():
            casts = {shape.pointer: shape.detail for shape in shapes if shape.what == "cast"}
            for shape in shapes:
                if shape.what == "arithmetic" and not BACK.fullmatch(shape.detail):
                    struct = _struct(graph, layouts, function, shape) or casts.get(
                        shape.pointer, ""
                    )
                    if struct in layouts:
                        found[function].add(struct)
    return dict(found)


def _struct(graph: Graph, layouts: Layouts, function: str, shape: Shape) -> str:
    """The struct that a moved pointer is declared to point to."""
    kind, _, name = shape.pointer.partition(" ")
    declared = ""
    if (
        kind == "param"
        and function in graph.functions
        and int(name) < len(graph.functions[function].parameters)
    ):
        declared = graph.functions[function].parameters[int(name)].type
    elif kind == "field" and (member := layouts.member(name)):
        declared = member.type
    target = pointee(declared)
    return target[1] if target else ""
