"""Why each function is where it is, in plain words with the place in the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ring3_split.model import Kind, Region
from ring3_split.plan.constraints import Link, Node, Pin, State
from ring3_split.plan.cut import Problem, placed
from ring3_split.plan.subject import Subject

LONGEST = 6  # functions that a chain names; of longer ones the middle is left out


class Reason(NamedTuple):
    """Why a function is where it is: the rule in one word, and the whole of it."""

    rule: str
    words: str


def kernel(subject: Subject, problem: Problem, chosen: frozenset[str]) -> dict[str, Reason]:
    """Reasons for the functions of a kernel half: the rules' first, then what it saves."""
    rules = problem.rules
    forced = rules.closure()
    bought = {
        placed(key): Pin("cost", words)
        for key in sorted(chosen)
        if (words := _saving(subject, problem, chosen, key))
    }
    return explain(subject, rules.closure(bought, known=forced), chosen)


def explain(
    subject: Subject, links: Mapping[Node, Link], functions: Iterable[str]
) -> dict[str, Reason]:
    """Reasons for some functions by the links of a closure."""
    found = _Words(subject, links)
    return {key: found.of(placed(key)) for key in functions}


def user(problem: Problem, chosen: frozenset[str], key: str) -> str:
    """Reason for a function of the user half."""
    crossing = problem.weights.entries[key] + sum(
        problem.weights.between(key, other) for other in chosen
    )
    cost = (
        f"{crossing:,} {_crossing(problem, crossing)} for its {problem.sizes[key]} lines"
        if crossing
        else "nothing counted crosses for it"
    )
    return f"no rule keeps it in the kernel; {cost}"


def _crossing(problem: Problem, count: int) -> str:
    """What crosses, in words."""
    if problem.weights.source:
        return "call of the profile crosses" if count == 1 else "calls of the profile cross"
    return "place of the code crosses" if count == 1 else "places of the code cross"


def _saving(subject: Subject, problem: Problem, chosen: frozenset[str], key: str) -> str:
    """What a function that is free to leave would cost on the other side."""
    weights = problem.weights
    near = {
        other: count for other in chosen if other != key and (count := weights.between(key, other))
    }
    parts = [f"{weights.entries[key]:,} from the kernel"] if weights.entries[key] else []
    parts += [
        f"{count:,} with {subject.name(other)}"
        for other, count in sorted(near.items(), key=lambda pair: (-pair[1], pair[0]))[:3]
    ]
    if not parts:
        return ""
    what = "calls of the profile" if weights.source else "places of the code"
    return (
        f"what would cross costs more than its {problem.sizes[key]} lines: {what}: "
        f"{', '.join(parts)}"
    )


class _Words:
    """Puts the links of a closure into words."""

    def __init__(self, subject: Subject, found: Mapping[Node, Link]) -> None:
        self.subject = subject
        self.found = found

    def of(self, node: Node) -> Reason:
        """The reason for a function of the kernel half."""
        link = self.found.get(node)
        if link is None:
            return Reason(
                "cost", "costs more in the user half, with all that would go there with it"
            )
        cause = link.cause
        if isinstance(cause, Pin):
            return _pinned(cause)
        match cause.state:
            case State.LOCK:
                return Reason("lock", self._lock(node.name, cause))
            case State.REACHING:
                return Reason("section", self._section(cause, link))
            case State.PLACED:
                return Reason(
                    "inline",
                    f"an inline that {self.subject.name(cause.name)} uses, {self._place(link)}",
                )
        return self._called(cause)

    def _called(self, node: Node) -> Reason:
        """Atomic or critical, by a chain of calls from a pin or from a region."""
        chain = [node.name]
        last = link = self.found[node]
        while isinstance(link.cause, Node) and link.cause.state is node.state:
            chain.append(link.cause.name)
            link = self.found[link.cause]
        cause = link.cause
        if isinstance(cause, Pin):
            if len(chain) == 1:
                return _pinned(cause)
            way = f"{self._arrows(chain)}, {self._place(last)}"
            return Reason(
                cause.rule, f"reached from {self.subject.name(chain[-1])} ({cause.words}): {way}"
            )
        held = link.step.held[0] if link.step else None
        region = (
            f"{_name(held.region)}, taken at {self.subject.at(held.holder, held.region.line)}"
            if held
            else "a lock"
        )
        way = f"{self._arrows([*chain, cause.name])}, {self._place(last)}"
        return Reason("region", f"called in {self.subject.name(cause.name)} under {region}: {way}")

    def _lock(self, key: str, lock: Node) -> str:
        """A spinlock that both halves would take."""
        taker = self.found[lock].cause
        place = self.subject.at(key, self.subject.takers[lock.name][key])
        other = self.subject.name(taker.name) if isinstance(taker, Node) else "a function"
        return f"takes {lock.name} at {place}, as {other} of the kernel half does"

    def _section(self, node: Node, link: Link) -> str:
        """A critical section that would be split."""
        chain = [node.name]
        while isinstance(cause := self.found[node].cause, Node) and cause.state is State.REACHING:
            chain.append(cause.name)
            node = cause
        lock = _name(link.step.held[0].region) if link.step else "a lock"
        return (
            f"holds {lock} while it calls {self._arrows(chain[::-1])} of the kernel half, "
            f"{self._place(link)}"
        )

    def _place(self, link: Link) -> str:
        """Where the last call stands."""
        return self.subject.at(link.step.caller, link.step.line) if link.step else ""

    def _arrows(self, chain: list[str]) -> str:
        """A chain that was gathered backwards, forwards."""
        names = [self.subject.name(key) for key in reversed(chain)]
        if len(names) > LONGEST:
            names = [*names[: LONGEST // 2], "...", *names[-LONGEST // 2 :]]
        return " -> ".join(names)


def _pinned(pin: Pin) -> Reason:
    """A pin by itself, with all that is known of it."""
    return Reason(pin.rule, f"{pin.words}: {pin.where}" if pin.where else pin.words)


def _name(region: Region) -> str:
    """What a region holds."""
    names = {
        Kind.IRQ_OFF: "interrupts off",
        Kind.BH_OFF: "bottom halves off",
        Kind.PREEMPT_OFF: "preemption off",
        Kind.RCU: "RCU",
    }
    return names.get(region.kind) or (region.lock if region.lock != "?" else "a spinlock")
