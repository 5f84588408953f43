"""In which context the kernel calls a driver.

May the function sleep, and is the lock of network configuration held?

The tables say it for fields of the kernel's structs and for arguments of its API, each with the
place in the kernel where it can be seen. What is not there is not known, and whoever needs to be
safe takes it for atomic: so "struct.*", which stands for all members of a struct that have no line
of their own, may say atomic and nothing else. `ring3 split contexts` compares the tables with the
kernel's own code (cores.py, reach.py, evidence.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from ring3_split.context import brackets
from ring3_split.graph import EXPORT, Graph
from ring3_split.model import Stored

Context = Literal["atomic", "process"]
STATED = "stated by the plan"  # the source of what a person says


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a table."""

    context: Context
    source: str  # "net/core/dev.c: __dev_set_rx_mode", where the kernel calls it
    rtnl: bool = False
    why: str = ""
    # why a call in atomic context that the reader sees in the kernel is none; else the test fails
    despite: str = ""


class Stated(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a person says of a field or an argument, for one driver.

    It goes before the tables, and is never taken for proved.
    """

    context: Context
    why: str
    # a function of the kernel that answers when the caller may not sleep, and without a user half
    instead: str = ""


@dataclass(frozen=True)
class Entry:
    """A way by which the kernel calls a function."""

    context: Context
    rtnl: bool  # held by the caller
    by: str  # "net_device_ops.ndo_open", "request_irq:1"
    source: str = ""
    why: str = ""


def names() -> list[str]:
    """The tables' names, without reading them."""
    files = resources.files(__package__).joinpath("table").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files)


@cache
def tables() -> dict[str, dict[str, Row]]:
    """The tables by name.

    "struct.member", "struct.*" for all others of a struct, or "api:argument".
    """
    folder = resources.files(__package__).joinpath("table")
    files = {name: folder.joinpath(f"{name}.toml") for name in names()}
    return {name: parse(file.read_bytes(), file.name) for name, file in files.items()}


@cache
def table() -> dict[str, Row]:
    """All tables in one."""
    return {key: row for rows in tables().values() for key, row in rows.items()}


def parse(text: bytes, name: str) -> dict[str, Row]:
    """The rows of one table.

    Raises:
        ValueError: a row for all members of a struct says more than that they may not sleep.
    """
    rows = msgspec.toml.decode(text, type=dict[str, Row])
    for key, row in rows.items():
        if key.endswith(".*") and row.context != "atomic":
            raise ValueError(
                f"{name}: {key} is {row.context}: what holds for members that nobody named can "
                "only be atomic"
            )
    return rows


def of(graph: Graph, stated: Mapping[str, Stated] | None = None) -> dict[str, tuple[Entry, ...]]:
    """The entries of which a person or the table knows, of the driver's own functions."""
    found: dict[str, dict[Entry, None]] = defaultdict(dict)
    for function, places in graph.entries.items():
        found[function].update(
            dict.fromkeys(entry for place in places if (entry := _entry(place, stated)) is not None)
        )
    for one in brackets.inside(graph):
        found[one.function][Entry("atomic", False, one.field, one.source, one.why)] = None
    return {
        function: tuple(known) for function, known in found.items() if known and graph.own(function)
    }


def unknown(
    graph: Graph, stated: Mapping[str, Stated] | None = None
) -> dict[str, tuple[Stored, ...]]:
    """The places by which the kernel may call a function, unknown to persons and the table."""
    found = {
        function: tuple(place for place in places if _entry(place, stated) is None)
        for function, places in graph.entries.items()
        if graph.own(function)
    }
    return {function: places for function, places in found.items() if places}


def by(place: Stored) -> str:
    """How the table calls a place."""
    if place.field:
        return place.field
    return EXPORT if place.api == EXPORT else f"{place.api}:{place.argument}" if place.api else ""


def row(name: str) -> Row | None:
    """The row of a field or an argument, as `by` calls it."""
    return table().get(name) or (
        table().get(f"{name.rpartition('.')[0]}.*") if ":" not in name else None
    )


def _entry(place: Stored, stated: Mapping[str, Stated] | None) -> Entry | None:
    name = by(place)
    if stated and name in stated:
        return Entry(stated[name].context, False, name, STATED, stated[name].why)
    found = row(name) if name != EXPORT else None
    return Entry(found.context, found.rtnl, name, found.source, found.why) if found else None
