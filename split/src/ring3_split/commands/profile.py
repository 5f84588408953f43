"""`ring3 split profile DRIVER`.

How often a driver's functions call each other, counted while it works in a guest.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from ring3_split import driver as drivers
from ring3_split import source_options
from ring3_split.commands import numbers, report
from ring3_split.profile import record
from ring3_split.profile.record import Pair, Profile
from ring3_split.profile.run import Request, check, profile

ROWS = 15


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "profile",
        help="run a driver in a guest and count which function calls which",
        description="Runs the unmodified driver in the lab under a workload, and counts its calls "
        "with the function tracer.",
    )
    parser.add_argument("driver", metavar="DRIVER", help="a module's name: e1000")
    parser.add_argument(
        "--workload",
        metavar="NAME",
        default="usual",
        help="what it is made to do; default all that is known",
    )
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=numbers.seconds,
        default=2.0,
        help="time of each kind of transfer; default 2",
    )
    parser.add_argument(
        "--stock",
        action="store_true",
        help="run the distribution's own binary, in which much is inlined",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="where the profile goes; default a file in the cache",
    )
    parser.add_argument("--json", action="store_true", help="print the profile as JSON")
    parser.add_argument("--verbose", action="store_true", help="show all that the guest says")
    source_options.add(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command. 1 when the static graph lacks a call that was seen."""
    kernel = source_options.kernel(arguments)
    request = Request(
        source_options.cache(), arguments.workload, arguments.seconds, arguments.stock
    )
    check(kernel, arguments.driver, request)
    driver = drivers.load(kernel, arguments.driver, jobs=arguments.jobs)

    seen = profile(kernel, driver, request, report.heard(arguments.verbose))
    file = arguments.out or record.place(
        kernel.folder, driver.name, request.workload, stock=request.stock
    )
    seen.write(file)
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(seen), indent=1) + b"\n")
    else:
        _report(seen, file)
    return 1 if seen.missing or seen.missing_field else 0


def _report(seen: Profile, file: Path) -> None:
    console = Console(highlight=False, soft_wrap=True)
    lost = f"{seen.lost:,} lost" if seen.lost else "none lost"
    console.print(f"{seen.driver} on {seen.device}, kernel {seen.kernel}, workload {seen.workload}")
    console.print(f"{seen.events:,} calls in {seen.seconds:g} s, {lost}")
    inner = [pair for pair in seen.pairs if pair.caller]
    calls = sum(pair.count for pair in inner)
    entries = len(seen.pairs) - len(inner)
    console.print(
        f"{len(seen.pairs)} pairs: {entries} entries from the kernel, {len(inner)} in the driver "
        f"({calls:,} calls)"
    )
    console.print(_table(sorted(seen.pairs, key=lambda pair: -pair.count)[:ROWS]))
    if seen.invisible:
        names = ", ".join(name.rpartition(":")[2] for name in seen.invisible[:8])
        more = f" and {len(seen.invisible) - 8} more" if len(seen.invisible) > 8 else ""
        console.print(
            f"{len(seen.invisible)} functions that the tracer does not see: {names}{more}"
        )
    for name, count in seen.unknown.items():
        console.print(f"{name} is not in the facts: {count} calls left out")
    for precision, lacking in (("", seen.missing), (" of precision field", seen.missing_field)):
        for pair in lacking:
            caller = pair.caller or "the kernel"
            console.print(
                f"NOT IN THE STATIC GRAPH{precision}: {caller} calls {pair.callee}, {pair.count} "
                "times"
            )
    if not seen.missing and not seen.missing_field:
        console.print("every pair is in the static graph, at both precisions")
    console.print(f"written to {file}")


def _table(pairs: list[Pair]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading, side in (
        ("calls", "right"),
        ("atomic", "right"),
        ("caller", "left"),
        ("callee", "left"),
    ):
        table.add_column(heading, justify="right" if side == "right" else "left", no_wrap=True)
    for pair in pairs:
        caller = pair.caller.rpartition(":")[2] or "(kernel)"
        table.add_row(f"{pair.count:,}", f"{pair.atomic:,}", caller, pair.callee.rpartition(":")[2])
    return table
