"""What the kernel's own code says of the tables.

Each call through a field, and in which context it stands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from ring3_split import context
from ring3_split.context import reach
from ring3_split.graph import Graph
from ring3_split.model import Function, Indirect

Grade = Literal["atomic", "process", "open"]
# Of a field. "contradicted": it may be called in atomic context, and the table says that it may
# sleep. "excused": likewise, with a reason why the call is none. "certain": each call that is seen
# stands in process context. "open": no call in atomic context is seen, but callers that nobody
# sees. "unseen": no call at all. "atomic": the table says so.
Verdict = Literal["contradicted", "excused", "certain", "open", "unseen", "atomic"]


class Site(msgspec.Struct, frozen=True):
    """A call through a field."""

    function: str  # id
    line: int
    grade: Grade
    path: tuple[str, ...]  # of "atomic", the calls that lead there, first function first; else why


class Finding(msgspec.Struct, frozen=True):
    """What is known of a field."""

    field: str
    verdict: Verdict
    row: context.Row | None
    sites: tuple[Site, ...]


@cache
def sleeping() -> frozenset[str]:
    """Functions of the kernel that may sleep."""
    text = resources.files(__package__).joinpath("sleeping.toml").read_bytes()
    return frozenset(
        name
        for names in msgspec.toml.decode(text, type=dict[str, tuple[str, ...]]).values()
        for name in names
    )


def findings(graph: Graph) -> list[Finding]:
    """All fields that the tables know or that the kernel calls, by name."""
    called = sites(graph)
    rows = context.table()
    fields = called.keys() | {key for key in rows if ":" not in key and not key.endswith(".*")}
    return [_finding(field, called.get(field, ())) for field in sorted(fields)]


def _finding(field: str, found: tuple[Site, ...]) -> Finding:
    row = context.row(field)
    grades = {site.grade for site in found}
    verdict: Verdict = "unseen"
    if row is not None and row.context == "atomic":
        verdict = "atomic"
    elif "atomic" in grades:
        verdict = "excused" if row is not None and row.despite else "contradicted"
    elif found:
        verdict = "open" if "open" in grades else "certain"
    return Finding(field, verdict, row, found)


def sites(graph: Graph) -> dict[str, tuple[Site, ...]]:
    """Every call through a field of a struct."""
    atomic, process = reach.atomic(graph), reach.process(graph, sleeping())
    found: dict[str, dict[Site, None]] = defaultdict(dict)
    for key, function in sorted(graph.functions.items()):
        for call in function.indirect:
            if call.field:
                found[call.field][_site(graph, key, call, atomic, process)] = None
    return {field: tuple(some) for field, some in found.items()}


def _site(
    graph: Graph, key: str, call: Indirect, atomic: dict[str, reach.Came], process: dict[str, str]
) -> Site:
    function = graph.functions[key]
    held = tuple(function.regions[place] for place in call.held)
    region = reach.inside(held)
    if region is not None:
        return Site(
            key, call.line, "atomic", (f"{_at(function, call.line)}, {reach.under(region)}",)
        )
    if reach.sleepable(held):
        return Site(
            key,
            call.line,
            "process",
            (f"{_at(function, call.line)}, {held[0].kind} {held[0].name} is held",),
        )
    if key in atomic:
        return Site(
            key, call.line, "atomic", (*_path(graph, key, atomic), f"{_at(function, call.line)}")
        )
    if key in process:
        return Site(
            key,
            call.line,
            "process",
            (f"{_at(function, call.line)}; {function.name} {process[key]}",),
        )
    return Site(key, call.line, "open", (_at(function, call.line),))


def _path(graph: Graph, key: str, atomic: dict[str, reach.Came]) -> Iterator[str]:
    """The calls that lead to a function in atomic context."""
    hops: list[str] = []
    while key:
        came = atomic[key]
        function = graph.functions[key]
        words = f", {came.words}" if came.words else ""
        if came.caller:
            hops.append(f"{_at(graph.functions[came.caller], came.line)}{words}")
        else:
            hops.append(f"{_at(function, function.line)}{words}")
        key = came.caller if not came.words else ""
    yield from reversed(hops)


def _at(function: Function, line: int) -> str:
    return f"{function.name}, {function.file}:{line}"
