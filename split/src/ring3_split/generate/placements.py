"""The driver as the distribution has it, and split, with a user half that lives, is killed, or is not there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ring3_split.generate.measured import Sample, Spread, ratios, spread

# original: the distribution's module. split: its user half lives; killed: it is killed every two seconds; dead: there is none.
PLACEMENTS = ("original", "split", "killed", "dead")
LOADS = ("out", "in")
NAMES = {"out": "sent", "in": "received", "paced": "paced"}
LOADS_OF_TURN = 6  # at most


class Row(msgspec.Struct, frozen=True):
    """One load under one placement, in all rounds; ratios are to the original's of the same round."""

    placement: str
    load: str
    rounds: int
    mbit_s: Spread
    packets_s: Spread
    cpu_us_per_packet: Spread
    instructions_per_packet: Spread | None  # by the instruction clock
    idle_percent: Spread
    crossings_s: Spread
    mbit_s_ratio: Spread
    cpu_ratio: Spread  # of the time per packet
    instructions_ratio: Spread | None


def turns(rounds: int) -> list[str]:
    """Functions of guest/bench.sh in their order: every other round backwards."""
    return [turn for number in range(rounds) for turn in (("original", "split") if number % 2 == 0 else ("split", "original"))]


def rows(samples: Sequence[Sample], instruction_us: float | None) -> list[Row]:
    """The samples of all rounds, in their order, as a table. An instruction takes so long; None: it is not known."""

    def of(placement: str, load: str) -> list[Sample]:
        return [sample for sample in samples if (sample.placement, sample.load) == (placement, load)]

    def row(placement: str, load: str) -> Row:
        mine, originals = of(placement, load), of("original", load)
        cpu = ratios((one.cpu_us_per_packet for one in mine), (one.cpu_us_per_packet for one in originals))
        per_packet = [one.cpu_us_per_packet for one in mine]
        return Row(
            placement,
            load,
            len(mine),
            spread(one.mbit_s for one in mine),
            spread(one.packets_s for one in mine),
            spread(per_packet),
            spread(value / instruction_us for value in per_packet) if instruction_us else None,
            spread(one.idle_percent for one in mine),
            spread(one.crossings_s for one in mine),
            ratios((one.mbit_s for one in mine), (one.mbit_s for one in originals)),
            cpu,
            cpu if instruction_us else None,
        )

    return [row(placement, load) for load in LOADS for placement in PLACEMENTS] if of("split", "in") else []


def table(rows: Iterable[Row]) -> list[str]:
    """For people."""
    head = f"  {'':10}{'':10}{'Mbit/s':>10}{'ratio':>24}{'us/packet':>11}{'ratio':>24}{'instr/packet':>14}{'idle %':>8}"
    lines = [head]
    for row in rows:
        instructions = f"{row.instructions_per_packet.median:.0f}" if row.instructions_per_packet else "-"
        lines.append(
            f"  {NAMES[row.load]:10}{row.placement:10}{row.mbit_s.median:10.1f}{told(row.mbit_s_ratio):>24}"
            f"{row.cpu_us_per_packet.median:11.1f}{told(row.cpu_ratio):>24}{instructions:>14}{row.idle_percent.median:8.1f}"
        )
    return lines


def told(spread: Spread) -> str:
    """A ratio, with its spread."""
    return f"{spread.median:.3f} ({spread.min:.3f}-{spread.max:.3f})"
