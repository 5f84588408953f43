"""The kernel's lock API as data: which call takes what, and which gives it back.

The table is locks.toml. Wrappers that it does not know are followed by regions.py.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from ring3_split.model import Kind

SPINNING = (Kind.SPIN, Kind.SPIN_BH, Kind.SPIN_IRQ)


def family(kind: Kind) -> Kind:
    """The kind of lock that a release has to match.

    The three spins are one lock with different company.
    """
    return Kind.SPIN if kind in SPINNING else kind


def company(kind: Kind) -> Kind | None:
    """What a spin switches off beside preemption."""
    return {Kind.SPIN_BH: Kind.BH_OFF, Kind.SPIN_IRQ: Kind.IRQ_OFF}.get(kind)


@dataclass(frozen=True, slots=True)
class Entry:
    """What one function of the kernel does to a lock."""

    kind: Kind
    takes: bool  # else gives back
    argument: int | None  # which argument is the lock
    name: str  # its name, when it is the only one of its kind
    when: str  # takes it only if the result is this: "nonzero", "zero"; "" always
    inlined: bool = False  # a unit that has the function is believed before this


@dataclass(frozen=True)
class Table:
    """locks.toml, read."""

    entries: dict[str, Entry]
    prefixes: tuple[str, ...]
    suffixes: tuple[str, ...]

    def find(self, symbol: str) -> Entry | None:
        """The entry of a symbol, under its own name or without what kernels put around it."""
        if "_" not in symbol and symbol not in self.entries:
            return None
        names = [
            symbol,
            *(symbol.removeprefix(prefix) for prefix in self.prefixes if symbol.startswith(prefix)),
        ]
        for name in names:
            if name in self.entries:
                return self.entries[name]
        for name in names:
            for suffix in self.suffixes:
                if name.endswith(suffix) and name.removesuffix(suffix) in self.entries:
                    return self.entries[name.removesuffix(suffix)]
        return None


@cache
def table() -> Table:
    """The table, read once."""
    text = resources.files(__package__).joinpath("locks.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    entries = {
        name: _entry(row)
        for part in data.values()
        if isinstance(part, dict)
        for name, row in part.items()
    }
    return Table(entries, tuple(data["prefixes"]), tuple(data["suffixes"]))


def _entry(row: dict[str, Any]) -> Entry:
    kind = Kind(row.get("takes") or row["gives"])
    return Entry(
        kind,
        "takes" in row,
        row.get("lock"),
        row.get("name", ""),
        row.get("when", ""),
        row.get("inlined", False),
    )
