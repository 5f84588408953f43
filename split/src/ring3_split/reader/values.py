"""What becomes of the numbers and pointers that a function reads.

A member that one half writes and the other reads is a way for a wrong number to do harm: as an
index, a length, a divisor, the end of a loop, a pointer. Values are followed forwards through
casts, arithmetic and local variables to all such uses.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from ring3_split.ir.instruction import Instruction
from ring3_split.ir.module import Body, plain
from ring3_split.ir.origin import Origins
from ring3_split.ir.types import Types
from ring3_split.model import Used
from ring3_split.reader.allocations import table as allocators
from ring3_split.reader.bounds import bound
from ring3_split.reader.expressions import Expressions
from ring3_split.reader.ranges import number
from ring3_split.reader.uses import Uses

_SAME = frozenset(
    (
        "bitcast",
        "ptrtoint",
        "inttoptr",
        "zext",
        "sext",
        "trunc",
        "freeze",
        "addrspacecast",
        "phi",
        "select",
    )
)
_ARITHMETIC = frozenset(
    ("add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "ashr", "udiv", "sdiv", "urem", "srem")
)
_DIVISIONS = frozenset(("udiv", "sdiv", "urem", "srem"))
_SHIFTS = frozenset(("shl", "lshr", "ashr"))
_MEMORY = re.compile(r"^@llvm\.(memcpy|memmove|memset)\b")
_LENGTH = re.compile(r"\[(\d+) x ")
_MANY = 400  # instructions that one value is followed through


class Value(NamedTuple):
    """A value on its way.

    Its name in the IR, what it was cut to, where it was read from, and whether it was computed
    with.
    """

    name: str
    mask: int
    source: str
    derived: bool = False

    def used(self, what: str, line: int, detail: str = "", count: int = 0) -> Used:
        """The end of its way."""
        return Used(self.source, what, line, detail, count, self.mask, self.derived)  # type: ignore[arg-type]


class Values:
    """The values of one function."""

    def __init__(self, body: Body, origins: Origins, uses: Uses, types: Types) -> None:
        self._body = body
        self._origins = origins
        self._uses = uses
        self._types = types
        self._expressions = Expressions(body, origins, uses, allocators().arithmetic)
        self._steps: dict[str, bool] = {}
        self._order: dict[str, tuple[list[Instruction], list[int], list[int]]] = {}

    def used(self) -> tuple[Used, ...]:
        """What becomes of each field, parameter and result that is read.

        Each use once, at its first line.
        """
        found: dict[tuple[str, str, str, int], Used] = {}
        for start, names in self._starts().items():
            for use in self._ends(start, names):
                known = found.setdefault((use.value, use.what, use.detail, use.mask), use)
                if use.line < known.line:
                    found[use.value, use.what, use.detail, use.mask] = use
        return tuple(
            sorted(found.values(), key=lambda one: (one.line, one.value, one.what, one.detail))
        )

    def _starts(self) -> dict[str, list[str]]:
        """Place that a value is read from -> its names in the IR."""
        found: dict[str, list[str]] = {}
        for instruction in self._body.instructions:
            if (
                instruction.opcode == "call"
                and instruction.callee.startswith("@")
                and instruction.result
            ):
                found.setdefault(f"call {plain(instruction.callee[1:])}", []).append(
                    instruction.result
                )
            elif instruction.opcode == "load" and not self._origins.part_of_store(instruction):
                # A load of a local variable is a copy of what was stored there, and is met from its
                # own source.
                if instruction.operands[0] in self._uses.slots:
                    variable = self._body.variables.get(instruction.operands[0])
                    if variable is None or variable.argument < 0:
                        continue
                    found.setdefault(f"param {variable.argument}", []).append(instruction.result)
                    continue
                for origin in self._origins.every(instruction.operands[0]):
                    field = self._origins.leaf(origin, instruction)
                    if field is not None:
                        found.setdefault(f"field {field.name}", []).append(instruction.result)
        return found

    def _ends(self, source: str, names: list[str]) -> Iterator[Used]:
        waiting = [Value(name, -1, source) for name in dict.fromkeys(names)]
        seen = {value.name for value in waiting}
        for count, value in enumerate(waiting):
            if count > _MANY:
                return
            for user in self._uses.of(value.name):
                yield from self._use(value, user)
                for following in self._following(value, user):
                    if following.name not in seen:
                        seen.add(following.name)
                        waiting.append(following)

    def _following(self, value: Value, user: Instruction) -> Iterator[Value]:
        """The values that a value goes on in."""
        if user.opcode in _SAME:
            yield value._replace(name=user.result)
        elif user.opcode in _ARITHMETIC:
            mask, derived, constant = value.mask, True, number(user.operands[1])
            if user.opcode in ("and", "urem") and constant is not None and constant > 0:
                limit = constant if user.opcode == "and" else constant - 1
                mask, derived = limit if mask < 0 else min(mask, limit), value.derived
            elif user.opcode not in ("and", "lshr", "udiv", "urem"):
                mask = -1
            yield value._replace(name=user.result, mask=mask, derived=derived)
        elif (
            user.opcode == "store"
            and user.operands[0] == value.name
            and user.operands[1] in self._uses.slots
        ):
            yield from (value._replace(name=load.result) for load in self._seen_by(user))
        elif user.opcode == "call" and user.callee.startswith("@llvm.expect"):
            yield value._replace(name=user.result)

    def _use(self, value: Value, user: Instruction) -> Iterator[Used]:
        """What an instruction does with a value, when that is an end of its way."""
        name, line = value.name, user.line
        if user.opcode == "getelementptr":
            yield from self._moved(value, user)
        elif user.opcode in ("load", "atomicrmw", "cmpxchg") and user.operands[0] == name:
            yield value.used("pointer", line)
        elif user.opcode == "store":
            yield from self._stored(value, user)
        elif user.opcode in ("call", "callbr"):
            yield from self._passed(value, user)
        elif user.opcode in _DIVISIONS | _SHIFTS and user.operands[1] == name:
            width = str(self._types.size(user.type) * 8) if user.opcode in _SHIFTS else ""
            yield value.used("shift" if width else "divisor", line, width)
        elif user.opcode == "icmp":
            yield self._compared(value, user)
        elif user.opcode == "ret":
            yield value.used("returned", line)

    def _moved(self, value: Value, move: Instruction) -> Iterator[Used]:
        if move.operands[0] == value.name:
            yield value.used("pointer", move.line)
        elif move.type != "i8" or value.source.startswith("field "):
            limit = bound(move, self._expressions, self._origins, self._uses, move.operands[-1])
            yield value.used("index", move.line, limit, self._elements(move))

    def _stored(self, value: Value, store: Instruction) -> Iterator[Used]:
        if store.operands[1] == value.name:
            yield value.used("pointer", store.line)
        elif store.operands[1] not in self._uses.slots:
            origin = self._origins.of(store.operands[1])
            field = self._origins.leaf(origin, store)
            yield value.used("stored", store.line, f"field {field.name}" if field else str(origin))

    def _passed(self, value: Value, call: Instruction) -> Iterator[Used]:
        memory = _MEMORY.match(call.callee)
        if call.callee == value.name:
            yield value.used("pointer", call.line, "called")
        elif call.callee == "asm":
            yield value.used("assembly", call.line)
        callee = plain(call.callee[1:]) if call.callee.startswith("@") else ""
        for place, argument in enumerate(call.arguments):
            if argument != value.name:
                continue
            if memory:
                yield value.used(
                    "length" if place == 2 else "pointer", call.line, f"{memory[1]}:{place}"
                )
            elif not callee.startswith("llvm.") and call.callee != "asm":
                yield value.used("argument", call.line, f"{callee}:{place}")

    def _compared(self, value: Value, comparison: Instruction) -> Used:
        """A comparison; of a variable that is stepped in a loop, its end."""
        left, right = comparison.operands[:2]
        other = right if left == value.name else left
        definition = self._origins.definitions.get(other)
        while definition is not None and definition.opcode in _SAME - {"phi", "select"}:
            definition = self._origins.definitions.get(definition.operands[0])
        slot = (
            definition.operands[0] if definition is not None and definition.opcode == "load" else ""
        )
        ordered = " eq " not in comparison.text and " ne " not in comparison.text
        ends = ordered and slot in self._uses.slots and self._stepped(slot)
        return value.used(
            "loop" if ends else "compared", comparison.line, self._expressions.of(other).text()
        )

    def _stepped(self, slot: str) -> bool:
        """Whether a variable is set to itself and something."""
        if slot not in self._steps:
            own = {user.result for user in self._uses.of(slot) if user.opcode == "load"}
            made = (
                self._origins.definitions.get(store.operands[0])
                for store in self._uses.stores(slot)
            )
            self._steps[slot] = any(
                one is not None
                and one.opcode in ("add", "sub")
                and not own.isdisjoint(one.operands)
                for one in made
            )
        return self._steps[slot]

    def _seen_by(self, store: Instruction) -> list[Instruction]:
        """The loads that may see a store: `Uses.loads`, but quick for a variable set very often."""
        slot = store.operands[1]
        if slot not in self._order:
            users = self._uses.of(slot)
            loads = [user for user in users if user.opcode == "load"]
            stores = [
                user.index for user in users if user.opcode == "store" and user.operands[1] == slot
            ]
            self._order[slot] = (loads, [load.index for load in loads], stores)
        loads, places, stores = self._order[slot]
        first, after = bisect_right(places, store.index), bisect_right(stores, store.index)
        if after == len(stores):
            return loads[first:]
        return loads[first : bisect_right(places, stores[after])] or loads[first:]

    def _elements(self, move: Instruction) -> int:
        match = _LENGTH.match(move.type)
        return int(match[1]) if match else 0
