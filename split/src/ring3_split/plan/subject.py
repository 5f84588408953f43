"""What planner and judge look at.

A driver's graph, and what is known of its functions without a plan.

# Inlines
An inline of a header is compiled into both halves, so that a call of it never crosses. The planner
sees through such functions: `steps` leads from one placed function to the next, over the inlines
between them. Those of the kernel's headers are the kernel's interface, and have no place in a plan;
those of the driver's headers get theirs from their callers.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ring3_split import context, driver, roots
from ring3_split.context import Entry, Stated
from ring3_split.driver import Driver
from ring3_split.errors import Refusal
from ring3_split.graph import Graph, link
from ring3_split.indirect import Precision
from ring3_split.kernel import Kernel
from ring3_split.model import Function, Region, Stored
from ring3_split.plan import locks, observed
from ring3_split.plan.fixed import fixed
from ring3_split.profile.record import Profile
from ring3_split.roots import Root

# The paper's rule, and the places by which the kernel knows a root for certain.
ROOTS = "signature+binding"


@dataclass(frozen=True)
class Held:
    """An atomic region in which a call stands."""

    holder: str  # function id
    region: Region


@dataclass(frozen=True)
class Step:
    """A call from one placed function to another, perhaps over inlines."""

    caller: str
    callee: str
    line: int  # in the caller
    held: tuple[Held, ...] = ()
    via: tuple[str, ...] = ()  # inlines between them


@dataclass(frozen=True)
class Subject:
    """A driver, ready to be cut or judged."""

    kernel: str
    graph: Graph
    roots: Mapping[str, tuple[Root, ...]]
    contexts: Mapping[str, tuple[Entry, ...]]  # of entries, as far as they are known
    unknown: Mapping[
        str, str
    ]  # entries that the kernel also calls in a context that nobody knows, and how it does
    fixed: Mapping[str, str]  # functions that no process can run, and why
    observed: Mapping[tuple[str, str], int] = field(
        default_factory=dict
    )  # calls that a profile saw in atomic context
    stated: Mapping[str, Stated] = field(default_factory=dict)  # contexts that a person has stated
    combolocks: frozenset[str] = frozenset()  # spinlocks that a process may take, too

    @cached_property
    def locks(self) -> dict[str, locks.Facts]:
        """The facts of each spinlock."""
        return locks.facts(self.graph, self.contexts, self.unknown)

    @cached_property
    def inlines(self) -> frozenset[str]:
        """Functions that are compiled into each half that calls them."""
        return frozenset(
            key for key, function in self.graph.functions.items() if self._replicable(key, function)
        )

    @cached_property
    def placed(self) -> tuple[str, ...]:
        """The driver's functions that run in one half, sorted."""
        return tuple(sorted(key for key, _ in self.graph.owned() if key not in self.inlines))

    @cached_property
    def copied(self) -> tuple[str, ...]:
        """The driver's inlines that run in both halves, or where they are used; sorted."""
        return tuple(sorted(key for key in self.inlines if self.graph.own(key)))

    @cached_property
    def uses(self) -> dict[str, dict[str, int]]:
        """Placed function -> driver inlines compiled into it -> the line that reaches them."""
        return {key: self._uses(key) for key in self.placed}

    @cached_property
    def takers(self) -> dict[str, dict[str, int]]:
        """Spinning lock -> functions that take it -> line."""
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for key in self.placed:
            for region in self.graph.functions[key].regions:
                if region.kind in locks.SPINNING and region.lock != "?":
                    found[region.lock].setdefault(key, region.line)
        return dict(found)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The calls between placed functions, each place once."""
        return tuple(dict.fromkeys(step for caller in self.placed for step in self._from(caller)))

    def entered(self, key: str) -> list[str]:
        """How the kernel calls a function: `net_device_ops.ndo_open`; empty if it does not."""
        return list(dict.fromkeys(_by(place) for place in self.graph.entries.get(key, ())))

    def name(self, key: str) -> str:
        """A function's name without its file."""
        return self.graph.functions[key].name

    def at(self, key: str, line: int) -> str:
        """A place in a function's file: `e1000_main.c:2506`."""
        return f"{self.graph.functions[key].file.rsplit('/', 1)[-1]}:{line}"

    def _replicable(self, key: str, function: Function) -> bool:
        """A header inline whose address nobody takes, and that a process can run as well."""
        if not self.graph.own(key):
            return True
        if (
            not function.file.endswith(".h")
            or key in self.graph.entries
            or key in self.graph.stored
        ):
            return False
        return key not in self.fixed and not any(region.kind.atomic for region in function.regions)

    @cached_property
    def _bridges(self) -> frozenset[str]:
        """Inlines that lead to a placed function."""
        callers = self.graph.callers()
        found: set[str] = set()
        todo = list(self.placed)
        while todo:
            for caller in callers.get(todo.pop(), ()):
                if caller in self.inlines and caller not in found:
                    found.add(caller)
                    todo.append(caller)
        return frozenset(found)

    def _uses(self, user: str) -> dict[str, int]:
        found: dict[str, int] = {}
        todo = [(user, 0)]
        while todo:
            key, line = todo.pop()
            for callee, edges in self.graph.calls.get(key, {}).items():
                if callee in self.inlines and callee not in found:
                    found[callee] = line or edges[0].line
                    todo.append((callee, found[callee]))
        return {key: line for key, line in found.items() if self.graph.own(key)}

    def _from(self, caller: str) -> Iterator[Step]:
        """The steps out of a function."""
        todo: list[tuple[str, Step | None]] = [(caller, None)]
        visited: set[tuple[str, int, tuple[Held, ...]]] = set()
        while todo:
            key, before = todo.pop()
            for callee, edges in self.graph.calls.get(key, {}).items():
                if callee in self.inlines and callee not in self._bridges:
                    continue
                for edge in edges:
                    held = tuple(Held(key, region) for region in edge.held if region.kind.atomic)
                    step = Step(caller, callee, edge.line, held)
                    if before is not None:
                        step = Step(
                            caller,
                            callee,
                            before.line,
                            tuple(dict.fromkeys(before.held + held)),
                            (*before.via, key),
                        )
                    if callee not in self.inlines:
                        yield step
                    elif (callee, step.line, step.held) not in visited:
                        visited.add((callee, step.line, step.held))
                        todo.append((callee, step))


