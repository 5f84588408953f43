"""The driver as the distribution has it, split, and in a process.

Split, its user half lives, is killed, or is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ring3_split.generate.measured import Sample, Spread, ratios, spread

# original: the distribution's module. split: its user half lives; killed: it is killed every two
# seconds; dead: there is none. native: ring3's own driver, hosted: Linux's, each a process whose
# card is an interface (TAP).
PLACEMENTS = ("original", "split", "killed", "dead", "native", "hosted")
PROCESSES = ("native", "hosted")
EVERYWHERE = ("e1000", "e1000e", "igb")  # drivers whose cards ring3 has one for, too
LOADS = ("out", "in")
NAMES = {"out": "sent", "in": "received", "paced": "paced"}
LOADS_OF_TURN = 6  # at most


class Row(msgspec.Struct, frozen=True):
    """One load under one placement, in all rounds; ratios are to the original's of the same round.

    A process has no figures per packet: an interface counts what the card has not cut yet, and what
    was put together.
    """

    placement: str
    load: str
    rounds: int
    mbit_s: Spread
    packets_s: Spread | None
    cpu_us_per_packet: Spread | None
    instructions_per_packet: Spread | None  # by the instruction clock
    idle_percent: Spread
    crossings_s: Spread
    mbit_s_ratio: Spread
    cpu_ratio: Spread | None  # of the time per packet
    instructions_ratio: Spread | None


def turns(rounds: int, everywhere: bool = False) -> list[str]:
    """Functions of guest/bench.sh in their order: every other round backwards."""
    once = ["original", "split", *(PROCESSES if everywhere else ())]
    return [
        turn for number in range(rounds) for turn in (once if number % 2 == 0 else reversed(once))
    ]


def rows(samples: Sequence[Sample], instruction_us: float | None) -> list[Row]:
    """The samples of all rounds, in their order, as a table.

    An instruction takes so long; None: it is not known.
    """

    def of(placement: str, load: str) -> list[Sample]:
        return [
            sample for sample in samples if (sample.placement, sample.load) == (placement, load)
        ]

    def row(placement: str, load: str) -> Row:
        mine, originals = of(placement, load), of("original", load)
        per_packet = None if placement in PROCESSES else [one.cpu_us_per_packet for one in mine]
        cpu = (
            ratios(per_packet, (one.cpu_us_per_packet for one in originals)) if per_packet else None
        )
        return Row(
            placement,
            load,
            len(mine),
            spread(one.mbit_s for one in mine),
            spread(one.packets_s for one in mine) if per_packet else None,
            spread(per_packet) if per_packet else None,
            spread(value / instruction_us for value in per_packet)
            if per_packet and instruction_us
            else None,
            spread(one.idle_percent for one in mine),
            spread(one.crossings_s for one in mine),
            ratios((one.mbit_s for one in mine), (one.mbit_s for one in originals)),
            cpu,
            cpu if instruction_us else None,
        )

    return [
        row(placement, load) for load in LOADS for placement in PLACEMENTS if of(placement, load)
    ]


def table(rows: Iterable[Row]) -> list[str]:
    """For people."""
    head = (
        f"  {'':10}{'':10}{'Mbit/s':>10}{'ratio':>24}{'us/packet':>11}{'ratio':>24}"
        f"{'instr/packet':>14}{'idle %':>8}"
    )
    lines = [head]
    for row in rows:
        instructions = (
            f"{row.instructions_per_packet.median:.0f}" if row.instructions_per_packet else "-"
        )
        us = f"{row.cpu_us_per_packet.median:.1f}" if row.cpu_us_per_packet else "-"
        lines.append(
            f"  {NAMES[row.load]:10}{row.placement:10}{row.mbit_s.median:10.1f}"
            f"{told(row.mbit_s_ratio):>24}"
            f"{us:>11}{told(row.cpu_ratio):>24}{instructions:>14}{row.idle_percent.median:8.1f}"
        )
    return lines


def told(spread: Spread | None) -> str:
    """A ratio, with its spread."""
    if spread is None:
        return "-"
    return f"{spread.median:.3f} ({spread.min:.3f}-{spread.max:.3f})"
