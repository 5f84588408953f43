"""Drivers made by hand, to be cut."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping

from ring3_split.context import Entry
from ring3_split.driver import Driver
from ring3_split.graph import Edge, Graph
from ring3_split.model import Function, Kind, Region, Stored
from ring3_split.plan.fixed import fixed
from ring3_split.plan.subject import Subject
from ring3_split.plan.weights import Weights
from ring3_split.roots import Root

FILE, HEADER, KERNEL = "d/a.c", "d/a.h", "include/k.h"
OWN = {"own": HEADER}  # the driver's struct, with its locks


def key(name: str) -> str:
    """Where a function of the tests is.

    Names that start with `inline` and `kernel` are those of headers.
    """
    file = HEADER if name.startswith("inline") else KERNEL if name.startswith("kernel") else FILE
    return f"{file}:{name}"


class Made:
    """A driver that grows line by line."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.edges: dict[str, dict[str, list[Edge]]] = {}
        self.regions: dict[str, list[Region]] = {}
        self.facts: dict[str, dict[str, object]] = {}
        self.entries: dict[str, tuple[Stored, ...]] = {}
        self.contexts: dict[str, tuple[Entry, ...]] = {}
        self.roots: dict[str, tuple[Root, ...]] = {}
        self.line = 0

    def function(self, name: str, size: int = 10, **facts: object) -> Made:
        """A function of so many lines."""
        self.sizes[name] = size
        self.facts[name] = facts
        return self

    def call(
        self, caller: str, callee: str, lock: str = "", kind: Kind = Kind.SPIN, within: str = ""
    ) -> Made:
        """A call, perhaps under a lock, which may lie in a member of an outer struct."""
        self.line += 1
        held: tuple[Region, ...] = ()
        if lock:
            held = (Region(kind, lock, self.line, (self.line,), (self.line,), within=within),)
            self.regions.setdefault(caller, []).extend(held)
        for name in (caller, callee):
            self.sizes.setdefault(name, 10)
        self.edges.setdefault(key(caller), {}).setdefault(key(callee), []).append(
            Edge(self.line, "direct", held)
        )
        return self

    def entry(self, name: str, context: str = "") -> Made:
        """A function that the kernel calls, in a context that may not be known."""
        self.sizes.setdefault(name, 10)
        self.entries[key(name)] = (Stored(name, 1, field=f"ops.{name}"),)
        if context:
            self.contexts[key(name)] = (Entry(context, False, f"ops.{name}"),)  # type: ignore[arg-type]
        return self

    def root(self, name: str) -> Made:
        """A critical root."""
        self.sizes.setdefault(name, 10)
        self.roots[key(name)] = (
            Root("binding", "interrupt", "interrupt", "passed to request_irq"),
        )
        return self

    def subject(self) -> Subject:
        """The driver."""
        functions: dict[str, Function] = {}
        start = 1
        for name, size in self.sizes.items():
            regions = tuple(self.regions.get(name, ()))
            where = key(name).split(":")[0]
            facts = {"regions": regions, "inline": where != FILE, **self.facts.get(name, {})}
            functions[key(name)] = Function(name, where, start, start + size - 1, **facts)  # type: ignore[arg-type]
            start += size
        calls = {
            caller: {callee: tuple(edges) for callee, edges in callees.items()}
            for caller, callees in self.edges.items()
        }
        graph = Graph(
            Driver("made", ()),
            "field",
            functions,
            calls,
            entries=self.entries,
            stored=dict(self.entries),
        )
        unknown = {
            name: places[0].field
            for name, places in self.entries.items()
            if name not in self.contexts
        }
        return Subject("6.12", graph, self.roots, self.contexts, unknown, fixed(graph, OWN))


def weights(calls: Mapping[str, int], entries: Mapping[str, int] | None = None) -> Weights:
    """Counts by short names: {"f g": 3}."""
    pairs = {tuple(key(name) for name in pair.split()): count for pair, count in calls.items()}
    return Weights(
        Counter(pairs),  # type: ignore[arg-type]
        Counter({key(name): count for name, count in (entries or {}).items()}),
        "by hand",
    )


def names(keys: Iterable[str]) -> set[str]:
    """Function names of ids."""
    return {whole.partition(":")[2] for whole in keys}


def random_driver(seed: int, size: int = 7) -> tuple[Subject, Weights]:
    """A small driver with all that a driver may have, and a profile of it."""
    dice = random.Random(seed)  # noqa: S311
    made = Made()
    functions = [f"f{index}" for index in range(dice.randint(2, size))]
    inlines = [f"inline{index}" for index in range(dice.randint(0, 2))] + [
        f"kernel{index}" for index in range(dice.randint(0, 2))
    ]
    for name in functions + inlines:
        facts: dict[str, object] = (
            {"percpu": (1,)} if dice.random() < 0.06 and name in functions else {}
        )
        made.function(name, dice.randint(1, 30), **facts)
    for caller in functions + inlines:
        for callee in functions + inlines:
            if dice.random() < 0.22:
                locked = dice.random() < 0.15 and caller in functions
                lock, kind = dice.choice(
                    [("own.a", Kind.SPIN), ("own.b", Kind.SPIN_IRQ), ("own.m", Kind.MUTEX)]
                )
                made.call(caller, callee, lock if locked else "", kind)
    for name in functions:
        if dice.random() < 0.4:
            made.entry(name, dice.choices(["process", "atomic", ""], [8, 2, 1])[0])
        if dice.random() < 0.1:
            made.root(name)
    subject = made.subject()
    calls = {
        (step.caller, step.callee): dice.randint(0, 9)
        for step in subject.steps
        if step.caller != step.callee
    }
    entries = {name: dice.randint(0, 9) for name in made.entries}
    return subject, Weights(Counter(calls), Counter(entries), "by hand")