@dataclass(frozen=True)
class Known:
    """What is known of a driver besides its source."""

    profile: Profile | None = None
    stated: Mapping[str, Stated] = field(default_factory=dict)


def load(
    kernel: Kernel,
    name: str,
    precision: Precision,
    jobs: int | None = None,
    known: Known | None = None,
) -> Subject:
    """The subject of a kernel's driver, with what a profile has shown and a person has stated.

    Raises:
        Refusal: there is no such driver; a part of its code cannot be read, so that its calls are
            unknown; a context is stated of what the kernel does not call the driver by.
    """
    loaded = driver.load(kernel, name, data=True, jobs=jobs)
    for failure in loaded.failures:
        raise Refusal(
            f"{name} cannot be planned, because {failure.source} cannot be read: {failure.reason}"
        )
    return of(kernel.name, loaded, precision, known)


def of(kernel: str, loaded: Driver, precision: Precision, known: Known | None = None) -> Subject:
    """The subject of a driver that was read with its data."""
    profile, stated = (known.profile, known.stated) if known else (None, {})
    graph = link(loaded, precision)
    _check_stated(graph, stated)
    contexts = context.of(graph, stated)
    if profile:
        graph, contexts = observed.graph_of(graph, profile), observed.contexts_of(contexts, profile)
    structs = {key: layout.file for data in loaded.data for key, layout in data.layouts.items()}
    return Subject(
        kernel=kernel,
        graph=graph,
        roots=roots.of(graph, loaded, ROOTS),
        contexts=contexts,
        unknown={
            key: ", ".join(dict.fromkeys(map(_by, places)))
            for key, places in context.unknown(graph, stated).items()
        },
        fixed=fixed(graph, structs),
        observed=observed.atomic_calls(profile) if profile else {},
        stated=stated,
    )


def _check_stated(graph: Graph, stated: Mapping[str, Stated]) -> None:
    """Refuses a statement about a missing thing: it would be a typing error that nobody sees."""
    known = {context.by(place) for places in graph.entries.values() for place in places}
    for name, row in stated.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            instead = f"; near names: {', '.join(near)}" if near else ""
            raise Refusal(
                f"contexts: the kernel does not call {graph.driver.name} by {name!r}{instead}"
            )
        if not row.why.strip():
            raise Refusal(
                f"contexts: {name} has no `why`: say where in the kernel it is to be seen, or why "
                "it cannot happen"
            )


def _by(place: Stored) -> str:
    """How the kernel knows a function, in words."""
    return context.by(place) or "its address"
