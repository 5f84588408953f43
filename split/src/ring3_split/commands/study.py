"""`ring3 split study`: how much of each driver is critical, over whole families of drivers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from ring3_split import shared_report, source_options
from ring3_split.errors import Refusal
from ring3_split.study import families, sheet, table
from ring3_split.study.result import Study, told
from ring3_split.study.survey import QUICK, survey

NEAREST = 8
WIDTH = 240  # of a table that no terminal limits


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "study",
        help="how much of each driver is critical, by family",
        description="Counts the critical functions of all drivers of a family, by every rule: "
        "Figure 2 of [Microdrivers].",
    )
    known = ", ".join(family.name for family in families.known())
    default = ", ".join(families.DEFAULT)
    parser.add_argument(
        "--family",
        action="append",
        metavar="NAME",
        help=f"of {known}; may be repeated; default {default}",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="writes study.html, .csv, .json, .svg and .png there",
    )
    parser.add_argument(
        "--rules",
        action="store_true",
        help="prints every rule of each family, not only the base rule",
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"only {QUICK} small drivers of each family"
    )
    parser.add_argument(
        "--json", action="store_true", help="prints what study.json has, instead of tables"
    )
    source_options.add(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Studies, prints, and writes what was asked for."""
    asked = families.asked(tuple(arguments.family or families.DEFAULT))
    if arguments.out:
        _prepare(arguments.out)
    others, kernel = shared_report.Others(), source_options.kernel(arguments)
    study, details = survey(kernel, asked, quick=arguments.quick, jobs=arguments.jobs)
    report = msgspec.json.encode(told(study, others))
    if arguments.out:
        _write(study, report, details, arguments.out)
    if arguments.json:
        sys.stdout.buffer.write(report + b"\n")
    else:
        _print(study, every_rule=arguments.rules)
    return 0


def _prepare(folder: Path) -> None:
    """Makes the folder, before anything long is done in vain."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(
            f"{folder} cannot be made: {error.strerror}; name another folder with --out"
        ) from None


def _write(study: Study, report: bytes, details: dict[str, str], folder: Path) -> None:
    # matplotlib takes half a second to load
    from ring3_split.study import page, picture  # noqa: PLC0415

    try:
        (folder / "study.json").write_bytes(report)
        sheet.write(study, folder / "study.csv")
        picture.draw(study, folder)
        page.write(study, details, folder / "study.svg", folder / "study.html")
    except OSError as error:
        raise Refusal(
            f"{error.filename or folder} cannot be written: {error.strerror}; name another folder "
            "with --out"
        ) from None
    print(f"written: {folder}/study.html, .csv, .json, .svg, .png", file=sys.stderr)


def _print(study: Study, *, every_rule: bool) -> None:
    console = Console(width=WIDTH, highlight=False)
    console.print(table.families(study))
    if every_rule:
        for family in (family for family in study.families if family.modules):
            for one in table.units(family, study):
                console.print(one)
    if not study.quick and any(family.paper and family.module.drivers for family in study.families):
        console.print(
            "Nearest to the paper, which does not say which drivers it took nor how it counted:"
        )
        console.print(table.nearest(study, NEAREST))
    troubled = [row for row in study.drivers if row.failures]
    if troubled:
        console.print(f"Not read, or not whole: {len(troubled)} of {len(study.drivers)} modules")
        for row in troubled:
            for failure in row.failures:
                console.print(
                    f"  {row.name}: {failure.source}: {failure.reason}",
                    markup=False,
                    soft_wrap=True,
                )
