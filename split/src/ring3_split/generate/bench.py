"""A split driver beside the driver that it was made of, under the same load in one guest, in turns.

`ring3 split bench`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomlkit

from ring3_split import shared_report
from ring3_split.errors import Refusal
from ring3_split.generate import costs, delays, empty, placements
from ring3_split.generate import run as running
from ring3_split.generate.build import Built
from ring3_split.generate.measured import Cost, Line, Sample, Took, parse
from ring3_split.generate.run import GUEST
from ring3_split.kernel import Kernel
from ring3_split.profile import lab, scenario, shipped
from ring3_split.profile.headers import shipped as shipped_modules

INSTRUCTION_SHIFT = 4  # an instruction takes 2^4 ns
INSTRUCTION_US = (1 << INSTRUCTION_SHIFT) / 1000
Mode = Literal["instructions", "wall"]
Step = tuple[str, str]  # what it is, shell


@dataclass(frozen=True)
class Request(running.Request):
    """What is asked for."""

    rounds: int = 3
    mode: Mode = "instructions"
    placements: bool = True
    everywhere: bool = False  # in processes, too
    delays: tuple[int, ...] = ()  # microseconds that each crossing costs in addition
    crossings: int = 0  # of each kind
    ethtool: int = 0  # questions of each kind


class Report(msgspec.Struct, frozen=True):
    """All of it; what was not asked for is empty."""

    driver: str
    kernel: str
    mode: Mode
    seconds: float
    rows: list[placements.Row] = msgspec.field(default_factory=list, name="placements")
    delays: list[delays.Delay] = []
    crossings: list[costs.Crossing] = []
    times: list[costs.Time] = []


def check(driver: str) -> None:
    """Makes sure that there is a load for the driver's device.

    Raises:
        Refusal: there is none.
    """
    if running.check(driver) != "network":
        raise Refusal(f"{driver}: there are loads for network cards alone")


def bench(
    kernel: Kernel, driver: str, built: Built, request: Request, show: Callable[[str, bool], None]
) -> Report:
    """Measures.

    Raises:
        Refusal: the lab or a step failed; its output is in the log.
    """
    check(driver)
    with tempfile.TemporaryDirectory(prefix="ring3-split-") as name:
        folder = Path(name)
        (folder / "shipped").mkdir()
        original = shipped.unpack(
            shipped_modules(kernel, request.cache), driver, folder / "shipped"
        )
        one = running.guest_run(kernel, driver, built, request.seconds)
        added = [original, GUEST / "bench.sh"]
        programs: list[Path] = []
        if request.crossings:
            halves = empty.build(kernel, built.runtime)
            added, programs = [*added, halves.module], [halves.program]
        (folder / "scenario.toml").write_text(text(one, built.layout, added, programs, request))
        lines: list[Line] = []

        def hear(line: str, step: bool) -> None:
            if line.endswith(lab.AGAIN):
                lines.clear()
            found = None if step else parse(line)
            if found:
                lines.append(found)
            show(line, step)

        lab.run(folder / "scenario.toml", request.cache, folder / "out", request.log, hear)
    return report(driver, kernel.name, lines, request)


def report(driver: str, kernel: str, lines: list[Line], request: Request) -> Report:
    """What the guest has said, as tables."""
    instruction_us = INSTRUCTION_US if request.mode == "instructions" else None
    samples = [line for line in lines if isinstance(line, Sample)]
    return Report(
        driver,
        kernel,
        request.mode,
        request.seconds,
        placements.rows(samples, instruction_us),
        delays.rows(samples, request.delays),
        costs.crossings([line for line in lines if isinstance(line, Cost)], instruction_us),
        costs.times([line for line in lines if isinstance(line, Took)]),
    )


def told(report: Report, others: shared_report.Others | None = None) -> dict[str, Any]:
    """The form that all of ring3's reports have."""
    shift = INSTRUCTION_SHIFT if report.mode == "instructions" else None
    lab_of_it = shared_report.Lab(
        report.kernel, "unknown", report.mode, 1, 1 << shift if shift else 0
    )
    rows = [
        *(("tcp-" + row.load, row.placement, row) for row in report.rows),
        *(("tcp-" + row.load, delays.placement(row.delay_us), row) for row in report.delays),
        *((row.what, row.user_half, row) for row in report.crossings),
        *((row.what, "split", row) for row in report.times),
    ]
    spreads = [row for one in rows for row in shared_report.spreads(*one)]
    return shared_report.told(
        "split", (shared_report.provenance(others), lab_of_it), spreads, report
    )


def steps(request: Request) -> list[Step]:
    """(what it is, functions of guest/bench.sh) of all that is measured."""
    turns = []
    if request.crossings:
        turns += costs.turns(request.crossings, request.rounds)
    if request.ethtool:
        turns += [f"asked {request.ethtool} {turn}" for turn in placements.turns(request.rounds)]
    if request.placements:
        turns += placements.turns(request.rounds, request.everywhere)
    turns += delays.turns(request.delays, request.rounds) if request.delays else []
    return [(f"{turn}, {number} of {len(turns)}", turn) for number, turn in enumerate(turns, 1)]


def text(
    run: scenario.Run, layout: str, added: list[Path], programs: list[Path], request: Request
) -> str:
    """The scenario's file: the one of a split driver's run with other steps.

    `added[0]` is the distribution's module.
    """
    document: dict[str, Any] = tomlkit.parse(
        running.text(run, "network", layout, running.Wanted())
    ).unwrap()
    document["about"] = f"{run.driver} as the distribution has it, and split, under the same load"
    document |= {"mode": request.mode, "vcpus": 1}
    if request.everywhere:
        # A process needs the IOMMU, which the others then have as well.
        document |= {"iommu": "intel", "hosted": [run.driver]}
        document["modules"] += ["vfio-pci", "vfio_iommu_type1", "tun", "vhost_net"]
    if request.mode == "instructions":
        document["instruction_shift"] = INSTRUCTION_SHIFT
    original = f"/lib/ring3/original/{added[0].name}"
    document["files"] |= {original: str(added[0])} | {
        f"/lib/ring3/{file.name}": str(file) for file in added[1:]
    }
    document["programs"] += map(str, programs)
    document["variables"] |= {"ORIGINAL": original}
    shell = "".join(f". /lib/ring3/{name}.sh; " for name in ("split", "network", "bench"))
    all_steps = [
        ("the peer is there", scenario.prepare(run)),
        *steps(request),
        ("the kernel has nothing to say", "kernel_is_well"),
    ]
    loads = len(request.delays) * len(delays.LOADS) + placements.LOADS_OF_TURN
    document["time_limit"] = int(scenario.SETUP + len(all_steps) * (240 + 20 * loads * run.seconds))
    document["step"] = [{"name": name, "run": f"{shell}{command}"} for name, command in all_steps]
    return tomlkit.dumps(document)


def show(report: Report) -> str:
    """For people."""
    clock = (
        "by the instruction clock, 16 ns each"
        if report.mode == "instructions"
        else "by the wall clock"
    )
    lines = [
        f"{report.driver}, {report.kernel}, {clock}: medians, with the smallest and the largest"
    ]
    if report.rows or report.delays:
        lines.append(f"TCP, {report.seconds:g} s each; the peer's work is in it")
    lines += placements.table(report.rows) if report.rows else []
    lines += delays.table(report.delays) if report.delays else []
    lines += costs.table_of_crossings(report.crossings) if report.crossings else []
    lines += costs.table_of_times(report.times) if report.times else []
    return "\n".join(lines)
