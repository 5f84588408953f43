"""All that `show` says of a driver, as it is printed with --json.

The fields are described in docs/split.md.

What stays in the kernel besides the critical functions is what the planner's rules bring there
before anything is weighed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Literal

import msgspec

from ring3_split import context, critical, roots
from ring3_split.critical import Chain
from ring3_split.driver import Driver
from ring3_split.graph import Graph, lines
from ring3_split.indirect import Precision
from ring3_split.model import Failure, Region
from ring3_split.plan import subject
from ring3_split.plan.constraints import constraints, functions
from ring3_split.plan.reasons import Reason, explain
from ring3_split.roots import Root

Side = Literal["critical", "stays", "free"]


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call of a chain."""

    caller: str  # id
    callee: str  # id
    line: int  # of the call
    how: str  # "direct", "signature" or "field"
    field: str = ""  # that the pointer was loaded from


class Why(msgspec.Struct, frozen=True):
    """Why a function stays."""

    kind: str  # the planner's rule
    text: str


class Shown(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function of the driver."""

    id: str  # path:name
    name: str
    file: str  # relative to the kernel tree
    line: int  # where it begins
    lines: int  # how long it is
    side: Side
    section: str = ""  # ".init.text"
    roots: tuple[Root, ...] = ()  # why it is one
    chain: tuple[Step, ...] = ()  # from a root, of a critical function that is none
    reasons: tuple[Why, ...] = ()  # why it stays: the nearest reason
    entries: tuple[context.Entry, ...] = ()  # how the kernel calls it
    regions: tuple[Region, ...] = ()  # which locks it holds, and where


class Part(msgspec.Struct, frozen=True):
    """A module of the driver."""

    name: str
    directory: str  # in the kernel tree
    library: bool  # true for all but the driver's own
    units: int  # translation units
    functions: int  # an inline of a header that two modules share is in both
    lines: int  # of these functions
    skipped: dict[str, str]  # object without C source -> why
    failures: tuple[Failure, ...]  # units that could not be read


class Count(msgspec.Struct, frozen=True):
    """How much it is."""

    functions: int
    lines: int


class Findings(msgspec.Struct, frozen=True):
    """A driver."""

    driver: str  # its module
    kernel: str  # the kernel whose source was read
    family: str  # as of the command study: whose templates its roots are found by
    rule: str  # how roots were found, as of --rule
    precision: Precision  # of calls through pointers
    parts: tuple[Part, ...]  # its modules: its own, then the libraries that are a part of it
    all: Count  # of the driver's own
    critical: Count  # roots and what they call
    stays: Count  # what the rules of the plan keep in the kernel besides
    functions: tuple[Shown, ...]  # all of the driver's own, by id


def find(kernel: str, driver: Driver, rule: str, precision: Precision) -> tuple[Findings, Graph]:
    """Looks at a driver, whose data must have been loaded."""
    planned = subject.of(kernel, driver, precision)
    graph, found = planned.graph, roots.of(planned.graph, driver, rule)
    chains = critical.propagate(graph, found)
    kept = stays(replace(planned, roots=found), chains.keys())
    entries = context.of(graph)
    shown = tuple(
        Shown(
            id=key,
            name=function.name,
            file=function.file,
            line=function.line,
            lines=lines(function),
            side="critical" if key in chains else "stays" if key in kept else "free",
            section=function.section,
            roots=found.get(key, ()),
            chain=steps(chains[key]) if key in chains else (),
            reasons=(Why(*kept[key]),) if key in kept else (),
            entries=entries.get(key, ()),
            regions=function.regions,
        )
        for key, function in sorted(graph.owned())
    )
    parts = _parts(driver, {one.id: one.lines for one in shown})
    counts = (_count(shown), _count(shown, "critical"), _count(shown, "stays"))
    return Findings(
        driver.name, kernel, driver.family, rule, precision, parts, *counts, shown
    ), graph


def steps(chain: Chain) -> tuple[Step, ...]:
    """A chain as its calls."""
    pairs = zip(chain.functions, chain.functions[1:], chain.edges, strict=False)
    return tuple(
        Step(caller, callee, edge.line, edge.how, edge.field) for caller, callee, edge in pairs
    )


def stays(planned: subject.Subject, is_critical: Collection[str]) -> dict[str, Reason]:
    """The driver's functions that stay though no root calls them, each with the nearest reason."""
    links = constraints(planned, critical=True).closure()
    return explain(planned, links, functions(links).difference(is_critical))


def _count(shown: Iterable[Shown], side: Side | None = None) -> Count:
    kept = [one.lines for one in shown if side in (None, one.side)]
    return Count(len(kept), sum(kept))


def _parts(driver: Driver, length: Mapping[str, int]) -> tuple[Part, ...]:
    found = []
    for number, facts in enumerate(driver.modules):
        own = {function.id for unit in facts.units for function in unit.functions} & length.keys()
        module = facts.module
        sizes = (len(facts.units), len(own), sum(length[key] for key in own))
        found.append(
            Part(module.name, module.directory, number > 0, *sizes, module.skipped, facts.failures)
        )
    return tuple(found)
