"""Which ways of counting come near the numbers of [Microdrivers, Figure 2].

The paper names neither the drivers that it took nor how it counted, so that no rule here is *the*
rule: all are compared with it, and none is made to fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Literal, get_args

import msgspec

from ring3_split.study.result import FamilyResult, Scope, Study, Tally

Unit = Literal["module", "driver", "file"]
Way = Literal["percent", "rooted_percent", "mean", "rooted_mean"]

UNITS: dict[Unit, str] = {"module": "module", "driver": "module with libraries", "file": "C file"}
WAYS: dict[Way, str] = {
    "percent": "of all functions",
    "rooted_percent": "of all functions, drivers with roots",
    "mean": "mean of drivers",
    "rooted_mean": "mean of drivers with roots",
}


class Counting(msgspec.Struct, frozen=True):
    """One way to count, and what it says of each of the paper's families."""

    unit: Unit
    way: Way
    rule: str
    percent: dict[str, float]  # by family
    drivers: dict[str, int]
    away: float  # mean distance from the paper, in points


def value(tally: Tally, way: Way) -> float:
    """The percentage that this way of counting gives."""
    return float(getattr(tally, way))


def count(tally: Tally, scope: Scope, way: Way) -> int:
    """The drivers that this way of counting looks at."""
    return tally.rooted if way.startswith("rooted") else scope.drivers


def countings(study: Study) -> list[Counting]:
    """Every way of counting, nearest to the paper first.

    Empty when none of its families was studied.
    """
    families = [family for family in study.families if family.paper and family.module.drivers]
    return sorted(_each(study, families), key=lambda counting: counting.away) if families else []


def ranges(countings: Sequence[Counting]) -> dict[str, tuple[float, float]]:
    """The least and the greatest share that any way of counting gives, by family."""
    names = countings[0].percent if countings else ()
    shares = {name: [counting.percent[name] for counting in countings] for name in names}
    return {name: (min(some), max(some)) for name, some in shares.items()}


def _each(study: Study, families: list[FamilyResult]) -> Iterator[Counting]:
    for unit, way, rule in product(get_args(Unit), get_args(Way), study.rules):
        scopes = {family.name: getattr(family, unit) for family in families}
        tallies = {name: scope.rules[rule.name] for name, scope in scopes.items()}
        percents = {name: value(tally, way) for name, tally in tallies.items()}
        away = [
            abs(percents[family.name] - family.paper.critical)
            for family in families
            if family.paper
        ]
        drivers = {name: count(tally, scopes[name], way) for name, tally in tallies.items()}
        yield Counting(unit, way, rule.name, percents, drivers, round(sum(away) / len(away), 2))
