"""What a function sets fields to.

The range that a stored value can only have, told without running anything.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

from ring3_split.ir.instruction import Instruction
from ring3_split.ir.module import Body
from ring3_split.ir.origin import Origins
from ring3_split.ir.types import Types
from ring3_split.model import Assigned
from ring3_split.reader.uses import Uses

_DEEP = 24
_INTEGER = re.compile(r"i(\d+)$")

Range = tuple[int, int]

_COMBINED: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "mul": operator.mul,
    "or": operator.or_,
    "shl": lambda value, amount: value << min(amount, 64),
}


class Ranges:
    """The ranges of the values of one function."""

    def __init__(self, body: Body, origins: Origins, uses: Uses, types: Types) -> None:
        self._body = body
        self._origins = origins
        self._uses = uses
        self._types = types
        self._variables: dict[str, Range | None] = {}

    def assigned(self) -> tuple[Assigned, ...]:
        """What fields are set to."""
        found: dict[tuple[str, int | None, int | None, str], Assigned] = {}
        for store in self._body.instructions:
            if (
                store.opcode != "store"
                or store.operands[1] in self._uses.slots
                or not store.type.startswith("i")
            ):
                continue
            low, high = self.of(store.operands[0]) or (None, None)
            text = (
                str(low)
                if low is not None and low == high
                else str(self._origins.of(store.operands[0]))
            )
            for origin in self._origins.every(store.operands[1]):
                field = self._origins.leaf(origin, store)
                if field is not None:
                    found.setdefault(
                        (field.name, low, high, text),
                        Assigned(field.name, store.line, low, high, text),
                    )
        return tuple(sorted(found.values(), key=lambda one: (one.field, one.line, one.text)))

    def of(self, value: str, way: tuple[str, ...] = ()) -> Range | None:
        """The least and the greatest that a value can be; None when nothing is known.

        `way` are the values on the way here.
        """
        constant = number(value)
        if constant is not None:
            return constant, constant
        definition = self._origins.definitions.get(value)
        if definition is None or value in way or len(way) > _DEEP:
            return None
        way = (*way, value)
        found: Range | None = None
        match definition.opcode:
            case "icmp":
                found = 0, 1
            case "zext" | "sext" | "trunc" | "freeze":
                found = self._cast(definition, way)
            case "and" | "urem" | "lshr":
                found = self._cut(definition, way)
            case "add" | "mul" | "or" | "shl":
                found = self._computed(definition, way)
            case "phi" | "select":
                found = self._union(
                    definition.operands[1 if definition.opcode == "select" else 0 :], way
                )
            case "load" if definition.operands[0] in self._uses.slots:
                found = self._variable(definition.operands[0], way)
        return found

    def _cast(self, cast: Instruction, way: tuple[str, ...]) -> Range | None:
        """The range of a value in another width.

        Its own, if it has room there, or else of all that the width can hold.
        """
        inner = self.of(cast.operands[0], way)
        if cast.opcode == "zext":
            bits = self._bits(cast.operands[0])
            return inner if inner and inner[0] >= 0 else (0, 2**bits - 1) if bits else None
        room = 2 ** (self._types.size(cast.type) * 8 - 1)
        return inner if inner and -room <= inner[0] and inner[1] < 2 * room else None

    def _cut(self, definition: Instruction, way: tuple[str, ...]) -> Range | None:
        """The range of a value that a constant cuts: a mask, a shift to the right, a remainder."""
        constant = number(definition.operands[1])
        if constant is None or constant < 0:
            return None
        if definition.opcode == "lshr":
            inner = self.of(definition.operands[0], way)
            most = (
                inner[1]
                if inner and inner[0] >= 0
                else 2 ** (self._types.size(definition.type) * 8) - 1
            )
            return 0, most >> constant
        if definition.opcode == "and":
            return 0, constant
        return (0, constant - 1) if constant else None

    def _computed(self, definition: Instruction, way: tuple[str, ...]) -> Range | None:
        """The range of a sum or the like of two ranges without a sign, when it does not wrap."""
        left, right = (self.of(operand, way) for operand in definition.operands[:2])
        if not left or not right or left[0] < 0 or right[0] < 0:
            return None
        combine = _COMBINED[definition.opcode]
        low, high = combine(left[0], right[0]), combine(left[1], right[1])
        if definition.opcode == "or" and (left[0], right[0]) != (left[1], right[1]):
            low, high = (
                max(left[0], right[0]),
                (1 << max(left[1].bit_length(), right[1].bit_length())) - 1,
            )
        return (low, high) if high < 2 ** (self._types.size(definition.type) * 8) else None

    def _variable(self, slot: str, way: tuple[str, ...]) -> Range | None:
        """All that is ever stored to a local variable whose address nobody has."""
        if slot not in self._variables:
            self._variables[slot] = None  # while it is on the way to itself
            self._variables[slot] = self._held(slot, way)
        return self._variables[slot]

    def _held(self, slot: str, way: tuple[str, ...]) -> Range | None:
        variable = self._body.variables.get(slot)
        if variable is None or variable.argument >= 0:
            return None
        users = self._uses.of(slot)
        if any(
            user.opcode not in ("load", "store")
            or (user.opcode == "store" and user.operands[0] == slot)
            for user in users
        ):
            return None
        return self._union([store.operands[0] for store in self._uses.stores(slot)], (*way, slot))

    def _union(self, values: list[str], way: tuple[str, ...]) -> Range | None:
        ranges = [self.of(value, way) for value in values]
        known = [one for one in ranges if one is not None]
        if not known or len(known) < len(ranges):
            return None
        return min(low for low, _ in known), max(high for _, high in known)

    def _bits(self, value: str) -> int:
        """The width of what a value is extended from."""
        definition = self._origins.definitions.get(value)
        if definition is None:
            return 0
        if definition.opcode == "icmp":
            return 1
        match = _INTEGER.match(definition.type.split(" ")[-1])
        return int(match[1]) if match else 0


def number(text: str) -> int | None:
    """A constant of the IR; None of anything else."""
    if text in ("true", "false"):
        return int(text == "true")
    return int(text) if text.lstrip("-").isdigit() else None
