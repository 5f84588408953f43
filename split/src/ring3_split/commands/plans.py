"""`ring3 split plan --all`: plans of whole families, each judged, as a table."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ring3_split import plan, source_options
from ring3_split.errors import Refusal
from ring3_split.plan.every import Made, Method, every
from ring3_split.study import families

COLUMNS = ("functions", "lines", "kernel_functions", "kernel_lines", "kernel_percent")
KEPT = ("critical", "entry", "unknown", "fixed", "region", "lock", "section", "inline", "cost")


class Row(msgspec.Struct, frozen=True):
    """A driver as the table has it. Numbers of its plan are null if there is none."""

    driver: str  # its module
    directory: str  # of its module, in the kernel tree
    functions: int | None  # of the driver
    lines: int | None  # of these
    kernel_functions: int | None  # in the kernel half
    kernel_lines: int | None  # of these
    kernel_percent: float | None  # of the lines
    # Functions that are critical.
    critical: int = msgspec.field(name="kept:critical")
    # Functions that stay because the kernel calls them in atomic context.
    entry: int = msgspec.field(name="kept:entry")
    # Functions that stay because nobody knows in which context the kernel calls them.
    unknown: int = msgspec.field(name="kept:unknown")
    # Functions that no process can run.
    fixed: int = msgspec.field(name="kept:fixed")
    # Functions that are called under a spinlock, with interrupts off or under RCU.
    region: int = msgspec.field(name="kept:region")
    # Functions that take a spinlock of the kernel half.
    lock: int = msgspec.field(name="kept:lock")
    # Functions that hold a spinlock while they call the kernel half.
    section: int = msgspec.field(name="kept:section")
    # Inlines that the kernel half uses.
    inline: int = msgspec.field(name="kept:inline")
    # Functions whose crossings would cost more than their lines.
    cost: int = msgspec.field(name="kept:cost")
    faults: int  # that the judge finds
    assumptions: int  # that the plan rests on
    failure: str  # why there is no plan; "" if there is one


def run(arguments: argparse.Namespace) -> int:
    """Plans all drivers of the families.

    1 when the judge finds a fault or the planner failed; unread files are lines.
    """
    if arguments.driver or arguments.check or arguments.profile or arguments.curve:
        raise Refusal(
            "--all plans every driver without a profile: leave DRIVER, --check, --profile and "
            "--curve out"
        )
    asked = families.asked(tuple(arguments.family or families.DEFAULT))
    if arguments.out:
        _prepare(arguments.out)
    kernel = source_options.kernel(arguments)
    method = Method(
        arguments.precision or "field",
        None if arguments.method == "propagation" else arguments.cost,
    )
    found = []
    for made in every(kernel, asked, method, arguments.jobs):
        found.append(made)
        if arguments.out and made.plan:
            _write(arguments.out, made)
    found.sort(key=lambda made: (made.directory, made.driver))
    if arguments.out:
        _table(arguments.out / "plans.csv", found)
    if arguments.json:
        sys.stdout.buffer.write(
            msgspec.json.format(msgspec.json.encode([_row(made) for made in found]), indent=1)
            + b"\n"
        )
    else:
        _print(found)
    return 1 if any(made.faults or made.broken for made in found) else 0


def _prepare(folder: Path) -> None:
    """Makes the folder, which must not have plans yet: they may have been edited."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(
            f"{folder} cannot be made: {error.strerror}; name another folder with --out"
        ) from None
    if any(folder.iterdir()):
        raise Refusal(
            f"{folder} is not empty, perhaps with somebody's edits: move it away, or name another "
            "folder with --out"
        )


def _write(folder: Path, made: Made) -> None:
    if made.plan:
        place = folder / made.directory
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refusal(
                f"{place} cannot be made: {error.strerror}; name another folder with --out"
            ) from None
        plan.save(made.plan, place / f"{made.driver}.toml")


def _row(made: Made) -> Row:
    sums = msgspec.to_builtins(made.plan.totals) if made.plan else {}
    numbers: dict[str, Any] = {column: sums.get(column) for column in COLUMNS}
    numbers |= {rule: made.kept(rule) for rule in KEPT}
    return Row(
        driver=made.driver,
        directory=made.directory,
        faults=made.faults,
        assumptions=made.assumptions,
        failure=made.failure,
        **numbers,
    )


def _table(file: Path, found: Sequence[Made]) -> None:
    rows = [msgspec.to_builtins(_row(made)) for made in found]
    try:
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise Refusal(
            f"{file} cannot be written: {error.strerror}; name another folder with --out"
        ) from None


def _print(found: Sequence[Made]) -> None:
    """The sums by family's folder, and what is not planned or does not hold."""
    print(
        f"{'':14} {'plans':>6} {'functions':>10} {'kernel':>8} {'lines':>10} {'kernel':>8} "
        f"{'%':>6} {'faults':>7} {'assumed':>8}"
    )
    groups: dict[str, list[Made]] = {}
    for made in found:
        groups.setdefault("/".join(made.directory.split("/")[:2]), []).append(made)
    for name, group in [*groups.items(), ("all", list(found))]:
        sums = [made.plan.totals for made in group if made.plan]
        lines, kernel = sum(one.lines for one in sums), sum(one.kernel_lines for one in sums)
        functions, kept = (
            sum(one.functions for one in sums),
            sum(one.kernel_functions for one in sums),
        )
        share = f"{100 * kernel / lines:.1f}" if lines else ""
        faults, assumed = (
            sum(made.faults for made in group),
            sum(made.assumptions for made in group),
        )
        print(
            f"{name:14} {len(sums):6,} {functions:10,} {kept:8,} {lines:10,} {kernel:8,} "
            f"{share:>6} {faults:7,} {assumed:8,}"
        )
    for made in found:
        if made.failure:
            print(f"not planned: {made.driver}: {made.failure}")
        elif made.faults:
            print(f"does not hold: {made.driver}: {made.faults} faults")
