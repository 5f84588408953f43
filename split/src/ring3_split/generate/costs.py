"""What a crossing costs by itself, and what its owner does with a card: loading its driver, and what `ethtool` asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ring3_split.generate.measured import Cost, Spread, Took, ratios, spread

SYSTEM_CALL = "getppid"
CROSSINGS = {
    "upcall": "an upcall",
    "call": "a call down",
    "register": "a read of a register",
    "mapped": "a read of a mapped register",
    SYSTEM_CALL: "getppid",
}
QUESTIONS = ("init", "-i", "-S", "-d", "-e", "-k", "link", "settings")


class Crossing(msgspec.Struct, frozen=True):
    """One of them with nothing in it, in all rounds; `multiple` is of a system call in the same round."""

    what: str
    rounds: int
    us: Spread
    instructions: Spread | None  # by the instruction clock
    multiple: Spread


class Time(msgspec.Struct, frozen=True):
    """What the distribution's driver and the split one take for the same, in all rounds."""

    what: str
    rounds: int
    original_us: Spread
    split_us: Spread
    ratio: Spread
    added_us: Spread


def crossings(costs: Sequence[Cost], instruction_us: float | None) -> list[Crossing]:
    """The costs of all rounds as a table."""

    def of(what: str) -> list[float]:
        return [cost.ns / 1000 for cost in costs if cost.what == what]

    def row(what: str) -> Crossing:
        us = of(what)
        instructions = spread(value / instruction_us for value in us) if instruction_us else None
        return Crossing(what, len(us), spread(us), instructions, ratios(us, of(SYSTEM_CALL)))

    return [row(what) for what in CROSSINGS if of(what)]


def times(all_of_them: Sequence[Took]) -> list[Time]:
    """The times of all rounds as a table; what a driver does not support is not in it."""

    def of(placement: str, what: str) -> list[float]:
        return [one.ns / 1000 for one in all_of_them if (one.placement, one.what) == (placement, what)]

    def row(what: str) -> Time:
        original, split = of("original", what), of("split", what)
        added = spread(mine - other for mine, other in zip(split, original, strict=True))
        return Time(what, len(split), spread(original), spread(split), ratios(split, original), added)

    return [row(what) for what in QUESTIONS if of("original", what)]


def table_of_crossings(rows: Iterable[Crossing]) -> list[str]:
    """For people."""
    lines = [f"  {'':24}{'us':>26}{'instructions':>14}{'system calls':>22}"]
    for row in rows:
        instructions = f"{row.instructions.median:,.0f}" if row.instructions else "-"
        lines.append(f"  {CROSSINGS[row.what]:28}{_told(row.us, 2):>26}{instructions:>14}{_told(row.multiple, 1):>22}")
    return lines


def table_of_times(rows: Iterable[Time]) -> list[str]:
    """For people."""
    lines = [f"  {'':24}{'original, us':>44}{'split, us':>44}{'ratio':>20}"]
    for row in rows:
        name = "insmod until its netdev" if row.what == "init" else f"ethtool {row.what}"
        lines.append(f"  {name:24}{_told(row.original_us, 1):>44}{_told(row.split_us, 1):>44}{_told(row.ratio, 2):>20}")
    return lines


def _told(spread: Spread, places: int) -> str:
    return f"{spread.median:,.{places}f} ({spread.min:,.{places}f}-{spread.max:,.{places}f})"
