"""The ways through one function that differ in the locks held, and what is known on each.

A path is a stack of what is held and what of the caller's was given back. Where two ways meet with
the same path their facts are joined, with different paths they go on side by side; so `if (x) lock`
keeps two paths and a later `if (x)` sends each its way (the idea of ESP, Das, Lerner and Seigle,
PLDI 2002). Past `LIMIT` paths in one block they are made one that holds everything, which is still
what may be held.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

from ring3_split.model import Kind
from ring3_split.reader.conditions import Fact, Facts, joined
from ring3_split.reader.locks import company, family

LIMIT = 24


@dataclass(frozen=True, slots=True)
class Hold:
    """Something held, or given back: which lock, and where it was taken."""

    kind: Kind
    lock: str  # name as Region.lock has it; "" for a kind that has no lock object
    base: str = ""  # the object that the lock lies in, to tell two rings' locks apart
    line: int = 0
    guard: str = ""  # the class whose constructor took it, in guard() and scoped_guard()


@dataclass(frozen=True, slots=True)
class Path:
    """What is held, last taken last, and what of the caller's was given back."""

    held: tuple[Hold, ...] = ()
    dropped: tuple[Hold, ...] = ()

    def take(self, hold: Hold) -> Path:
        """Takes a lock. Taking it at the same place again (in a loop) changes nothing."""
        return self if hold in self.held else replace(self, held=(*self.held, hold))

    def give(self, given: Hold) -> Path:
        """Gives back the last taken that matches; if none does, it was the caller's."""
        place = self.find(given)
        if place is None:
            return self if self._unknown(given) else replace(self, dropped=(*self.dropped, given))
        found = self.held[place]
        rest = self.held[:place] + self.held[place + 1 :]
        taken, released = company(found.kind), company(given.kind)
        if taken and not released:  # spin_lock_irq, then spin_unlock: interrupts stay off
            return replace(self, held=(*rest, Hold(taken, "", "", found.line)))
        path = replace(self, held=rest)
        return path.give(Hold(released, "", "", given.line)) if released and not taken else path

    def leave(self, guard: str) -> Path:
        """What the destructor of a guard gives back: what its constructor took last."""
        for place in reversed(range(len(self.held))):
            if self.held[place].guard == guard:
                return replace(self, held=self.held[:place] + self.held[place + 1 :])
        return self

    def find(self, given: Hold) -> int | None:
        """Where in the stack a lock is.

        The same lock of the same object, else the same lock, else one of unknown name.
        """
        same = [
            place for place, hold in enumerate(self.held) if family(hold.kind) == family(given.kind)
        ]
        exact = [
            place
            for place in same
            if (self.held[place].lock, self.held[place].base) == (given.lock, given.base)
        ]
        named = [place for place in same if self.held[place].lock == given.lock]
        vague = [place for place in same if "?" in (self.held[place].lock, given.lock)]
        for places in (exact, named, vague):
            if places:
                return places[-1]
        return None

    def _unknown(self, given: Hold) -> bool:
        """Whether giving this back adds nothing to what is known."""
        return given in self.dropped


@dataclass(frozen=True, slots=True)
class Outcome:
    """One thing that a call may do to the locks, and what its result then is."""

    taken: tuple[Hold, ...] = ()
    dropped: tuple[Hold, ...] = ()
    result: Fact | None = None
    guard: str = ""  # the guard class that it is the destructor of

    def on(self, path: Path) -> Path:
        """The path after such a call."""
        if self.guard:
            return path.leave(self.guard)
        for hold in self.dropped:
            path = path.give(hold)
        for hold in self.taken:
            path = path.take(hold)
        return path


Paths = dict[Path, Facts]


def add(paths: Paths, path: Path, facts: Facts) -> None:
    """Adds one more way to come to a place."""
    paths[path] = joined(paths[path], facts) if path in paths else facts


def collapsed(paths: Paths) -> Paths:
    """One path for all: it holds whatever one of them holds."""
    held = {hold for path in paths for hold in path.held}
    dropped = {hold for path in paths for hold in path.dropped}
    facts = list(paths.values())
    return {Path(_ordered(held), _ordered(dropped)): reduce(joined, facts)}


def _ordered(holds: set[Hold]) -> tuple[Hold, ...]:
    return tuple(
        sorted(holds, key=lambda hold: (hold.line, hold.kind, hold.lock, hold.base, hold.guard))
    )
