"""The dataflow of one function: what is held before each instruction, and at its ends.

Drivers lock under conditions that no dataflow can prove to agree. Two rules sort out the ways that
cannot be, because they would be errors of the driver:

- Where a lock is given back that some of the ways hold, the ways that do not hold it did not come
  there.
- A test of a field that decides whether a lock is given back came out as it did when it decided
  whether the lock was taken: if some of the ways hold the lock, and some do not.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator

from ring3_split.ir.instruction import Instruction
from ring3_split.ir.module import Block, Body
from ring3_split.reader.conditions import Conditions, Fact, Facts, Test, Value, assume, holds
from ring3_split.reader.paths import LIMIT, Hold, Outcome, Path, Paths, add, collapsed

_INCOMING = re.compile(r'\[ ([^,\]]+), %([\w.$-]+|"[^"]*") \]')
_CASE = re.compile(r'i\d+ (-?\d+), label %([\w.$-]+|"[^"]*")')
_NEAR = 12  # blocks; macros make many
_END = 10**9  # a place behind every instruction of a block


class Flow:
    """Runs on construction.

    `effects` says what calls do to locks, by instruction index; `place` names what pointers point
    to.
    """

    def __init__(
        self, body: Body, effects: dict[int, tuple[Outcome, ...]], place: Callable[[str], str]
    ) -> None:
        self._blocks = body.blocks
        self._order = {label: place for place, label in enumerate(self._blocks)}
        self._effects = effects
        self._conditions = Conditions(body, place)
        self._tests = {label: self._deciding(block) for label, block in self._blocks.items()}
        self._roots = self._relevant()
        self._written = self._writing()
        self._events = {label: self._eventful(block) for label, block in self._blocks.items()}
        self._phis: dict[str, list[Instruction]] = {}
        for label, block in self._blocks.items():
            if block.instructions[0].opcode == "phi":
                self._phis[label] = [
                    each
                    for each in block.instructions
                    if each.opcode == "phi" and each.result in self._roots
                ]
        self._crowded: set[str] = set()
        self._before: dict[str, Paths] = {}
        self.held: dict[
            int, frozenset[Hold]
        ] = {}  # by instruction index, before it; nothing held is left out
        self.released: dict[Hold, set[int]] = {}  # lines
        self.exits: list[tuple[Path, Fact | None]] = []  # path and result, for each return
        self._solve()
        for label, paths in self._before.items():
            self._record(label, paths)

    def _deciding(self, block: Block) -> Value:
        """The value that a block's terminator looks at.

        A condition, a switched number, a result.
        """
        last = block.instructions[-1]
        if last.opcode not in ("br", "switch", "ret") or not last.operands:
            return None
        return self._conditions.value(last.operands[0], block.label, len(block.instructions) - 1)

    def _relevant(self) -> set[str]:
        """The tracked values that terminators depend on, through variables and phi nodes."""
        sources: dict[str, set[str]] = {}
        for block in self._blocks.values():
            for place, instruction in enumerate(block.instructions):
                if instruction.opcode == "store" and self._conditions.tracked(
                    instruction.operands[1]
                ):
                    value = self._conditions.value(instruction.operands[0], block.label, place)
                    sources.setdefault(instruction.operands[1], set()).add(_root(value))
                elif instruction.opcode == "phi":
                    incoming = (
                        self._conditions.value(operand, label, _END)
                        for operand, label in _incoming(instruction)
                    )
                    sources.setdefault(instruction.result, set()).update(map(_root, incoming))
        roots: set[str] = set()
        waiting = {_root(value) for value in self._tests.values()}
        while waiting:
            root = waiting.pop()
            if root and root not in roots:
                roots.add(root)
                waiting |= sources.get(root, set())
        return roots

    def _writing(self) -> dict[int, str]:
        """The stores that change a value that is tracked, by instruction index."""
        memory = any(root.startswith("*") for root in self._roots)
        written = {}
        for block in self._blocks.values():
            for instruction in block.instructions:
                if instruction.opcode == "store":
                    pointer = instruction.operands[1]
                    name = (
                        pointer
                        if self._conditions.tracked(pointer)
                        else self._conditions.field(pointer)
                        if memory
                        else ""
                    )
                    if name in self._roots:
                        written[instruction.index] = name
        return written

    def _eventful(self, block: Block) -> list[tuple[int, Instruction]]:
        """The instructions of a block that change the state, with their places."""
        return [
            (place, instruction)
            for place, instruction in enumerate(block.instructions)
            if instruction.index in self._effects
            or instruction.index in self._written
            or (instruction.result in self._roots and instruction.opcode not in ("phi", "alloca"))
        ]

    def _solve(self) -> None:
        entry = next(iter(self._blocks))
        self._before[entry] = {Path(): {}}
        queue: list[tuple[int, str]] = [(0, entry)]
        while queue:
            _, label = heapq.heappop(queue)
            paths = self._before[label]
            for place, instruction in self._events[label]:
                paths = self._step(label, place, instruction, paths)
            for successor, going in self._edges(label, paths):
                if (
                    self._merge(successor, going)
                    and (item := (self._order[successor], successor)) not in queue
                ):
                    heapq.heappush(queue, item)

    def _merge(self, label: str, paths: Paths) -> bool:
        """Adds paths to what comes into a block. True if that changed."""
        known = self._before.get(label)
        merged = dict(known or {})
        for path, facts in paths.items():
            add(merged, path, facts)
        if len(merged) > LIMIT or label in self._crowded:
            self._crowded.add(label)  # for good, or the dataflow might not settle
            merged = collapsed(merged)
        self._before[label] = merged
        return bool(paths) and merged != known

    def _step(self, label: str, place: int, instruction: Instruction, paths: Paths) -> Paths:
        """The paths after one instruction."""
        if instruction.index in self._effects:
            return self._call(instruction, paths)
        name, value = instruction.result, None
        if instruction.opcode == "store":
            name = self._written[instruction.index]
            value = self._conditions.value(instruction.operands[0], label, place)
        after: Paths = {}
        for path, facts in paths.items():
            add(after, path, _set(facts, name, _fact(value, facts)))
        return after

    def _call(self, call: Instruction, paths: Paths) -> Paths:
        chosen = self._possible(call, paths)
        after: Paths = {}
        for path, outcome in chosen:
            facts = paths[path]
            known = (
                _set(facts, call.result, outcome.result) if call.result in self._roots else facts
            )
            add(after, outcome.on(path), known)
        return after if len(after) <= LIMIT else collapsed(after)

    def _possible(self, call: Instruction, paths: Paths) -> list[tuple[Path, Outcome]]:
        """What a call may do on each path.

        Nobody gives back what he does not hold, where others do who hold it.
        """
        every = [(path, outcome) for path in paths for outcome in self._effects[call.index]]
        giving = [(path, outcome) for path, outcome in every if outcome.dropped]
        proper = [
            (path, outcome)
            for path, outcome in giving
            if all(path.find(hold) is not None for hold in outcome.dropped)
        ]
        wrong = (
            {(path, outcome) for path, outcome in giving if (path, outcome) not in proper}
            if proper
            else set()
        )
        return [one for one in every if one not in wrong]

    def _edges(self, label: str, paths: Paths) -> Iterator[tuple[str, Paths]]:
        """What goes to each successor."""
        block = self._blocks[label]
        test = self._tests[label]
        remembered = _root(test).startswith("*")
        wrong = self._disagreeing(block, paths) if remembered else set()
        for successor in block.successors:
            if successor not in self._blocks:
                continue
            phis = self._phis.get(successor)
            going: Paths = {}
            for path, facts in paths.items():
                known: Facts | None = facts
                if (path, successor) in wrong:
                    known = None
                elif len(block.successors) > 1:
                    known = _taken(
                        block,
                        test,
                        successor,
                        _set(facts, _root(test), None) if remembered else facts,
                    )
                if known is not None:
                    add(going, path, self._entered(phis, label, known) if phis else known)
            yield successor, going

    def _disagreeing(self, block: Block, paths: Paths) -> set[tuple[Path, str]]:
        """Paths that end if a field is now what it was, or was not, when a lock was taken."""
        value = self._tests[block.label]
        test = _test(value) if value is not None else None
        wrong: set[tuple[Path, str]] = set()
        if len(block.successors) != 2 or not isinstance(test, Test):
            return wrong
        for successor in block.successors:
            for given in self._given(successor):
                holding = {path for path in paths if path.find(given) is not None}
                for path, facts in paths.items() if 0 < len(holding) < len(paths) else ():
                    truth = holds(test, facts)
                    if truth is not None:
                        there = block.successors[0 if truth else 1]
                        if (path in holding) == (there == successor):
                            wrong.add(
                                (path, next(other for other in block.successors if other != there))
                            )
        return wrong

    def _given(self, label: str) -> tuple[Hold, ...]:
        """The locks given back first after a block's beginning, before control flow branches."""
        for _ in range(_NEAR):
            for _, instruction in self._events.get(label, ()):
                for outcome in self._effects.get(instruction.index, ()):
                    if outcome.dropped:
                        return outcome.dropped
            if label not in self._blocks or len(self._blocks[label].successors) != 1:
                break
            label = self._blocks[label].successors[0]
        return ()

    def _entered(self, phis: list[Instruction], label: str, facts: Facts) -> Facts:
        """The facts behind the phi nodes of a block that is come to from `label`.

        They all read what was before.
        """
        result = facts
        for phi in phis:
            operand = next((value for value, source in _incoming(phi) if source == label), "")
            result = _set(
                result, phi.result, _fact(self._conditions.value(operand, label, _END), facts)
            )
        return result

    def _record(self, label: str, paths: Paths) -> None:
        """Notes the locks held before each instruction of a block, releases, and function ends."""
        block = self._blocks[label]
        events = dict(self._events[label])
        held = _holds(paths)
        for place, instruction in enumerate(block.instructions):
            if held:
                self.held[instruction.index] = held
            if place in events:
                for path, outcome in (
                    self._possible(instruction, paths) if instruction.index in self._effects else ()
                ):
                    for hold in set(path.held) - set(outcome.on(path).held):
                        self.released.setdefault(hold, set()).add(instruction.line)
                paths = self._step(label, place, instruction, paths)
                held = _holds(paths)
        if block.instructions[-1].opcode == "ret":
            self.exits.extend(
                (path, _fact(self._tests[label], facts)) for path, facts in paths.items()
            )


