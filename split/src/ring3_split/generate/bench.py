"""A split driver beside the driver that it was made of, under the same load in one guest, in turns: `ring3 split bench`."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tomlkit

from ring3_split.errors import Refusal
from ring3_split.generate import run as running
from ring3_split.generate.build import Built
from ring3_split.generate.run import GUEST
from ring3_split.kernel import Kernel
from ring3_split.profile import lab, scenario, shipped
from ring3_split.profile.headers import shipped as shipped_modules

# original: the distribution's module. split: its user half lives; killed: it is killed every two seconds; dead: there is none.
PLACEMENTS = ("original", "split", "killed", "dead")
LOADS = ("out", "in")
MARK = "measured "
INSTRUCTION_SHIFT = 4  # an instruction takes 2^4 ns
INSTRUCTION_NS = 1 << INSTRUCTION_SHIFT
TICK_S = 0.01  # of /proc/stat


@dataclass(frozen=True)
class Request(running.Request):
    """What is asked for."""

    rounds: int = 3


class Sample(msgspec.Struct, frozen=True):
    """One load under one placement."""

    placement: str
    load: str
    mbit_s: float
    packets_s: float
    instructions_per_packet: float
    idle_percent: float


class Spread(msgspec.Struct, frozen=True):
    """Of several rounds."""

    min: float
    median: float
    max: float


class Row(msgspec.Struct, frozen=True):
    """One load under one placement, in all rounds; ratios are to the original's of the same round."""

    placement: str
    load: str
    rounds: int
    mbit_s: Spread
    packets_s: Spread
    instructions_per_packet: Spread
    idle_percent: Spread
    mbit_s_ratio: Spread
    instructions_ratio: Spread


class Report(msgspec.Struct, frozen=True):
    """All of it."""

    driver: str
    kernel: str
    seconds: float
    rows: list[Row]


def check(driver: str) -> None:
    """Makes sure that there is a load for the driver's device.

    Raises:
        Refusal: there is none.
    """
    if running.check(driver) != "network":
        raise Refusal(f"{driver}: there are loads for network cards alone")


def parse(line: str) -> Sample:
    """Of the guest's line `measured PLACEMENT LOAD BYTES SECONDS IDLE PACKETS IDLE PACKETS`.

    Raises:
        Refusal: it is none.
    """
    words = line.removeprefix(MARK).split()
    try:
        placement, load = words[:2]
        size, seconds, idle, packets, idle_after, packets_after = map(float, words[2:])
        count, idled = packets_after - packets, min((idle_after - idle) * TICK_S, seconds)
        return Sample(
            placement,
            load,
            size * 8 / seconds / 1e6,
            count / seconds,
            (seconds - idled) * 1e9 / INSTRUCTION_NS / count,
            100 * idled / seconds,
        )
    except (ValueError, ZeroDivisionError):
        raise Refusal(f"the guest says {line!r}, which is no measurement") from None


def rows(samples: list[Sample]) -> list[Row]:
    """The samples of all rounds, in their order, as a table."""

    def of(placement: str, load: str) -> list[Sample]:
        return [sample for sample in samples if (sample.placement, sample.load) == (placement, load)]

    def row(placement: str, load: str) -> Row:
        mine, originals = of(placement, load), of("original", load)
        pairs = list(zip(mine, originals, strict=True))
        return Row(
            placement,
            load,
            len(mine),
            spread(one.mbit_s for one in mine),
            spread(one.packets_s for one in mine),
            spread(one.instructions_per_packet for one in mine),
            spread(one.idle_percent for one in mine),
            spread(one.mbit_s / original.mbit_s for one, original in pairs),
            spread(one.instructions_per_packet / original.instructions_per_packet for one, original in pairs),
        )

    return [row(placement, load) for load in LOADS for placement in PLACEMENTS]


def spread(values: Iterable[float]) -> Spread:
    """Of some values, one at least."""
    all_of_them = sorted(values)
    return Spread(all_of_them[0], statistics.median(all_of_them), all_of_them[-1])


def bench(kernel: Kernel, driver: str, built: Built, request: Request, show: Callable[[str, bool], None]) -> Report:
    """Measures.

    Raises:
        Refusal: the lab or a step failed; its output is in the log.
    """
    check(driver)
    with tempfile.TemporaryDirectory(prefix="ring3-split-") as name:
        folder = Path(name)
        (folder / "shipped").mkdir()
        original = shipped.unpack(shipped_modules(kernel, request.cache), driver, folder / "shipped")
        one = running.guest_run(kernel, driver, built, request.seconds)
        (folder / "scenario.toml").write_text(text(one, built.layout, original, request.rounds))
        samples = []

        def hear(line: str, step: bool) -> None:
            if line.startswith(MARK):
                samples.append(parse(line))
            show(line, step)

        lab.run(folder / "scenario.toml", request.cache, folder / "out", request.log, hear)
    return Report(driver, kernel.name, request.seconds, rows(samples))


def text(run: scenario.Run, layout: str, original: Path, rounds: int) -> str:
    """The scenario's file: the one of a split driver's run with other steps, by the instruction clock."""
    document: dict[str, Any] = tomlkit.parse(running.text(run, "network", layout, 0)).unwrap()
    files = {"/lib/ring3/bench.sh": GUEST / "bench.sh", f"/lib/ring3/original/{original.name}": original}
    document["about"] = f"{run.driver} as the distribution has it, and split, under the same load"
    document |= {"mode": "instructions", "instruction_shift": INSTRUCTION_SHIFT}
    document["files"] |= {name: str(file) for name, file in files.items()}
    document["variables"] |= {"ORIGINAL": f"/lib/ring3/original/{original.name}"}
    shell = "".join(f". /lib/ring3/{name}.sh; " for name in ("split", "network", "bench"))
    turns = [turn for number in range(rounds) for turn in (("original", "split") if number % 2 == 0 else ("split", "original"))]
    document["time_limit"] = int(scenario.SETUP + len(turns) * (240 + 100 * run.seconds))
    steps = [
        ("the peer is there", "prepare"),
        *((f"{turn}, {number // 2 + 1} of {rounds}", turn) for number, turn in enumerate(turns)),
    ]
    document["step"] = [
        {"name": name, "run": f"{shell}{command}"}
        for name, command in [*steps, ("the kernel has nothing to say", "kernel_is_well")]
    ]
    return tomlkit.dumps(document)


def show(report: Report) -> str:
    """For people."""
    head = f"{report.driver}, {report.kernel}: TCP, {report.seconds:g} s each by the instruction clock; the peer's work is in it"
    names = {"out": "sent", "in": "received"}
    lines = [head, f"  {'':10}{'':10}{'Mbit/s':>10}{'ratio':>24}{'instr/packet':>14}{'ratio':>24}{'idle %':>8}"]
    for row in report.rows:
        lines.append(
            f"  {names[row.load]:10}{row.placement:10}{row.mbit_s.median:10.1f}{_ratio(row.mbit_s_ratio):>24}"
            f"{row.instructions_per_packet.median:14.0f}{_ratio(row.instructions_ratio):>24}{row.idle_percent.median:8.1f}"
        )
    return "\n".join(lines)


def _ratio(spread: Spread) -> str:
    return f"{spread.median:.3f} ({spread.min:.3f}-{spread.max:.3f})"
