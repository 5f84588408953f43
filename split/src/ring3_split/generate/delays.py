"""TCP while every crossing costs more than it does: Figure 4 of [Microdrivers]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ring3_split.generate.measured import Sample, Spread, ratios, spread
from ring3_split.generate.placements import NAMES, told

USUAL = (0, 1, 10, 100, 1000, 20000)  # microseconds
LOADS = ("out", "in", "paced")


class Delay(msgspec.Struct, frozen=True):
    """One load with one delay in all rounds, None for the distribution's driver.

    Ratios are to that of the same round.
    """

    delay_us: int | None
    load: str
    rounds: int
    mbit_s: Spread
    cpu_percent: Spread
    cpu_us_per_packet: Spread
    crossings_s: Spread
    mbit_s_ratio: Spread
    cpu_ratio: Spread  # of the time per packet


def turns(delays: Sequence[int], rounds: int) -> list[str]:
    """Functions of guest/bench.sh in their order: every other round backwards."""
    split = f"delayed {' '.join(map(str, delays))}"
    back = f"delayed {' '.join(map(str, reversed(delays)))}"
    return [
        turn
        for number in range(rounds)
        for turn in (("undelayed", split) if number % 2 == 0 else (back, "undelayed"))
    ]


def placement(delay: int | None) -> str:
    """What a guest's line calls it."""
    return "undelayed" if delay is None else f"delay-{delay}"


def rows(samples: Sequence[Sample], delays: Sequence[int]) -> list[Delay]:
    """The samples of all rounds, in their order, as a table."""

    def of(delay: int | None, load: str) -> list[Sample]:
        return [
            sample
            for sample in samples
            if (sample.placement, sample.load) == (placement(delay), load)
        ]

    def row(delay: int | None, load: str) -> Delay:
        mine, originals = of(delay, load), of(None, load)
        return Delay(
            delay,
            load,
            len(mine),
            spread(one.mbit_s for one in mine),
            spread(100 - one.idle_percent for one in mine),
            spread(one.cpu_us_per_packet for one in mine),
            spread(one.crossings_s for one in mine),
            ratios((one.mbit_s for one in mine), (one.mbit_s for one in originals)),
            ratios(
                (one.cpu_us_per_packet for one in mine),
                (one.cpu_us_per_packet for one in originals),
            ),
        )

    return [row(delay, load) for load in LOADS for delay in (None, *delays)] if delays else []


def table(rows: Iterable[Delay]) -> list[str]:
    """For people."""
    head = (
        f"  {'delay':10}{'':10}{'Mbit/s':>10}{'ratio':>24}{'CPU %':>8}"
        f"{'us/packet':>11}{'ratio':>24}{'crossings/s':>13}"
    )
    lines = [head]
    for row in rows:
        name = "original" if row.delay_us is None else f"{row.delay_us} us"
        lines.append(
            f"  {name:10}{NAMES[row.load]:10}{row.mbit_s.median:10.1f}"
            f"{told(row.mbit_s_ratio):>24}{row.cpu_percent.median:8.1f}"
            f"{row.cpu_us_per_packet.median:11.1f}{told(row.cpu_ratio):>24}"
            f"{row.crossings_s.median:13.1f}"
        )
    return lines
