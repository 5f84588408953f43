"""The report of a measurement: the form of docs/report.md, the same as that of `ring3 bench`."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

SCHEMA, VERSION = "ring3-report", 1
UNITS = {
    "mbit_s": "Mb/s",
    "packets_s": "1/s",
    "crossings_s": "1/s",
    "percent": "%",
    "us": "us",
    "cpu_us_per_packet": "us",
    "instructions_per_packet": "instructions",
    "instructions": "instructions",
}
OTHER_THAN_BUSY = (3, 4)  # of the fields of /proc/stat: idle, iowait


class Provenance(msgspec.Struct, frozen=True):
    """Where a report comes from."""

    version: str
    commit: str | None
    date: str
    command: str
    processor: str
    processors: int
    others_percent: float | None


class Lab(msgspec.Struct, frozen=True):
    """Where it was measured."""

    kernel: str
    qemu: str = "none"
    mode: str = "wall"
    vcpus: int = 1
    instruction_ns: int = 0
    disk: str = ""
    quick: bool = False


class Row(msgspec.Struct, frozen=True):
    """One metric of one load in one placement over all rounds."""

    workload: str
    placement: str
    metric: str
    unit: str
    rounds: int
    min: float
    median: float
    max: float


class Others:
    """What others than this process and its children take of the processors, from now on."""

    def __init__(self) -> None:
        self._start, self._busy, self._own = time.monotonic(), _busy(), _own()

    def percent(self) -> float | None:
        """So far; None if the kernel does not say."""
        if self._busy is None or (busy := _busy()) is None:
            return None
        others = max(busy - self._busy - (_own() - self._own), 0)
        all_of_it = (time.monotonic() - self._start) * (os.cpu_count() or 1)
        return min(100 * others / max(all_of_it, 1e-9), 100.0)


def _busy() -> float | None:
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    busy = sum(int(field) for n, field in enumerate(fields) if n not in OTHER_THAN_BUSY)
    return busy / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    return sum(os.times()[:4])


def provenance(others: Others | None = None) -> Provenance:
    """Of a report that is made now."""
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return Provenance(
        _version(),
        _commit(),
        datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        shlex.join(command),
        _processor(),
        os.cpu_count() or 1,
        others.percent() if others else None,
    )


def _version() -> str:
    try:
        return metadata.version("ring3-split")
    except metadata.PackageNotFoundError:
        return "unknown"


def _commit(root: Path = Path(__file__).parents[3]) -> str | None:
    """That of the repository at `root`. A package that is installed may lie in somebody else's."""
    command = ["git", "-C", str(root), "rev-parse", "--show-toplevel", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    top, _, commit = done.stdout.strip().rpartition("\n")
    return commit if top and Path(top) == root else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else platform.machine()


def unit(metric: str) -> str:
    """Of a metric; 1 if its name says none."""
    if metric in UNITS:
        return UNITS[metric]
    ending = metric.rpartition("_")[2]
    return UNITS.get(ending, "1") if ending in ("percent", "us") else "1"


def spreads(workload: str, placement: str, row: msgspec.Struct) -> list[Row]:
    """A row for each field of `row` that has a smallest, a middle and a largest value."""
    told = msgspec.to_builtins(row)
    return [
        Row(workload, placement, metric, unit(metric), told["rounds"], **value)
        for metric, value in told.items()
        if isinstance(value, dict) and value.keys() == {"min", "median", "max"}
    ]


def one(workload: str, placement: str, metric: str, value: float) -> Row:
    """A row of something that was counted once."""
    return Row(workload, placement, metric, unit(metric), 1, value, value, value)


def told(
    bench: str, where: tuple[Provenance, Lab], rows: Iterable[Row], own: msgspec.Struct
) -> dict[str, Any]:
    """The report, with the fields of `own` beside those that all reports have."""
    report = {
        "schema": SCHEMA,
        "bench": bench,
        "version": VERSION,
        "provenance": where[0],
        "lab": where[1],
        "rows": list(rows),
        "ratios": [],
        "facts": [],
    }
    return report | {
        name: value for name, value in msgspec.to_builtins(own).items() if name not in report
    }
