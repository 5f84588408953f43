"""Pointers that a function only passes on to the kernel: handles, as far as it is concerned."""

from __future__ import annotations

from collections.abc import Iterator

from ring3_split.ir.instruction import Instruction
from ring3_split.ir.module import IrModule, plain
from ring3_split.ir.origin import Origin, Origins
from ring3_split.model import Shape


class Handles:
    """Collects what is done with the pointers of one function."""

    def __init__(self, module: IrModule, origins: Origins) -> None:
        self._module = module
        self._origins = origins
        self._looked: set[str] = set()  # pointers that are looked behind
        self._passed: dict[str, Shape] = {}

    def see(self, instruction: Instruction) -> None:
        """Notes what an instruction does with pointers."""
        if instruction.opcode in ("load", "getelementptr"):
            self._look(instruction.operands[0])
        elif instruction.opcode == "store":
            self._look(instruction.operands[1])
        elif (
            instruction.opcode == "call"
            and instruction.callee.startswith("@")
            and not instruction.callee.startswith("@llvm.")
        ):
            for argument in instruction.arguments:
                self._pass(argument, instruction)

    def shapes(self) -> Iterator[Shape]:
        """The pointers that were passed on and never looked behind."""
        for pointer, shape in self._passed.items():
            if pointer not in self._looked:
                yield shape

    def _look(self, pointer: str) -> None:
        if pointer[:1] == "%" and (origin := self._origins.of(pointer)) and not origin.address:
            self._looked.add(str(origin))

    def _pass(self, argument: str, call: Instruction) -> None:
        if argument[:1] != "%" or not self._pointer(origin := self._origins.of(argument)):
            return
        callee = plain(call.callee[1:])
        if self._own(callee):
            self._looked.add(
                str(origin)
            )  # by a function of the driver, perhaps: that one shows what it does
        else:
            self._passed.setdefault(str(origin), Shape("handle", str(origin), call.line, callee))

    def _pointer(self, origin: Origin) -> bool:
        """Whether a value is a parameter or a field that points to a struct."""
        return (
            origin.kind in ("param", "field")
            and not origin.address
            and bool(self._module.metadata.composite(origin.type))
        )

    def _own(self, callee: str) -> bool:
        """Whether a function is the driver's, not the kernel's or one of its headers'."""
        body = self._module.functions.get(callee)
        if body is None:
            return False
        metadata = self._module.metadata
        return not metadata.file(metadata.reference(body.attached("dbg"), "file")).endswith(".h")
