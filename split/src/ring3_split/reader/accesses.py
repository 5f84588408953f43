"""Fields and global variables that a function touches.

# What counts
A load of a field is a read, a store a write. An element of an array member counts as the array.
Copying a struct reads and writes the member that it is, or else each of its members. The address of
a field is taken where it leaves the function's local variables: passed, returned, or stored. A
pointer that only stays in local variables is followed instead. Finding a bit field's neighbours
before it is stored is no read. Where an address goes is told with it: whoever gets it may only
read, and what a function does to what its own parameters point to is told, too (`through`), so that
this can be found out.
"""

from __future__ import annotations

import re
from typing import Literal

from ring3_split.ir.instruction import Instruction
from ring3_split.ir.module import Body, plain
from ring3_split.ir.origin import Origin, Origins
from ring3_split.model import Access, Handed
from ring3_split.reader.unit import Context

Way = Literal["r", "w", "a"]
_COPY = re.compile(r"@llvm\.mem(cpy|move|set)\.")
_PLACES = frozenset(("load", "store", "atomicrmw", "cmpxchg"))


class Accesses:
    """The accesses of one function."""

    def __init__(self, context: Context, body: Body) -> None:
        self._context = context
        self._metadata = context.metadata
        self._origins = Origins.within(context.module, body)
        self._lines: dict[tuple[str, Way, str, str, str], list[int]] = {}
        self._globals: dict[str, set[Way]] = {}
        self._handed: dict[tuple[str, str], int] = {}
        self._through: dict[int, set[str]] = {}
        for instruction in body.instructions:
            self._instruction(instruction)

    @property
    def fields(self) -> tuple[Access, ...]:
        """The fields, in the order in which they are first touched."""
        return tuple(
            Access(field, way, tuple(sorted(set(lines))), within, base, to)
            for (field, way, within, base, to), lines in self._lines.items()
        )

    @property
    def handed(self) -> tuple[Handed, ...]:
        """The variables whose address leaves the function, once for each place that it goes to."""
        return tuple(Handed(variable, to, line) for (variable, to), line in self._handed.items())

    @property
    def through(self) -> dict[str, str]:
        """What is done here to what each parameter points to: "r", "w", "rw"."""
        return {
            str(number): "".join(sorted(ways)) for number, ways in sorted(self._through.items())
        }

    @property
    def globals(self) -> dict[str, str]:
        """How each global variable is touched.

        "r", "w", "rw", or "a" when its address is taken too.
        """
        return {
            name: "a" if "a" in ways else "".join(sorted(ways))
            for name, ways in self._globals.items()
        }

    def _instruction(self, instruction: Instruction) -> None:
        opcode = instruction.opcode
        if opcode in _PLACES:
            self._access(instruction)
        elif instruction.callee:
            if instruction.callee == "asm":
                self._assembly(instruction)
            elif match := _COPY.match(instruction.callee):
                self._copy(instruction, match[1])
            elif not instruction.callee.startswith("@llvm."):
                name = plain(instruction.callee[1:]) if instruction.callee.startswith("@") else ""
                for place, argument in enumerate(instruction.arguments):
                    self._address(argument, instruction, f"{name}:{place}")
        elif opcode == "ret" and instruction.operands:
            self._address(instruction.operands[0], instruction, "return")

    def _access(self, instruction: Instruction) -> None:
        """A load, a store, or an atomic operation, which is both."""
        store = instruction.opcode == "store"
        pointer = instruction.operands[1 if store else 0]
        if store:
            self._store(instruction, pointer)
        if self._origins.is_slot(pointer):
            return
        ways: tuple[Way, ...] = (
            ("w",) if store else ("r",) if instruction.opcode == "load" else ("r", "w")
        )
        if instruction.opcode == "load" and self._origins.part_of_store(instruction):
            return
        for origin in self._origins.every(pointer):
            field = self._origins.leaf(origin, instruction)
            for way in ways:
                self._field(field, way, instruction)
                self._global(field or origin, way)
                self._pointed(field or origin, way)

    def _pointed(self, origin: Origin, way: Way) -> None:
        """Notes an access to what a parameter points to."""
        found = origin.object
        if found.kind == "param" and not found.address:
            self._through.setdefault(found.index, set()).add(way)

    def _store(self, instruction: Instruction, pointer: str) -> None:
        """Storing an address takes it, unless a local variable keeps it."""
        if instruction.operands[0][:1] in "%@g" and not self._origins.is_slot(pointer):
            self._address(
                instruction.operands[0], instruction, self._destination(instruction, pointer)
            )

    def _destination(self, instruction: Instruction, pointer: str) -> str:
        """The field or variable that a store sets; "" if it is neither."""
        origin = self._origins.of(pointer)
        field = self._origins.leaf(origin, instruction)
        if field is not None:
            return f"field {field.name}"
        return f"global {origin.name}" if origin.kind == "global" and origin.address else ""

    def _address(self, operand: str, instruction: Instruction, to: str) -> None:
        """A value that leaves the local variables.

        The address of a field or a global, if it is one.
        """
        if operand[:1] not in ("%", "@") and "@" not in operand:
            return
        for origin in self._origins.every(operand):
            place = self._origins.member(origin, operand)
            if place.address:
                self._field(place, "a", instruction, to)
                if self._global(place, "a"):
                    self._handed.setdefault((place.object.name, to), instruction.line)

    def _assembly(self, instruction: Instruction) -> None:
        """Memory operands of assembly are read or written as their constraints say.

        Other addresses are taken.
        """
        code = instruction.assembly
        constraints = [
            c
            for c in (code[1] if code else "").split(",")
            if not c.startswith("~") and (c[:1] != "=" or "*" in c)
        ]
        for position, argument in enumerate(instruction.arguments):
            constraint = constraints[position] if position < len(constraints) else ""
            way: Way = "a" if "*" not in constraint else "w" if constraint.startswith("=") else "r"
            if way == "a":
                self._address(argument, instruction, "assembly")
                continue
            for origin in self._origins.every(argument):
                self._field(origin if origin.within else None, way, instruction)
                self._global(origin, way)
                self._pointed(origin, way)

    def _copy(self, instruction: Instruction, how: str) -> None:
        """Assignment or clearing of a whole struct."""
        places: list[tuple[str, Way]] = [(instruction.arguments[0], "w")]
        if how != "set":
            places.append((instruction.arguments[1], "r"))
        length = instruction.arguments[2]
        for place, way in places:
            if not self._origins.is_slot(place):
                for origin in self._origins.every(place):
                    self._whole(
                        origin, way, instruction, int(length) * 8 if length.isdigit() else 0
                    )

    def _whole(self, origin: Origin, way: Way, instruction: Instruction, bits: int) -> None:
        self._global(origin, way)
        self._pointed(origin, way)
        if origin.within:
            self._field(origin, way, instruction)
            return
        node = self._metadata.composite(origin.type)
        if node and self._metadata.size(node) == bits and origin.object.kind != "local":
            for member in self._metadata.members(node):
                step = self._context.fields.enter(node, member)
                self._field(
                    self._origins.walk(origin, (step,)) if step.name else None, way, instruction
                )

    def _field(
        self, field: Origin | None, way: Way, instruction: Instruction, to: str = ""
    ) -> None:
        if field is None or not field.within:
            return
        base = field.base
        key = (field.name, way, base.within if base else "", self._base(base), to)
        self._lines.setdefault(key, []).append(instruction.line)

    def _base(self, base: Origin | None) -> str:
        """The object that a field is inside of; of a local variable its struct."""
        if base is None:
            return ""
        found = base.object
        if found.kind != "local":
            return str(found)
        node = self._metadata.composite(self._metadata.element(found.type))
        return f"local {self._metadata.name(node) if node else found.name}"

    def _global(self, origin: Origin, way: Way) -> bool:
        """Notes an access to a variable; whether it is one."""
        found = origin.object
        if found.kind != "global" or not found.address or self._context.is_function(found.name):
            return False
        variable = self._context.module.globals.get(plain(found.name))
        if variable is None or variable.linkage == "private":
            return False
        self._globals.setdefault(found.name, set()).add(way)
        return True
