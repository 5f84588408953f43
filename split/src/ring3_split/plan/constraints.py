"""The rules of a cut.

What is in the kernel half for certain, and what one function there drags along.

# States
Rules speak of a function in a state, so that each of them is one arc "if this, then that": `placed`
it is in the kernel half; `atomic` it may run in atomic context there; `reaching` it calls, at any
depth, a function of the kernel half; `critical` a critical root calls it at any depth. A lock is a
node too.

# Rules
- What an atomic function calls is atomic, and an atomic function is placed: "callees of atomic
  code" do not leave.
- What a function of the kernel half calls while it holds a spinlock, with interrupts off or under
  RCU is atomic.
- "A critical section must not be split" [Microdrivers 4]: if what is called under a spinlock
  reaches the kernel half, the holder is there too. Mutexes and RTNL are no such sections: both
  halves may sleep while they hold one.
- A spinlock is taken on one side only.
- An inline of the driver's headers is in the kernel half if a function there uses it; the user half
  may have another copy.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from ring3_split.plan.subject import Step, Subject


class State(StrEnum):
    """In which way a node is on the kernel's side of a cut."""

    PLACED = "placed"
    ATOMIC = "atomic"
    REACHING = "reaching"
    CRITICAL = "critical"
    LOCK = "lock"


class Node(NamedTuple):
    """A function, or a lock, in a state."""

    name: str
    state: State


@dataclass(frozen=True)
class Pin:
    """Why a node is on the kernel's side to begin with."""

    rule: str  # in one word, for tables
    words: str
    where: str = ""  # more of it, said once and not in each chain


@dataclass(frozen=True)
class Link:
    """Why a node comes to the kernel's side.

    A pin, or another node there and the call between them, if it is one.
    """

    cause: Node | Pin
    step: Step | None = None


@dataclass
class Constraints:
    """Pins and arcs. All of them are infinite in the network: no cost buys them off."""

    pins: dict[Node, Pin] = field(
        default_factory=dict
    )  # in the order in which reasons are preferred
    arcs: dict[Node, dict[Node, Step | None]] = field(default_factory=lambda: defaultdict(dict))

    def arc(self, cause: Node, effect: Node, step: Step | None = None) -> None:
        """If `cause` is on the kernel's side, so is `effect`."""
        if cause != effect:
            self.arcs[cause].setdefault(effect, step)

    def closure(
        self, pins: Mapping[Node, Pin] | None = None, known: Mapping[Node, Link] | None = None
    ) -> dict[Node, Link]:
        """All that the pins bring to the kernel's side, each with its nearest cause.

        Earlier pins come first, and the calls that lead away from pins before what follows from a
        function's place there.
        """
        found: dict[Node, Link] = dict(known or {})
        places: deque[Node] = deque()
        for node, pin in (self.pins if pins is None else pins).items():
            if node not in found:
                found[node] = Link(pin)
                self._follow(deque([node]), found, places)
        while places:
            self._follow(deque([places.popleft()]), found, places, through=True)
        return found

    def _follow(
        self, todo: deque[Node], found: dict[Node, Link], places: deque[Node], through: bool = False
    ) -> None:
        """Follows the arcs from some nodes.

        Functions' places, unless one starts there, are put off.
        """
        while todo:
            cause = todo.popleft()
            if cause.state is State.PLACED and not through:
                places.append(cause)
                continue
            through = False
            for effect, step in self.arcs.get(cause, {}).items():
                if effect not in found:
                    found[effect] = Link(cause, step)
                    todo.append(effect)


def constraints(subject: Subject, critical: bool) -> Constraints:
    """The rules for a driver.

    With `critical`, all that a root calls stays too, whether atomic or not [Microdrivers 2].
    """
    rules = Constraints()
    _pins(rules, subject, critical)
    for step in subject.steps:
        _call(rules, step, subject.combolocks)
        if critical:
            rules.arc(Node(step.caller, State.CRITICAL), Node(step.callee, State.CRITICAL), step)
    for key in subject.placed:
        here = Node(key, State.PLACED)
        rules.arc(Node(key, State.ATOMIC), here)
        rules.arc(Node(key, State.CRITICAL), here)
        rules.arc(here, Node(key, State.REACHING))
    for user, inlines in subject.uses.items():
        for inline, line in inlines.items():
            rules.arc(
                Node(user, State.PLACED), Node(inline, State.PLACED), Step(user, inline, line)
            )
    for lock, takers in subject.takers.items():
        for key in takers if lock not in subject.combolocks else ():
            rules.arc(Node(key, State.PLACED), Node(lock, State.LOCK))
            rules.arc(Node(lock, State.LOCK), Node(key, State.PLACED))
    return rules


def _pins(rules: Constraints, subject: Subject, critical: bool) -> None:
    """Roots, atomic entries, entries of unknown context, and what no process can run."""
    for key, roots in subject.roots.items():
        pin = Pin("critical", f"critical root, {roots[0].template}", roots[0].where)
        atomic = key not in subject.contexts or any(
            entry.context == "atomic" for entry in subject.contexts[key]
        )
        if critical:
            rules.pins[Node(key, State.CRITICAL)] = pin
        rules.pins[Node(key, State.ATOMIC if atomic else State.PLACED)] = pin
    for key in subject.placed:
        for entry in subject.contexts.get(key, ()):
            if entry.context == "atomic":
                rules.pins.setdefault(
                    Node(key, State.ATOMIC), Pin("entry", f"called in atomic context by {entry.by}")
                )
    for key, reason in subject.fixed.items():
        rules.pins.setdefault(Node(key, State.PLACED), Pin("fixed", reason))
    for key in sorted(subject.unknown):
        words = f"called by {subject.unknown[key]}, in a context that is not known"
        rules.pins.setdefault(Node(key, State.ATOMIC), Pin("unknown", words))


def _call(rules: Constraints, step: Step, combolocks: frozenset[str]) -> None:
    """The arcs of one call.

    Who holds nothing but combolocks may go to a process with what it calls: there one may sleep.
    """
    caller, callee = step.caller, step.callee
    rules.arc(Node(caller, State.ATOMIC), Node(callee, State.ATOMIC), step)
    rules.arc(Node(callee, State.REACHING), Node(caller, State.REACHING), step)
    if step.held:
        rules.arc(Node(caller, State.PLACED), Node(callee, State.ATOMIC), step)
    if any(held.region.lock not in combolocks for held in step.held):
        rules.arc(Node(callee, State.REACHING), Node(caller, State.PLACED), step)


def functions(nodes: Iterable[Node]) -> frozenset[str]:
    """The functions that are placed."""
    return frozenset(node.name for node in nodes if node.state is State.PLACED)
