"""How often each call is made: what a cut there would cost.

# Without a profile
Every place of the code that calls counts once, and so does every entry. A cut then has few places that cross, which is few
stubs to generate; whether they cross often is not known.

# With a profile
Counts are calls in the measured run. The tracer does not see inlines, nor what the compiler inlined: a count between functions
that do not call each other lies on the shortest way between them over functions that it never saw.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from ring3_split.errors import Refusal
from ring3_split.plan.subject import Subject

Pair = tuple[str, str, int]  # caller, "" for the kernel; callee; calls


@dataclass(frozen=True)
class Weights:
    """Calls between placed functions, and calls from the kernel."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    entries: Counter[str] = field(default_factory=Counter)
    source: str = ""  # the profile in words; empty when these are places of the code
    missing: tuple[tuple[str, str], ...] = ()  # measured, but not in the graph

    def between(self, one: str, other: str) -> int:
        """Calls either way."""
        return self.calls[one, other] + self.calls[other, one]


def places(subject: Subject) -> Weights:
    """What is known without a profile."""
    sites = {(step.caller, step.callee, step.line) for step in subject.steps if step.caller != step.callee}
    calls = Counter((caller, callee) for caller, callee, _ in sites)
    return Weights(calls, Counter(key for key in subject.placed if subject.entered(key)))


def measured(subject: Subject, pairs: Iterable[Pair], source: str) -> Weights:
    """What a profile says. Refuses one of other code."""
    pairs = list(pairs)
    for key in {key for caller, callee, _ in pairs for key in (caller, callee) if key}:
        if key not in subject.graph.functions:
            raise Refusal(f"the profile has a function that the driver has not, {key}: profile this kernel's driver anew")
    return _Measured(subject, pairs).weights(source)


class _Measured:
    """Lays the counts of a profile on the calls of the graph."""

    def __init__(self, subject: Subject, pairs: list[Pair]) -> None:
        self.subject = subject
        self.pairs = pairs
        self.seen = {callee for _, callee, _ in pairs}
        self.callees: Mapping[str, dict[str, None]] = defaultdict(dict)
        self.through: Mapping[tuple[str, str], dict[str, None]] = defaultdict(dict)
        for step in subject.steps:
            self.callees[step.caller][step.callee] = None
            for inline in step.via:
                self.through[inline, step.callee][step.caller] = None

    def weights(self, source: str) -> Weights:
        calls: Counter[tuple[str, str]] = Counter()
        entries: Counter[str] = Counter()
        missing: dict[tuple[str, str], None] = {}
        for caller, callee, count in self.pairs:
            if callee in self.subject.inlines:
                continue
            if not caller:
                entries[callee] += count
                continue
            for real, share in self._callers(caller, callee, count):
                way = self._way(real, callee)
                if not way:
                    missing[real, callee] = None
                for hop in pairwise(way or [real, callee]):
                    if hop[0] != hop[1]:
                        calls[hop] += share
        return Weights(calls, entries, source, tuple(missing))

    def _callers(self, caller: str, callee: str, count: int) -> list[tuple[str, int]]:
        """The caller; of an inline that stands out of line, its callers in even parts."""
        if caller not in self.subject.inlines:
            return [(caller, count)]
        callers = list(self.through[caller, callee])
        part, rest = divmod(count, len(callers) or 1)
        return [(real, part + (index < rest)) for index, real in enumerate(callers)]

    def _way(self, caller: str, callee: str) -> list[str]:
        """The shortest way over functions that the tracer never saw; empty if there is none."""
        before: dict[str, str] = {}
        todo = deque([caller])
        while todo:
            key = todo.popleft()
            for called in self.callees.get(key, ()):
                if called == callee:
                    way = [callee, key]
                    while way[-1] != caller:
                        way.append(before[way[-1]])
                    return way[::-1]
                if called not in self.seen and called not in before and called != caller:
                    before[called] = key
                    todo.append(called)
        return []
