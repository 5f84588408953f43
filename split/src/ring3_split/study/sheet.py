"""The study as a CSV file, a row for each driver."""

from __future__ import annotations

import csv
from pathlib import Path

from ring3_split.study.result import Counts, Row, Study


def write(study: Study, path: Path) -> None:
    """Writes all drivers; docs/split.md says what the columns are."""
    with path.open("w", newline="", encoding="utf-8") as file:
        sheet = csv.writer(file, lineterminator="\n")
        columns = header(study)
        sheet.writerow(columns)
        for row in study.drivers:
            cells = _row(row)
            sheet.writerow(cells + [""] * (len(columns) - len(cells)))


def header(study: Study) -> list[str]:
    """Names of the columns."""
    names = ["driver", "directory", "families", "library", "libraries", "sources", "unread"]
    for prefix in ("", "with_libraries:"):
        names += [f"{prefix}functions", f"{prefix}lines"]
        for rule in study.rules:
            names += [f"{prefix}{rule.name}", f"{prefix}{rule.name}:lines"]
    return names


def _row(row: Row) -> list[str | int]:
    start: list[str | int] = [
        row.name,
        row.directory,
        " ".join(row.families),
        int(row.library),
        " ".join(row.libraries),
    ]
    together = _counts(row.together) if row.together else []
    return [*start, row.sources, len(row.failures), *_counts(row.alone), *together]


def _counts(counts: Counts) -> list[int]:
    cells = [counts.functions, counts.lines]
    for critical, lines in zip(counts.critical, counts.critical_lines, strict=True):
        cells += [critical, lines]
    return cells
