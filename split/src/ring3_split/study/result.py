"""What a study found: the content of study.json, described in docs/split.md.

Percentages have two digits. Lists by rule are in the order of `Study.rules`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ring3_split import shared_report
from ring3_split.model import Failure
from ring3_split.study.families import Paper
from ring3_split.study.rules import Rule

VERSION = 1


class Tally(msgspec.Struct, frozen=True):
    """How much is critical under one rule. `rooted` is about drivers with a root."""

    critical: int
    critical_lines: int
    percent: float
    lines_percent: float
    mean: float
    rooted: int
    rooted_functions: int
    rooted_lines: int
    rooted_percent: float
    rooted_lines_percent: float
    rooted_mean: float
    rooted_median: float


class Scope(msgspec.Struct, frozen=True):
    """A family under one idea of what a driver is."""

    drivers: int
    functions: int
    lines: int
    rules: dict[str, Tally]


class FamilyResult(msgspec.Struct, frozen=True):
    """The numbers of a family."""

    name: str
    title: str
    under: tuple[str, ...]
    paper: Paper | None
    modules: int  # that the kernel's configuration builds
    unread: int  # of these: nothing could be read
    partial: int  # of these: some files could not be read
    empty: int  # of these: no function of their own
    module: Scope  # a driver is a module
    driver: Scope  # a driver is a module with its library modules
    file: Scope  # a driver is a C file


class Counts(msgspec.Struct, frozen=True):
    """The functions of one driver."""

    functions: int
    lines: int
    critical: tuple[int, ...]
    critical_lines: tuple[int, ...]


class Row(msgspec.Struct, frozen=True):
    """One module."""

    name: str
    directory: str
    families: tuple[str, ...]
    sources: int
    alone: Counts
    libraries: tuple[str, ...] = ()  # modules whose functions it needs
    # others need it, so that it is counted with them where a driver is a module with its libraries
    library: bool = False
    together: Counts | None = None  # with its libraries, when it has any
    failures: tuple[Failure, ...] = ()
    skipped: dict[str, str] = {}

    @property
    def path(self) -> str:
        """What tells it from all others, even from one of the same name: folder and name."""
        return f"{self.directory}/{self.name}"


class Study(msgspec.Struct, frozen=True):
    """All of it."""

    version: int
    kernel: str
    rules: tuple[Rule, ...]
    families: tuple[FamilyResult, ...]
    drivers: tuple[Row, ...]
    quick: bool = False  # a sample of each family, not the family
    broken: dict[
        str, str
    ] = {}  # folders that make could not evaluate -> its message: modules may be missing


def told(study: Study, others: shared_report.Others | None = None) -> dict[str, Any]:
    """The form that all of ring3's reports have: a family by a rule, a driver being a module."""
    rows = [
        shared_report.one(family.name, rule, metric, value)
        for family in study.families
        for rule, tally in family.module.rules.items()
        for metric, value in (
            ("critical_percent", tally.percent),
            ("critical_lines_percent", tally.lines_percent),
        )
    ]
    lab = shared_report.Lab(study.kernel, quick=study.quick)
    return shared_report.told("split-study", (shared_report.provenance(others), lab), rows, study)
