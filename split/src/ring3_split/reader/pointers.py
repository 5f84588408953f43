"""Where pointers are handed on: as arguments, into fields and as results.

Annotations follow them from field to use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ring3_split.ir.instruction import Instruction
from ring3_split.ir.module import Body, plain
from ring3_split.ir.origin import Origin, Origins
from ring3_split.model import Shape
from ring3_split.reader.allocations import table as allocators
from ring3_split.reader.expressions import Expressions
from ring3_split.reader.uses import Uses

# clang has names of its own for what C calls memcpy.
_MEMORY = re.compile(r"^@llvm\.(memcpy|memmove|memset)\b.*")
# A pointer has a place when it was loaded or passed; the address of a variable or member is not one
# that somebody keeps.
PLACES = ("param", "call", "global", "field")


def flows(body: Body, origins: Origins, uses: Uses) -> tuple[Shape, ...]:
    """The flows of one function, each once, in the order of lines."""
    expressions = Expressions(body, origins, uses, allocators().arithmetic)
    found: dict[tuple[str, str, int], Shape] = {}
    for instruction in body.instructions:
        if instruction.opcode == "store" and instruction.type == "ptr":
            found |= {
                (shape.pointer, shape.detail, -2): shape
                for shape in _interior(instruction, origins, expressions)
            }
        if instruction.opcode == "getelementptr":
            found |= {
                (shape.pointer, shape.detail, -1): shape
                for shape in _uncertain(instruction, origins)
            }
        for value, target in _moved(instruction, origins):
            if not _pointer(value, origins, body):
                continue
            for origin in origins.every(value):
                place = str(origin)
                if origin.kind in PLACES and not origin.address and place != target:
                    shape = Shape("flow", place, instruction.line, target)
                    # The first of its way is enough; calls through pointers are told apart by their
                    # lines.
                    found.setdefault(
                        (place, target, shape.line if target.startswith(":") else 0), shape
                    )
    return tuple(
        sorted(found.values(), key=lambda shape: (shape.line, shape.pointer, shape.detail))
    )


def _uncertain(move: Instruction, origins: Origins) -> Iterator[Shape]:
    """A pointer that may be from several places and is followed.

    It is followed for each of them.
    """
    base, *indices = move.operands
    if indices == ["0"] or origins.of(base).kind != "unknown":
        return
    struct = origins.fields.struct(move.type) if move.type.startswith("%") else 0
    for origin in origins.every(base):
        if origin.kind in PLACES and not origin.address:
            if struct and len(indices) > 1:
                yield Shape("cast", str(origin), move.line, origins.fields.metadata.name(struct))
            else:
                yield Shape("arithmetic", str(origin), move.line, "?")


def _interior(store: Instruction, origins: Origins, expressions: Expressions) -> Iterator[Shape]:
    """A pointer member that is set to an address inside of something.

    `ring[i] = &area[i * SIZE]`, `work->owner = &nic->part`.
    """
    field = _field(origins, store, store.operands[1])
    definition = origins.definitions.get(store.operands[0])
    if field is None or definition is None or definition.opcode != "getelementptr":
        return
    origin = origins.of(store.operands[0])
    if origin.kind == "field" and origin.address and origin.name != field.name:
        yield Shape("interior", f"field {field.name}", store.line, f"member {origin.name}")
    elif origin.kind == "field" and not origin.address and definition.operands[1:] != ["0"]:
        offset = expressions.of(definition.operands[-1]).text()
        yield Shape(
            "interior", f"field {field.name}", store.line, f"field {origin.name} + {offset}"
        )


def _moved(instruction: Instruction, origins: Origins) -> Iterator[tuple[str, str]]:
    """The values that an instruction moves, and where to."""
    if instruction.opcode in ("call", "callbr"):
        callee = _MEMORY.sub(r"@\1", instruction.callee)
        if callee != "asm" and not callee.startswith("@llvm."):
            name = plain(callee[1:]) if callee.startswith("@") else ""
            yield from (
                (value, f"{name}:{index}") for index, value in enumerate(instruction.arguments)
            )
    elif instruction.opcode == "store":
        value, pointer = instruction.operands
        field = _field(origins, instruction, pointer)
        if field:
            yield value, f"field {field.name}"
    elif instruction.opcode == "ret":
        yield from ((value, "return") for value in instruction.operands)


def _field(origins: Origins, instruction: Instruction, pointer: str) -> Origin | None:
    origin = origins.of(pointer)
    field = origins.leaf(origin, instruction)
    return field if field and instruction.type == "ptr" else None


def _pointer(value: str, origins: Origins, body: Body) -> bool:
    """Whether a value is a pointer; constants and addresses of variables lead nowhere."""
    definition = origins.definitions.get(value)
    if definition is None:
        return value in body.parameters and f"ptr {value}" in body.header.replace("noundef ", "")
    if definition.opcode == "getelementptr":
        return True
    return (
        definition.opcode in ("load", "call", "phi", "select", "inttoptr", "bitcast")
        and definition.type == "ptr"
    )
