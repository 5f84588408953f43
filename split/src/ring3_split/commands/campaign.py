"""The options of `ring3 split campaign`, and what it prints."""

from __future__ import annotations

import argparse
from pathlib import Path

from ring3_split import source_options
from ring3_split.commands import numbers, report
from ring3_split.generate import campaign as campaigning
from ring3_split.generate import tally
from ring3_split.generate.build import Built
from ring3_split.generate.halves import Generated
from ring3_split.kernel import Kernel


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument(
        "--faults", metavar="N", type=numbers.count, help="into the user half; default 1000"
    )
    parser.add_argument(
        "--messages",
        metavar="N",
        type=numbers.count,
        help="of a user half that lies, and ten times as many of strangers; default 100000",
    )
    parser.add_argument(
        "--minutes",
        metavar="N",
        type=numbers.minutes,
        help="of TCP both ways, while the user half is killed; default none",
    )
    parser.add_argument(
        "--seed",
        metavar="S",
        type=numbers.count,
        default=1,
        help="which faults and messages; default 1",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a fault of each kind, 1,000 messages and six seconds of TCP",
    )
    parser.add_argument(
        "--resume",
        metavar="FILE",
        type=Path,
        help="keep what guests have shown, and go on from there",
    )
    parser.add_argument("--verbose", action="store_true", help="show all that the guests say")


def run(kernel: Kernel, built: Built, generated: Generated, arguments: argparse.Namespace) -> int:
    """Runs it and prints what it has shown; the exit code is 1 if anything was lost."""
    wanted = {
        key: value for key in campaigning.QUICK if (value := getattr(arguments, key)) is not None
    }
    request = campaigning.Request(
        source_options.cache(),
        log=generated.folder / "campaign.log",
        seed=arguments.seed,
        resume=arguments.resume,
        entries=tuple(
            entry.function.rpartition(":")[2] for entry in generated.border.table.entries
        ),
        **(campaigning.QUICK if arguments.quick else {}) | wanted,
    )
    driver = generated.border.survey.border.driver
    found = campaigning.campaign(kernel, driver, built, request, report.heard(arguments.verbose))
    report.show(found, tally.show(found), arguments.json)
    return 0 if found.well else 1
