"""The judge of a plan.

Can a function of the user half be reached in atomic context, and can the halves work at all?

# Method
States are walked forward through the calls as they are, inlines included. A state is a function of
one half and whether it is under a lock or otherwise atomic there. On the kernel's side a state that
is atomic and calls into the user half is a fault; on the user's side so is one that holds a
spinlock and calls into the kernel half, which would split the critical section. The way there is
told. What starts at an entry of unknown context is an assumption and no proof.

# Independence
Nothing here is shared with the planner but the facts of the subject: no rules, no network, no
closure.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ring3_split.context import STATED
from ring3_split.graph import Edge, lines
from ring3_split.model import Kind
from ring3_split.plan import unpaired
from ring3_split.plan.file import Plan, Side
from ring3_split.plan.fixed import LIFE
from ring3_split.plan.subject import Subject
from ring3_split.plan.verdict import Finding, Verdict


def check(subject: Subject, plan: Plan) -> Verdict:
    """Judges a plan, which may have been edited."""
    stale = tuple(_source(subject, plan))
    if stale:
        return Verdict(stale)
    judge = _Judge(subject, plan.sides())
    return Verdict(tuple(judge.faults()), tuple(judge.assumptions()), tuple(judge.notes(plan)))


def _source(subject: Subject, plan: Plan) -> Iterator[Finding]:
    """Whether the plan is for this source at all."""
    if plan.kernel != subject.kernel:
        text = (
            f"made for kernel {plan.kernel}, judged against {subject.kernel}: name the plan's "
            "kernel, or make the plan anew"
        )
        yield Finding("source", plan.driver, text)
        return
    known = {*subject.placed, *subject.copied}
    for key in sorted(known - plan.functions.keys()):
        yield Finding(
            "source", key, "is in the driver but not in the plan: give it a table with a placement"
        )
    for key in sorted(plan.functions.keys() - known):
        yield Finding(
            "source",
            key,
            "is in the plan but not in the driver: remove its table, or make the plan anew",
        )


@dataclass(frozen=True)
class _State:
    """A function of one half: must it not sleep (kernel half) or does it hold a spinlock (user)?"""

    function: str
    bound: bool


@dataclass(frozen=True)
class _Came:
    """How a state was reached: from another state by a call, or from outside."""

    state: _State | None
    edge: Edge | None = None
    words: str = ""


class _Judge:
    """Walks a placement."""

    def __init__(self, subject: Subject, sides: Mapping[str, Side]) -> None:
        self.subject = subject
        self.sides = sides

    def faults(self) -> Iterator[Finding]:
        """All that makes the plan wrong, each function once for each rule."""
        yield from self._places()
        yield from unpaired.alone(self.subject, self.sides)
        yield from unpaired.between(self.subject, self.sides)
        yield from self._locks()
        yield from self._copies()
        yield from self._atomic()
        yield from self._sections()
        yield from self._observed()
        for lock in sorted(self.subject.combolocks):
            facts = self.subject.locks.get(lock)
            if facts is None or facts.obstacle:
                yield Finding(
                    "combolock",
                    lock,
                    f"can be no combolock: {facts.obstacle if facts else 'no function takes it'}",
                )

    def assumptions(self) -> Iterator[Finding]:
        """What the plan rests on and nobody has proved."""
        subject = self.subject
        for key in sorted(subject.unknown):
            if self.sides[key] is Side.USER:
                by = subject.unknown[key]
                yield Finding(
                    "context",
                    key,
                    f"is called by {by}: that it may sleep there is not known",
                    (self._entry(key, by),),
                )
        seeds = {
            _State(key, True): _Came(None, words=subject.unknown[key])
            for key in sorted(subject.unknown)
            if self.sides[key] is not Side.USER
        }
        yield from self._crossings(
            seeds, Side.USER, "context", "is called where sleeping is not known to be allowed"
        )
        for key in subject.placed:
            for entry in subject.contexts.get(key, ()):
                if (
                    entry.source == STATED
                    and entry.context == "process"
                    and self.sides[key] is Side.USER
                ):
                    yield Finding(
                        "stated",
                        key,
                        f"is called by {entry.by}: that it may sleep there is what the plan says: "
                        f"{entry.why}",
                    )
        for lock in sorted(subject.combolocks):
            if (facts := subject.locks.get(lock)) and facts.hold_off:
                ways = ", ".join(f"{by} ({how})" for by, how in sorted(facts.hold_off.items()))
                yield Finding(
                    "combolock", lock, f"while the user half holds it, these must not run: {ways}"
                )
        for key in subject.placed:
            if self.sides[key] is Side.BOTH:
                yield Finding(
                    "copy",
                    key,
                    "runs in both halves: it must keep no state of its own, such as a static "
                    "variable",
                )

    def notes(self, plan: Plan) -> Iterator[str]:
        """What is worth knowing and not wrong."""
        subject = self.subject
        for key, placed in plan.functions.items():
            size = lines(subject.graph.functions[key])
            if placed.lines != size:
                yield f"{key}: {size} lines in this source, {placed.lines} in the plan"
        yield from self._mutexes()
        for step in subject.steps:
            for life in [
                LIFE[p.field] for p in subject.graph.entries.get(step.caller, ()) if p.field in LIFE
            ]:
                if self.sides[step.callee] is Side.USER:
                    where = f"{subject.name(step.caller)}, {subject.at(step.caller, step.line)}"
                    yield (
                        f"{subject.name(step.callee)}: called by {where}, which {life}: the "
                        "user half must be there then"
                    )

    def _mutexes(self) -> Iterator[str]:
        """Mutexes and semaphores of both halves.

        One that is reached by a pointer may be any of its type.
        """
        takers: dict[str, dict[str, set[Side]]] = defaultdict(
            lambda: defaultdict(set)
        )  # lock -> its names -> halves
        for key in self.subject.placed:
            for region in self.subject.graph.functions[key].regions:
                if region.kind is Kind.MUTEX and region.lock != "?":
                    takers[region.lock][region.name].add(self.sides[key])
        for lock, names in sorted(takers.items()):
            members = sorted(names.keys() - {lock})
            for name, halves in sorted(names.items()):
                if len(halves) > 1:
                    yield (
                        f"{name}: a mutex that both halves take; the user half takes it by a "
                        "downcall"
                    )
                elif name == lock and len(set().union(*names.values())) > 1:
                    which = f"a pointer does not say whether it is {' or '.join(members)}"
                    yield (
                        f"{lock}: a mutex that both halves may take: {which}; the user half "
                        "takes it by a downcall"
                    )

    def _places(self) -> Iterator[Finding]:
        """Roots, atomic entries and functions that no process can run, outside the kernel half."""
        subject = self.subject
        for key in subject.placed:
            if self.sides[key] is Side.KERNEL:
                continue
            if key in subject.fixed:
                yield Finding("fixed", key, f"cannot run in a process: {subject.fixed[key]}")
            if self.sides[key] is Side.USER and key in subject.roots:
                yield Finding("root", key, f"is a critical root: {subject.roots[key][0].template}")
            if (
                self.sides[key] is Side.USER
                and (by := self._atomic_by(key))
                and key not in subject.roots
            ):
                yield Finding(
                    "entry", key, f"is called in atomic context by {by}", (self._entry(key, by),)
                )

    def _locks(self) -> Iterator[Finding]:
        """Spinlocks that both halves would take."""
        for lock, takers in sorted(self.subject.takers.items()):
            if lock in self.subject.combolocks:
                continue
            inside = [key for key in takers if self.sides[key] is not Side.USER]
            outside = [key for key in takers if self.sides[key] is not Side.KERNEL]
            if inside and outside:
                both = [
                    f"{self.subject.name(keys[0])}, {self.subject.at(keys[0], takers[keys[0]])}"
                    for keys in (inside, outside)
                ]
                yield Finding(
                    "lock",
                    lock,
                    f"a spinlock that both halves take: kernel {both[0]}; user {both[1]}",
                )

    def _copies(self) -> Iterator[Finding]:
        """Inlines of the driver that are not where they are used."""
        found: dict[str, str] = {}
        for user, inlines in self.subject.uses.items():
            for key in inlines:
                if self.sides[key] is not Side.BOTH and self.sides[user] is not self.sides[key]:
                    found.setdefault(key, user)
        for key, user in sorted(found.items()):
            yield Finding(
                "inline",
                key,
                f"is used by {self.subject.name(user)} of the other half: place it in both",
            )

    def _atomic(self) -> Iterator[Finding]:
        """Functions of the user half that the kernel half calls in atomic context."""
        seeds = {
            _State(key, True): _Came(None, words=by)
            for key in self.subject.placed
            if self.sides[key] is not Side.USER and (by := self._atomic_by(key))
        }
        seeds |= {
            _State(key, False): _Came(None)
            for key, side in self.sides.items()
            if side is not Side.USER
        }
        yield from self._crossings(seeds, Side.USER, "atomic", "can be reached in atomic context")

    def _sections(self) -> Iterator[Finding]:
        """Functions of the kernel half that the user half calls while it holds a spinlock."""
        seeds = {
            _State(key, False): _Came(None)
            for key, side in self.sides.items()
            if side is not Side.KERNEL
        }
        yield from self._crossings(
            seeds, Side.KERNEL, "section", "is called from the user half inside a critical section"
        )

    def _observed(self) -> Iterator[Finding]:
        """User-half functions that a profile saw the kernel half call in atomic context."""
        for (caller, callee), count in sorted(self.subject.observed.items()):
            if self._side(caller) is not Side.USER and self._side(callee) is Side.USER:
                text = (
                    f"was called {count} times in atomic context by "
                    f"{self.subject.name(caller)}, as the profile saw"
                )
                yield Finding("seen", callee, text)

    def _crossings(
        self, seeds: Mapping[_State, _Came], there: Side, rule: str, text: str
    ) -> Iterator[Finding]:
        """The other half's functions that a bound state calls.

        Each is listed once, by the shortest way from the earliest seed.
        """
        came = dict(seeds)
        found: set[str] = set()
        todo = deque(came)
        while todo:
            state = todo.popleft()
            for callee, edges in self.subject.graph.calls.get(state.function, {}).items():
                for edge in edges:
                    free = self.subject.combolocks if there is Side.KERNEL else frozenset()
                    after = _State(
                        callee,
                        state.bound
                        or any(one.kind.atomic and one.lock not in free for one in edge.held),
                    )
                    if self._side(callee) is there:
                        if after.bound and callee not in found:
                            found.add(callee)
                            yield Finding(rule, callee, text, self._path(came, state, callee, edge))
                    elif after not in came:
                        came[after] = _Came(state, edge)
                        todo.append(after)

    def _side(self, key: str) -> Side:
        """Where a function runs; inlines run where they are called."""
        return Side.BOTH if key in self.subject.inlines else self.sides[key]

    def _atomic_by(self, key: str) -> str:
        """Who calls a function in atomic context.

        A root counts as atomic unless it is known not to be.
        """
        subject = self.subject
        contexts = subject.contexts.get(key, ())
        by = [entry.by for entry in contexts if entry.context == "atomic"]
        if not by and key in subject.roots and not contexts:
            by = [subject.roots[key][0].template]
        return ", ".join(by)

    def _path(
        self, came: Mapping[_State, _Came], state: _State, callee: str, edge: Edge
    ) -> tuple[str, ...]:
        """The chain of calls to a crossing, first function first."""
        hops = [self._hop(state.function, callee, edge)]
        way: _Came = came[state]
        while way.state is not None and way.edge is not None:
            hops.append(self._hop(way.state.function, state.function, way.edge))
            state = way.state
            way = came[state]
        return (self._entry(state.function, way.words), *reversed(hops))

    def _entry(self, key: str, by: str) -> str:
        """The first line of a path."""
        place = self.subject.at(key, self.subject.graph.functions[key].line)
        return f"{self.subject.name(key)}, {place}" + (f": called by {by}" if by else "")

    def _hop(self, caller: str, callee: str, edge: Edge) -> str:
        """One call of a path."""
        how = "" if edge.how == "direct" else f" through {edge.field or 'a pointer of its type'}"
        held = next((region for region in edge.held if region.kind.atomic), None)
        under = f", under {held.kind} {held.lock} taken at line {held.line}" if held else ""
        return (
            f"-> {self.subject.name(callee)}, called{how} at "
            f"{self.subject.at(caller, edge.line)}{under}"
        )