def _holds(paths: Paths) -> frozenset[Hold]:
    return frozenset(hold for path in paths for hold in path.held)


def _root(value: Value) -> str:
    return value.root if isinstance(value, Test) else value if isinstance(value, str) else ""


def _test(value: str | Test | int) -> Test | int:
    """A value as a condition: whether it is not zero."""
    return Test(value, "ne", 0) if isinstance(value, str) else value


def _fact(value: Value, facts: Facts) -> Fact | None:
    """What is known of a value. Of a field that is read now, nothing is: it may have changed."""
    if _root(value).startswith("*"):
        return None
    if isinstance(value, Test):
        truth = holds(value, facts)
        return None if truth is None else int(truth)
    return facts.get(value) if isinstance(value, str) else value


def _set(facts: Facts, name: str, fact: Fact | None) -> Facts:
    """The facts after a value became another."""
    result = {
        key: known for key, known in facts.items() if name not in (key, getattr(key, "root", None))
    }
    if fact is not None:
        result[name] = fact
    return result


def _incoming(phi: Instruction) -> list[tuple[str, str]]:
    """Values of a phi node, each with the block that it comes from."""
    return [(match[1].strip(), match[2].strip('"')) for match in _INCOMING.finditer(phi.text)]


def _taken(block: Block, value: Value, successor: str, facts: Facts) -> Facts | None:
    """The facts when a block goes on to one of its successors; None when it cannot."""
    last = block.instructions[-1]
    if value is None or last.opcode not in ("br", "switch"):
        return facts
    if last.opcode == "switch":
        return _switched(last, value, successor, facts)
    wanted = successor == block.successors[0]
    test = _test(value)
    truth = bool(test) if isinstance(test, int) else holds(test, facts)
    if truth is not None:
        return facts if truth == wanted else None
    return assume(test, wanted, facts) if isinstance(test, Test) else facts


def _switched(last: Instruction, value: Value, successor: str, facts: Facts) -> Facts | None:
    cases = {int(match[1]): match[2].strip('"') for match in _CASE.finditer(last.text)}
    number = _fact(value, facts)
    if isinstance(number, int):
        return facts if cases.get(number, last.targets()[0]) == successor else None
    chosen = [case for case, target in cases.items() if target == successor]
    if len(chosen) == 1 and successor != last.targets()[0] and isinstance(value, str):
        return _set(facts, value, chosen[0])
    return facts
