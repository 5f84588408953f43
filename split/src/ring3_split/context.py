"""In which context the kernel calls a driver: may the function sleep, and is the lock of network configuration held?

The table context.toml says it for fields of the kernel's structs and for arguments of its API, each with the file of the
kernel in which it can be seen. What is not in the table is not known, and whoever needs to be safe takes it for atomic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from ring3_split.graph import EXPORT, Graph
from ring3_split.model import Stored

Context = Literal["atomic", "process"]


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the table."""

    context: Context
    source: str  # "net/core/dev.c: __dev_set_rx_mode", where the kernel calls it
    rtnl: bool = False
    why: str = ""


@dataclass(frozen=True)
class Entry:
    """A way by which the kernel calls a function."""

    context: Context
    rtnl: bool  # held by the caller
    by: str  # "net_device_ops.ndo_open", "request_irq:1"
    source: str = ""
    why: str = ""


@cache
def table() -> dict[str, Row]:
    """The table: "struct.member", "struct.*" for all others of a struct, or "api:argument"."""
    text = resources.files(__package__).joinpath("context.toml").read_bytes()
    sections = msgspec.toml.decode(text, type=dict[str, dict[str, Row]])
    return {key: row for rows in sections.values() for key, row in rows.items()}


def of(graph: Graph) -> dict[str, tuple[Entry, ...]]:
    """The entries of which the table knows, of the driver's own functions."""
    found: dict[str, tuple[Entry, ...]] = {}
    for function, places in graph.entries.items():
        known = dict.fromkeys(entry for entry in (_entry(place) for place in places) if entry is not None)
        if known and graph.own(function):
            found[function] = tuple(known)
    return found


def unknown(graph: Graph) -> dict[str, tuple[Stored, ...]]:
    """The places by which the kernel may call a function and of which the table does not know."""
    found = {
        function: tuple(place for place in places if _entry(place) is None)
        for function, places in graph.entries.items()
        if graph.own(function)
    }
    return {function: places for function, places in found.items() if places}


def by(place: Stored) -> str:
    """How the table calls a place."""
    if place.field:
        return place.field
    return EXPORT if place.api == EXPORT else f"{place.api}:{place.argument}" if place.api else ""


def _entry(place: Stored) -> Entry | None:
    name = by(place)
    row = table().get(name) or (table().get(f"{name.rpartition('.')[0]}.*") if place.field else None)
    return Entry(row.context, row.rtnl, name, row.source, row.why) if row else None
