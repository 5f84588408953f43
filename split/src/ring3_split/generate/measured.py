"""What a guest of `ring3 split bench` says, line by line, and how several rounds of it are told."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

import msgspec

from ring3_split.errors import Refusal

TICK_S = 0.01  # of /proc/stat


class Spread(msgspec.Struct, frozen=True):
    """Of several rounds."""

    min: float
    median: float
    max: float


class Sample(msgspec.Struct, frozen=True):
    """`measured PLACEMENT LOAD BYTES SECONDS` and twice `IDLE PACKETS CROSSINGS`.

    One load under one placement.
    """

    placement: str
    load: str
    mbit_s: float
    packets_s: float
    cpu_us_per_packet: float  # all that is not idle
    idle_percent: float
    crossings_s: float


class Took(msgspec.Struct, frozen=True):
    """`took PLACEMENT WHAT NANOSECONDS`: something that an owner of a card does."""

    placement: str
    what: str
    ns: float


class Cost(msgspec.Struct, frozen=True):
    """`cost USER_HALF WHAT NANOSECONDS TIMES`: one of many crossings of the empty driver."""

    user_half: str
    what: str
    ns: float


Line = Sample | Took | Cost


def parse(line: str) -> Line | None:
    """What a line says; None if it is no measurement.

    Raises:
        Refusal: it begins as one and is none.
    """
    word, _, rest = line.partition(" ")
    readers: dict[str, Callable[[list[str]], Line]] = {
        "measured": _sample,
        "took": _took,
        "cost": _cost,
    }
    if word not in readers:
        return None
    try:
        return readers[word](rest.split())
    except (ValueError, ZeroDivisionError):
        raise Refusal(f"the guest says {line!r}, which is no measurement") from None


def _sample(words: list[str]) -> Sample:
    placement, load = words[:2]
    size, seconds, idle, packets, crossings, idle_after, packets_after, crossings_after = map(
        float, words[2:]
    )
    count, idled = packets_after - packets, min((idle_after - idle) * TICK_S, seconds)
    return Sample(
        placement,
        load,
        size * 8 / seconds / 1e6,
        count / seconds,
        (seconds - idled) * 1e6 / count,
        100 * idled / seconds,
        (crossings_after - crossings) / seconds,
    )


def _took(words: list[str]) -> Took:
    placement, what, ns = words
    return Took(placement, what, float(ns))


def _cost(words: list[str]) -> Cost:
    user_half, what, ns, times = words
    return Cost(user_half, what, float(ns) / float(times))


def spread(values: Iterable[float]) -> Spread:
    """Of some values, one at least."""
    all_of_them = sorted(values)
    return Spread(all_of_them[0], statistics.median(all_of_them), all_of_them[-1])


def ratios(mine: Iterable[float], others: Iterable[float]) -> Spread:
    """Of each value to the other one of its round."""
    return spread(one / other for one, other in zip(mine, others, strict=True))
