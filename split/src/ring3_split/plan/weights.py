"""How often each call is made: what a cut there would cost.

# Without a profile
Every place of the code that calls counts once, and so does every entry. A cut then has few places
that cross, which is few stubs to generate; whether they cross often is not known.

# With a profile
Counts are calls in the measured run. The tracer does not see inlines, nor what the compiler
inlined: a count between functions that do not call each other lies on the shortest way between them
over functions that it cannot see.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from ring3_split.errors import Refusal
from ring3_split.plan.outside import outside
from ring3_split.plan.subject import Subject
from ring3_split.profile.record import Pair, Profile


@dataclass(frozen=True)
class Weights:
    """Calls between placed functions, and calls from the kernel."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    entries: Counter[str] = field(default_factory=Counter)
    source: str = ""  # the profile in words; empty when these are places of the code
    missing: tuple[tuple[str, str], ...] = ()  # measured, but not in the graph
    downcalls: Counter[str] = field(
        default_factory=Counter
    )  # of the kernel's functions, if the function is in the user half
    registers: Counter[str] = field(default_factory=Counter)  # accesses, if it is
    whole: bool = False  # these two are weighed in a cut, too

    def alone(self, key: str) -> int:
        """What crosses when a function is in the user half, whoever else is there."""
        return self.entries[key] + (self.downcalls[key] + self.registers[key] if self.whole else 0)

    def between(self, one: str, other: str) -> int:
        """Calls either way."""
        return self.calls[one, other] + self.calls[other, one]


def places(subject: Subject) -> Weights:
    """What is known without a profile."""
    sites = {
        (step.caller, step.callee, step.line)
        for step in subject.steps
        if step.caller != step.callee
    }
    calls = Counter((caller, callee) for caller, callee, _ in sites)
    downcalls, registers = outside(subject.graph)
    entries = Counter(key for key in subject.placed if subject.entered(key))
    return Weights(calls, entries, downcalls=downcalls, registers=registers)


def measured(subject: Subject, profile: Profile) -> Weights:
    """What a profile says.

    Raises:
        Refusal: it is one of another driver or of other code.
    """
    driver = subject.graph.driver.name
    if profile.driver.replace("_", "-") != driver.replace("_", "-"):
        raise Refusal(f"the profile is one of {profile.driver}, and {driver} is to be planned")
    for key in {key for pair in profile.pairs for key in (pair.caller, pair.callee) if key}:
        if key not in subject.graph.functions:
            raise Refusal(
                f"the profile has a function that {driver} has not, {key}: profile this kernel's "
                "driver anew"
            )
    return _Measured(subject, profile).weights()


class _Measured:
    """Lays the counts of a profile on the calls of the graph."""

    def __init__(self, subject: Subject, profile: Profile) -> None:
        self.subject = subject
        self.profile = profile
        self.invisible = frozenset(profile.invisible)
        self.callees: Mapping[str, dict[str, None]] = defaultdict(dict)
        self.through: Mapping[tuple[str, str], dict[str, None]] = defaultdict(dict)
        for step in subject.steps:
            self.callees[step.caller][step.callee] = None
            for inline in step.via:
                self.through[inline, step.callee][step.caller] = None

    def weights(self) -> Weights:
        calls: Counter[tuple[str, str]] = Counter()
        entries: Counter[str] = Counter()
        missing: dict[tuple[str, str], None] = {}
        for pair in self.profile.pairs:
            if pair.callee in self.subject.inlines:
                continue
            if not pair.caller:
                entries[pair.callee] += pair.count
                continue
            for caller, count in self._callers(pair):
                way = self._way(caller, pair.callee)
                if not way:
                    missing[caller, pair.callee] = None
                for hop in pairwise(way or [caller, pair.callee]):
                    if hop[0] != hop[1]:
                        calls[hop] += count
        source = (
            f"{self.profile.workload} workload, {self.profile.seconds:.0f} s, kernel "
            f"{self.profile.kernel}"
        )
        ran = entries + Counter({callee: 0 for _, callee in calls})
        for (caller, callee), count in calls.items():
            ran[callee] += count if caller != callee else 0
        downcalls, registers = (
            Counter({key: count * ran[key] for key, count in one.items()})
            for one in outside(self.subject.graph)
        )
        return Weights(calls, entries, source, tuple(missing), downcalls, registers)

    def _callers(self, pair: Pair) -> list[tuple[str, int]]:
        """The caller; of an inline that stands out of line, its callers in even parts."""
        if pair.caller not in self.subject.inlines:
            return [(pair.caller, pair.count)]
        callers = list(self.through[pair.caller, pair.callee])
        part, rest = divmod(pair.count, len(callers) or 1)
        return [(real, part + (index < rest)) for index, real in enumerate(callers)]

    def _way(self, caller: str, callee: str) -> list[str]:
        """The shortest way over functions that the tracer cannot see; empty if there is none."""
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
                if called in self.invisible and called not in before:
                    before[called] = key
                    todo.append(called)
        return []
