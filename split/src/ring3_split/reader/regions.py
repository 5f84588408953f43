"""Which code may run while a lock is held.

A forward dataflow (flow.py) over each function that touches a lock, by itself or through a function
of the unit that returns with one held. What a call does is a list of outcomes, from locks.toml or
from the summary of the function called. Summaries are made from the bottom up until nothing
changes, so a driver's `foo_lock()`, the inline functions of the kernel's headers and the
constructors behind `guard()` need no entry in a table.

# What it promises
May-hold: a region has every line that can run while the lock is held, by some way through the
function. It may have more: two tests of one field are not known to agree.

# What it does not see
Locks taken by a call through a pointer, or by a function of another unit; those are for the linked
graph.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ring3_split.ir.instruction import Instruction
from ring3_split.ir.module import Body, IrModule
from ring3_split.ir.origin import Origin, Origins
from ring3_split.model import Given, Region
from ring3_split.reader.conditions import ANY, Fact, signs
from ring3_split.reader.flow import Flow
from ring3_split.reader.locks import Entry, family, table
from ring3_split.reader.paths import Hold, Outcome, Path

_GUARD = re.compile(r"class_(\w+)_(constructor|destructor)")
_SUCCESS: dict[str, tuple[Fact, Fact]] = {
    "nonzero": (frozenset((-1, 1)), 0),
    "zero": (0, frozenset((-1, 1))),
}  # results on success and on failure
_ROUNDS = 6  # a summary that has not settled by then is of a recursion, and stays as it is
_OUTCOMES = 6  # of one function
_TRANSPARENT = ("spinlock_check",)  # gives back its argument


@dataclass(frozen=True)
class Held:
    """What one function holds, and where."""

    regions: tuple[Region, ...] = ()
    given: tuple[Given, ...] = ()  # what it gives back of its caller's
    # Instruction index -> indexes into `regions`: what may be held when the instruction runs.
    at: dict[int, tuple[int, ...]] = field(default_factory=dict)


def regions(module: IrModule) -> dict[str, Held]:
    """What each function of a unit holds or gives back, if it does either, by function name."""
    unit = _Unit(module)
    unit.settle()
    every = {name: _held(module.functions[name], flow) for name, flow in unit.flows.items()}
    return {name: held for name, held in every.items() if held.regions or held.given}


class _Unit:
    """Which functions of a unit touch locks, and what calling them does."""

    def __init__(self, module: IrModule) -> None:
        self.flows: dict[str, Flow] = {}
        self._module = module
        self._callers: dict[str, list[str]] = {}
        for name, body in module.functions.items():
            for callee in body.callees:
                self._callers.setdefault(callee, []).append(name)
        listed = {name: entry for name in self._callers if (entry := table().find(name))}
        self._entries = {
            name: entry
            for name, entry in listed.items()
            if not (entry.inlined and name in module.functions)
        }
        self._summaries: dict[str, tuple[Outcome, ...]] = {}

    def settle(self) -> None:
        """Makes flows and summaries until nothing changes.

        Callees first, so only recursion is done again.
        """
        order = _bottom_up({name: body.callees for name, body in self._module.functions.items()})
        rounds = dict.fromkeys(self._module.functions, 0)
        first = [name for name in self._callers if name in self._entries or _GUARD.fullmatch(name)]
        waiting = {(order[caller], caller) for name in first for caller in self._callers[name]}
        queue = sorted(waiting)
        while queue:
            item = heapq.heappop(queue)
            waiting.discard(item)
            name = item[1]
            rounds[name] += 1
            if self._summarise(name) and rounds[name] < _ROUNDS:
                for caller in self._callers.get(name, ()):
                    if (following := (order[caller], caller)) not in waiting:
                        waiting.add(following)
                        heapq.heappush(queue, following)

    def _summarise(self, name: str) -> bool:
        """Runs the flow of a function. True if callers see something new."""
        body = self._module.functions[name]
        names = _Names(self._module, body)
        effects = self._effects(body, names)
        summary: tuple[Outcome, ...] = (Outcome(),)
        if effects:
            flow = self.flows[name] = Flow(body, effects, names.place)
            summary = _summary(flow)
        else:
            self.flows.pop(name, None)
        changed = summary != self._summaries.get(name, (Outcome(),)) and name not in self._entries
        self._summaries[name] = summary
        return changed

    def _effects(self, body: Body, names: _Names) -> dict[int, tuple[Outcome, ...]]:
        """What the calls of a function do, by instruction index.

        Calls that do nothing to locks are left out.
        """
        found = {}
        for instruction in body.instructions:
            if instruction.callee.startswith("@"):
                callee = instruction.callee[1:]
                if (entry := self._entries.get(callee)) is not None:
                    found[instruction.index] = _listed(entry, instruction, names)
                elif (match := _GUARD.fullmatch(callee)) and match[2] == "destructor":
                    found[instruction.index] = (Outcome(guard=match[1]),)
                elif self._summaries.get(callee, (Outcome(),)) != (Outcome(),):
                    guard = match[1] if match else ""
                    found[instruction.index] = tuple(
                        _called(outcome, instruction, names, guard)
                        for outcome in self._summaries[callee]
                    )
        return found


def _bottom_up(callees: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """A number for each function, above those of the functions that it calls, recursion aside."""
    order: dict[str, int] = {}
    seen: set[str] = set()
    for root in callees:
        stack = [(root, iter(callees[root]))] if root not in seen else []
        seen.add(root)
        while stack:
            name, rest = stack[-1]
            following = next((one for one in rest if one in callees and one not in seen), None)
            if following is None:
                order[name] = len(order)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(callees[following])))
    return order


class _Names:
    """How the locks of one function are called.

    A lock that is a parameter, and the object of a lock when that is one, is "param N" until it is
    shown: callers put theirs in.
    """

    def __init__(self, module: IrModule, body: Body) -> None:
        self._origins = Origins.within(module, body)
        self._calls = {
            call.result: call for call in body.instructions if call.callee[1:] in _TRANSPARENT
        }

    def of(self, value: str) -> tuple[str, str]:
        """Name and base of a value that is a lock, or leads to one."""
        while value in self._calls:
            value = self._calls[value].arguments[0]
        origin = self._origins.of(value)
        return _named(origin), _named(origin.base) if origin.base else ""

    def place(self, pointer: str) -> str:
        """A name for what a pointer points to, if it is a field or global.

        The same for all pointers to it.
        """
        origin = self._origins.of(pointer)
        return (
            f"{origin.name} of {origin.base or ''}"
            if origin.address and origin.kind in ("field", "global")
            else ""
        )

    def argument(self, call: Instruction, number: int | None) -> tuple[str, str]:
        """Name and base of an argument."""
        return (
            self.of(call.arguments[number])
            if number is not None and number < len(call.arguments)
            else ("?", "")
        )

    def translated(self, hold: Hold, call: Instruction) -> Hold:
        """A lock of the called function as the caller knows it."""
        lock, base = hold.lock, hold.base
        if lock.startswith("param "):
            lock, base = self.argument(call, int(lock[6:]))
        elif base.startswith("param "):
            base, _ = self.argument(call, int(base[6:]))
        return replace(hold, lock=lock, base=base, line=call.line)


def _named(origin: Origin) -> str:
    if origin.kind == "param":
        return f"param {origin.index}"
    return origin.name if origin.kind in ("field", "global", "local") else "?"


def _listed(entry: Entry, call: Instruction, names: _Names) -> tuple[Outcome, ...]:
    """What a function of the table does at a call."""
    lock, base = (
        (entry.name, "") if entry.argument is None else names.argument(call, entry.argument)
    )
    hold = Hold(entry.kind, lock, base, call.line)
    if not entry.takes:
        return (Outcome(dropped=(hold,)),)
    if not entry.when:
        return (Outcome(taken=(hold,)),)
    success, failure = _SUCCESS[entry.when]
    return (Outcome(taken=(hold,), result=success), Outcome(result=failure))


def _called(outcome: Outcome, call: Instruction, names: _Names, guard: str) -> Outcome:
    """What a function with a summary does at a call.

    The constructor of a guard takes the lock that it is given.
    """
    taken = tuple(names.translated(hold, call) for hold in outcome.taken)
    if guard:
        lock, base = names.argument(call, 0) if call.arguments else ("", "")
        taken = tuple(
            replace(hold, lock=lock or hold.lock, base=base, guard=guard) for hold in taken
        )
    return Outcome(
        taken, tuple(names.translated(hold, call) for hold in outcome.dropped), outcome.result
    )


def _summary(flow: Flow) -> tuple[Outcome, ...]:
    """What calling a function does, by its ends."""
    results: dict[tuple[tuple[Hold, ...], tuple[Hold, ...]], list[Fact | None]] = {}
    for path, result in flow.exits:
        results.setdefault(_net(path), []).append(result)
    if len(results) > _OUTCOMES:
        taken = dict.fromkeys(hold for held, _ in results for hold in held)
        return (Outcome(tuple(taken)),)
    return tuple(
        Outcome(held, dropped, _union(facts)) for (held, dropped), facts in results.items()
    ) or (Outcome(),)


def _net(path: Path) -> tuple[tuple[Hold, ...], tuple[Hold, ...]]:
    """What a path takes and gives back, seen from outside.

    A lock that is given back and taken again is neither.
    """
    held = [replace(hold, line=0, guard="") for hold in path.held]
    dropped = [replace(hold, line=0, guard="") for hold in path.dropped]
    for hold in tuple(dropped):
        same = [
            one
            for one in held
            if (family(one.kind), one.lock, one.base) == (family(hold.kind), hold.lock, hold.base)
        ]
        if same:
            held.remove(same[-1])
            dropped.remove(hold)
    return tuple(held), tuple(dropped)


def _union(facts: list[Fact | None]) -> Fact | None:
    """What is known of a result that is one of several."""
    if None in facts or not facts:
        return None
    known = [fact for fact in facts if fact is not None]
    if all(fact == known[0] for fact in known):
        return known[0]
    union = frozenset().union(*map(signs, known))
    return None if union == ANY else union


def _held(body: Body, flow: Flow) -> Held:
    """A function's regions in line order, and what it gives back of its caller's locks."""
    holds = sorted(
        flow.released.keys() | {hold for held in flow.held.values() for hold in held}, key=_order
    )
    lines: dict[Hold, set[int]] = {hold: set() for hold in holds}
    at: dict[int, tuple[int, ...]] = {}
    places = {hold: place for place, hold in enumerate(holds)}
    kept = {hold for path, _ in flow.exits for hold in path.held}
    given = {hold for path, _ in flow.exits for hold in path.dropped}
    for instruction in body.instructions:
        if held := flow.held.get(instruction.index):
            at[instruction.index] = tuple(sorted(places[hold] for hold in held))
            for hold in held:
                lines[hold].add(instruction.line)
    return Held(
        tuple(
            Region(
                hold.kind,
                _shown(hold.lock, body),
                hold.line,
                tuple(sorted(lines[hold] - {0})),
                tuple(sorted(flow.released.get(hold, set()) - {0})),
                hold in kept,
            )
            for hold in holds
        ),
        tuple(
            dict.fromkeys(
                Given(hold.kind, _shown(hold.lock, body), hold.line)
                for hold in sorted(given, key=_order)
            )
        ),
        at,
    )


def _order(hold: Hold) -> tuple[int, str, str, str]:
    return hold.line, hold.kind, hold.lock, hold.base


def _shown(lock: str, body: Body) -> str:
    """The name of a lock for people: a parameter by its own name."""
    if not lock.startswith("param "):
        return lock
    number = int(lock[6:])
    return next(
        (variable.name for variable in body.variables.values() if variable.argument == number), "?"
    )
