"""What a crossing costs by itself, and what its owner does with a card.

Loading its driver, and what `ethtool` asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ring3_split.generate.measured import Cost, Spread, Took, ratios, spread

SYSTEM_CALL = "getppid"
# confined: as it is started without an option.
USER_HALVES = ("unconfined", "confined")
CROSSINGS = {
    "upcall": "an upcall",
    "call": "a call down",
    "register": "a read of a register",
    "mapped": "a read of a mapped register",
    SYSTEM_CALL: "getppid",
    "restart": "a restart",
}
QUESTIONS = ("init", "-i", "-S", "-d", "-e", "-k", "link", "settings")


class Crossing(msgspec.Struct, frozen=True):
    """One of them with nothing in it, in all rounds.

    `multiple` is of an unconfined process's system call in the same round.
    """

    what: str
    user_half: str
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


def turns(count: int, rounds: int) -> list[str]:
    """Functions of guest/bench.sh in their order: every other round backwards."""
    once = [f"crossings {count} {user_half}" for user_half in USER_HALVES]
    return [
        turn for number in range(rounds) for turn in (once if number % 2 == 0 else reversed(once))
    ]


def crossings(costs: Sequence[Cost], instruction_us: float | None) -> list[Crossing]:
    """The costs of all rounds as a table."""

    def of(what: str, user_half: str) -> list[float]:
        return [
            cost.ns / 1000 for cost in costs if (cost.what, cost.user_half) == (what, user_half)
        ]

    def row(what: str, user_half: str) -> Crossing:
        us = of(what, user_half)
        instructions = spread(value / instruction_us for value in us) if instruction_us else None
        return Crossing(
            what,
            user_half,
            len(us),
            spread(us),
            instructions,
            ratios(us, of(SYSTEM_CALL, "unconfined")),
        )

    return [
        row(what, user_half)
        for what in CROSSINGS
        for user_half in USER_HALVES
        if of(what, user_half)
    ]


def times(all_of_them: Sequence[Took]) -> list[Time]:
    """The times of all rounds as a table; what a driver does not support is not in it."""

    def of(placement: str, what: str) -> list[float]:
        return [
            one.ns / 1000 for one in all_of_them if (one.placement, one.what) == (placement, what)
        ]

    def row(what: str) -> Time:
        original, split = of("original", what), of("split", what)
        added = spread(mine - other for mine, other in zip(split, original, strict=True))
        return Time(
            what, len(split), spread(original), spread(split), ratios(split, original), added
        )

    return [row(what) for what in QUESTIONS if of("original", what)]


def table_of_crossings(rows: Iterable[Crossing]) -> list[str]:
    """For people."""
    lines = [f"  {'':40}{'us':>34}{'instructions':>14}{'system calls':>34}"]
    for row in rows:
        instructions = f"{row.instructions.median:,.0f}" if row.instructions else "-"
        name = CROSSINGS[row.what] + (", confined" if row.user_half == "confined" else "")
        lines.append(
            f"  {name:40}{_told(row.us, 2):>34}{instructions:>14}{_told(row.multiple, 1):>34}"
        )
    return lines


def table_of_times(rows: Iterable[Time]) -> list[str]:
    """For people."""
    lines = [f"  {'':24}{'original, us':>44}{'split, us':>44}{'ratio':>20}"]
    for row in rows:
        name = "insmod until its netdev" if row.what == "init" else f"ethtool {row.what}"
        lines.append(
            f"  {name:24}{_told(row.original_us, 1):>44}{_told(row.split_us, 1):>44}"
            f"{_told(row.ratio, 2):>20}"
        )
    return lines


def _told(spread: Spread, places: int) -> str:
    return f"{spread.median:,.{places}f} ({spread.min:,.{places}f}-{spread.max:,.{places}f})"
