"""Puts a study together from what was found in each module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ring3_split.model import Failure, ModuleFacts
from ring3_split.study.count import Marks, Sums, by_file, scope
from ring3_split.study.evaluate import Evaluated
from ring3_split.study.families import Family
from ring3_split.study.result import VERSION, Counts, FamilyResult, Row, Study
from ring3_split.study.rules import RULES


@dataclass(frozen=True)
class Looked:
    """A module that was looked at."""

    facts: ModuleFacts
    found: Evaluated
    library: bool = False  # whether it is a library of another


def study(
    kernel: str,
    families: Sequence[Family],
    modules: Sequence[Looked],
    broken: Mapping[str, str],
    *,
    quick: bool = False,
) -> Study:
    """All sums over these modules."""
    results = tuple(
        _family(family, [looked for looked in modules if family.has(looked.facts.module.directory)])
        for family in families
    )
    rows = sorted(
        (_row(looked, families) for looked in modules), key=lambda row: (row.directory, row.name)
    )
    return Study(
        VERSION,
        kernel,
        RULES,
        results,
        tuple(rows),
        quick,
        {folder: why for folder, why in broken.items() if any(f.has(folder) for f in families)},
    )


def _family(family: Family, modules: Sequence[Looked]) -> FamilyResult:
    alone = [looked.found.alone for looked in modules]
    together = [
        looked.found.together or looked.found.alone for looked in modules if not looked.library
    ]
    troubled = [looked for looked in modules if _failures(looked)]
    unread = sum(not looked.found.alone for looked in troubled)
    return FamilyResult(
        name=family.name,
        title=family.title,
        under=family.under,
        paper=family.paper,
        modules=len(modules),
        unread=unread,
        partial=len(troubled) - unread,
        empty=sum(not looked.found.alone for looked in modules) - unread,
        module=scope(alone),
        driver=scope(together),
        file=scope(by_file(alone)),
    )


def _failures(looked: Looked) -> tuple[Failure, ...]:
    module, error = looked.facts.module, looked.found.error
    return looked.facts.failures + (
        (Failure(f"{module.directory}/{module.name}", error),) if error else ()
    )


def _row(looked: Looked, families: Sequence[Family]) -> Row:
    module, found = looked.facts.module, looked.found
    return Row(
        name=module.name,
        directory=module.directory,
        families=tuple(family.name for family in families if family.has(module.directory)),
        sources=len(module.sources),
        alone=_counts(found.alone),
        libraries=tuple(part.name for part in found.libraries),
        library=looked.library,
        together=_counts(found.together) if found.together else None,
        failures=_failures(looked),
        skipped=module.skipped,
    )


def _counts(marks: Marks) -> Counts:
    sums = Sums(marks.values())
    return Counts(sums.functions, sums.lines, tuple(sums.critical), tuple(sums.critical_lines))
