"""Sums over marked functions: how much of a family is critical, by each way of counting.

Two ways: *pooled*, a share of all functions of all drivers, in which a function that several
drivers contain counts once and is critical if it is so in any; and the *mean* of the drivers' own
shares, in which a small driver weighs as much as a large one. Each over all drivers, and over those
with at least one root.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from ring3_split.study.result import Scope, Tally
from ring3_split.study.rules import RULES

Marks = Mapping[str, tuple[int, int]]
"""Of each function, by id.

Its lines, and a bit for each rule under which it is critical (`rules.bit`).
"""


class Sums:
    """Functions and lines of one set of marks, for every rule."""

    def __init__(self, marks: Iterable[tuple[int, int]]) -> None:
        self.functions = self.lines = 0
        self.critical = [0] * len(RULES)
        self.critical_lines = [0] * len(RULES)
        # Few of the possible combinations of bits occur: each is taken apart once, not for each
        # function.
        numbers: Counter[int] = Counter()
        lines: Counter[int] = Counter()
        for length, bits in marks:
            numbers[bits] += 1
            lines[bits] += length
        for bits, number in numbers.items():
            self.functions += number
            self.lines += lines[bits]
            for index in range(len(RULES)):
                if bits >> index & 1:
                    self.critical[index] += number
                    self.critical_lines[index] += lines[bits]


def percent(part: float, whole: float) -> float:
    """A share, in percent with two digits; 0 of nothing."""
    return round(100 * part / whole, 2) if whole else 0.0


def pooled(drivers: Sequence[Marks]) -> dict[str, tuple[int, int]]:
    """All functions of some drivers, each once, with all the bits that it has in any."""
    pool: dict[str, tuple[int, int]] = {}
    for marks in drivers:
        for function, (lines, bits) in marks.items():
            before = pool.get(function)
            pool[function] = (
                (lines, bits) if before is None else (max(lines, before[0]), bits | before[1])
            )
    return pool


def by_file(drivers: Iterable[Marks]) -> list[Marks]:
    """The same functions with each C file as a driver of its own.

    Functions of headers have no place here.
    """
    files: dict[str, dict[str, tuple[int, int]]] = {}
    for marks in drivers:
        for function, mark in marks.items():
            path = function.rpartition(":")[0]
            if path.endswith(".c"):
                files.setdefault(path, {})[function] = mark
    return list(files.values())


def scope(drivers: Iterable[Marks]) -> Scope:
    """All sums over these drivers; one without any function is no driver."""
    some = [marks for marks in drivers if marks]
    each = [Sums(marks.values()) for marks in some]
    whole = Sums(pooled(some).values())
    # Whether a driver has roots does not depend on the calls, so that few different selections of
    # drivers occur.
    selections: dict[tuple[int, ...], Sums] = {}
    tallies = {}
    for index, rule in enumerate(RULES):
        rooted = tuple(number for number, sums in enumerate(each) if sums.critical[index])
        if rooted not in selections:
            selections[rooted] = Sums(pooled([some[number] for number in rooted]).values())
        tallies[rule.name] = _tally(
            index, each, whole, [each[number] for number in rooted], selections[rooted]
        )
    return Scope(drivers=len(some), functions=whole.functions, lines=whole.lines, rules=tallies)


def _tally(
    index: int, each: Sequence[Sums], whole: Sums, rooted: Sequence[Sums], among: Sums
) -> Tally:
    shares = [percent(sums.critical[index], sums.functions) for sums in each]
    rooted_shares = [percent(sums.critical[index], sums.functions) for sums in rooted]
    return Tally(
        critical=whole.critical[index],
        critical_lines=whole.critical_lines[index],
        percent=percent(whole.critical[index], whole.functions),
        lines_percent=percent(whole.critical_lines[index], whole.lines),
        mean=round(fmean(shares), 2) if shares else 0.0,
        rooted=len(rooted),
        rooted_functions=among.functions,
        rooted_lines=among.lines,
        rooted_percent=percent(among.critical[index], among.functions),
        rooted_lines_percent=percent(among.critical_lines[index], among.lines),
        rooted_mean=round(fmean(rooted_shares), 2) if rooted_shares else 0.0,
        rooted_median=round(median(rooted_shares), 2) if rooted_shares else 0.0,
    )
