"""Where a value goes: followed forwards through the local variables of -O0 code."""

from __future__ import annotations

from collections.abc import Iterator

from ring3_split.ir.instruction import Instruction
from ring3_split.ir.module import Body

_SAME = (
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


class Uses:
    """The instructions that use each value of one function."""

    def __init__(self, body: Body) -> None:
        self._users: dict[str, list[Instruction]] = {}
        self.slots: set[str] = set()
        for instruction in body.instructions:
            if instruction.opcode == "alloca":
                self.slots.add(instruction.result)
            for operand in instruction.operands:
                if operand[:1] == "%":
                    self._users.setdefault(operand, []).append(instruction)

    def of(self, value: str) -> list[Instruction]:
        """The instructions that use a value, in order."""
        return self._users.get(value, [])

    def stores(self, slot: str) -> list[Instruction]:
        """What a local variable is set by."""
        return [
            user for user in self.of(slot) if user.opcode == "store" and user.operands[1] == slot
        ]

    def loads(self, store: Instruction) -> list[Instruction]:
        """The loads of a local variable that may see a store.

        Those behind it in the text, up to the next store if any.
        """
        slot = store.operands[1]
        behind = [
            user for user in self.of(slot) if user.opcode == "load" and user.index > store.index
        ]
        end = min(
            (other.index for other in self.stores(slot) if other.index > store.index), default=None
        )
        return [load for load in behind if end is None or load.index < end] or behind

    def final(self, value: str) -> Iterator[tuple[Instruction, str]]:
        """The instructions behind casts and locals that a value ends in, with its name in each.

        The stores to local variables are among them.
        """
        waiting = [value]
        seen = {value}
        while waiting:
            name = waiting.pop(0)
            for user in self.of(name):
                following: list[str] = []
                if user.opcode in _SAME:
                    following = [user.result]
                else:
                    yield user, name
                    if (
                        user.opcode == "store"
                        and user.operands[0] == name
                        and user.operands[1] in self.slots
                    ):
                        following = [load.result for load in self.loads(user)]
                waiting += [each for each in following if each not in seen]
                seen.update(following)
