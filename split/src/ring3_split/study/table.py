"""The study as tables for a terminal, in a form that is Markdown too."""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import MARKDOWN
from rich.table import Table

from ring3_split.study import paper
from ring3_split.study.result import FamilyResult, Scope, Study
from ring3_split.study.rules import BASE, LITERAL, Rule


def _table(words: Iterable[str], columns: Iterable[str]) -> Table:
    """A table whose first columns are words and whose others are numbers."""
    table = Table(box=MARKDOWN, header_style="")
    for word in words:
        table.add_column(word, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _number(number: int) -> str:
    return f"{number:,}"


def _percent(share: float) -> str:
    return f"{share:.1f} %"


def families(study: Study) -> Table:
    """A line for each family by the base rule, each module a driver.

    Other rules beside it where they differ most.
    """
    table = _table(
        ("family",),
        (
            "drivers (with roots)",
            "functions",
            "critical",
            "with tasklets",
            "with roots",
            "mean",
            "field",
            "direct",
            "lines",
            "with libraries",
            "paper",
        ),
    )
    for family in study.families:
        if family.modules:
            table.add_row(*_family(family))
    return table


def _family(family: FamilyResult) -> tuple[str, ...]:
    scope = family.module
    tally = scope.rules[BASE.name]
    field, direct = (
        scope.rules[Rule(calls, BASE.roots, BASE.reach).name] for calls in ("field", "direct")
    )
    said = family.paper
    return (
        family.name,
        f"{scope.drivers} ({tally.rooted})",
        _number(scope.functions),
        _percent(tally.percent),
        _percent(scope.rules[LITERAL.name].percent),
        _percent(tally.rooted_percent),
        _percent(tally.mean),
        _percent(field.percent),
        _percent(direct.percent),
        _percent(tally.lines_percent),
        _percent(family.driver.rules[BASE.name].percent),
        f"{said.drivers}: {_percent(said.critical)}" if said else "",
    )


def units(family: FamilyResult, study: Study) -> list[Table]:
    """One family by every rule and every idea of what a driver is."""
    scopes = {"module": family.module, "driver": family.driver, "file": family.file}
    return [
        _rules(f"{family.name}, by {paper.UNITS[unit]}", scopes[unit], study)
        for unit in paper.UNITS
    ]


def _rules(title: str, scope: Scope, study: Study) -> Table:
    columns = (
        "drivers",
        "with roots",
        "critical",
        "with roots",
        "mean",
        "mean, with roots",
        "lines",
        "lines, with roots",
    )
    table = _table((title,), columns)
    for rule in study.rules:
        tally = scope.rules[rule.name]
        shares = (
            tally.percent,
            tally.rooted_percent,
            tally.mean,
            tally.rooted_mean,
            tally.lines_percent,
            tally.rooted_lines_percent,
        )
        table.add_row(rule.name, str(scope.drivers), str(tally.rooted), *map(_percent, shares))
    return table


def nearest(study: Study, number: int) -> Table:
    """The ways of counting that come nearest to the paper."""
    said = {
        family.name: family.paper
        for family in study.families
        if family.paper and family.module.drivers
    }
    heads = [
        f"{name} (paper {family.drivers}: {_percent(family.critical)})"
        for name, family in said.items()
    ]
    table = _table(("a driver is a", "counted", "rule"), (*heads, "points away"))
    countings = paper.countings(study)
    for counting in countings[:number]:
        cells = [f"{counting.drivers[name]}: {_percent(counting.percent[name])}" for name in said]
        table.add_row(
            paper.UNITS[counting.unit],
            paper.WAYS[counting.way],
            counting.rule,
            *cells,
            f"{counting.away:.1f}",
        )
    spread = (
        f"{least:.1f} to {_percent(most)}" for least, most in paper.ranges(countings).values()
    )
    table.add_row(f"all {len(countings)}", "", "", *spread, "")
    return table
