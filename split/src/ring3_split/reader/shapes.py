"""How a function uses its pointers: what a copy of the data that they point to would have to know.

A pointer that is indexed is an array, and the comparison of its index tells how long it is. One
that moves backwards to the struct around is the address of a member. One of type void* that is put
in a variable of a struct's type points to that struct. One that is only passed on is a handle. All
of it is evidence for a person to judge: each shape has its line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any, Literal

from ring3_split.ir.instruction import Instruction
from ring3_split.ir.module import Body, IrModule, plain
from ring3_split.ir.origin import Origin, Origins
from ring3_split.model import Shape
from ring3_split.reader.allocations import table as allocators
from ring3_split.reader.bounds import bound
from ring3_split.reader.expressions import Expressions
from ring3_split.reader.handles import Handles
from ring3_split.reader.uses import Uses

_LINKS = (
    "list_head.next",
    "list_head.prev",
    "hlist_node.next",
    "hlist_head.first",
    "llist_node.next",
    "llist_head.first",
)
_TEXT = re.compile(r'c"((?:[^"\\]|\\[0-9A-Fa-f]{2})*)"')
_CONVERSION = re.compile(r"%(?:%|[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?(?:hh?|ll?|[zjtL])?([a-zA-Z]))")
_OUTSIDE = ("param", "field", "global", "call")


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(
        resources.files(__package__).joinpath("shapes.toml").read_text(encoding="utf-8")
    )


def shapes(module: IrModule, body: Body, origins: Origins, uses: Uses) -> tuple[Shape, ...]:
    """The evidence in one function by its lines, each fact once."""
    found = _Shapes(module, body, origins, uses)
    every = [shape for instruction in body.instructions for shape in found.of(instruction)]
    known = {shape.pointer for shape in every}
    every += [shape for shape in found.handles.shapes() if shape.pointer not in known]
    unique: dict[tuple[str, str, str], Shape] = {}
    for shape in every:
        known_as = unique.setdefault(_identity(shape), shape)
        if (
            shape.detail.isdigit()
            and known_as.detail.isdigit()
            and int(shape.detail) > int(known_as.detail)
        ):
            unique[_identity(shape)] = shape
    return tuple(
        sorted(
            unique.values(), key=lambda shape: (shape.line, shape.what, shape.pointer, shape.detail)
        )
    )


def _identity(shape: Shape) -> tuple[str, str, str]:
    """What makes two shapes one.

    Constant indices are one array, and moving a pointer by this or that is moving it.
    """
    constant = shape.what == "arithmetic" or (shape.what == "index" and shape.detail.isdigit())
    return shape.what, shape.pointer, "" if constant else shape.detail


class _Shapes:
    def __init__(self, module: IrModule, body: Body, origins: Origins, uses: Uses) -> None:
        self._module = module
        self._metadata = module.metadata
        self._body = body
        self._origins = origins
        self._uses = uses
        self._expressions = Expressions(body, origins, uses, allocators().arithmetic)
        self.handles = Handles(module, origins)

    def of(self, instruction: Instruction) -> Iterator[Shape]:
        """What one instruction shows."""
        self.handles.see(instruction)
        if instruction.opcode == "getelementptr":
            yield from self._moved(instruction)
        elif instruction.opcode == "store":
            yield from self._assigned(instruction)
        elif instruction.opcode == "call" and instruction.callee.startswith("@"):
            yield from self._passed(instruction)

    def _moved(self, move: Instruction) -> Iterator[Shape]:
        """A pointer that is indexed, counted on, led to its outer struct, or entered as one."""
        base, index, *further = move.operands
        origin = self._origins.of(base)
        constant = int(index) if index.lstrip("-").isdigit() else None
        if (
            move.type.startswith("%struct.")
            and self._untyped(origin)
            and (struct := self._origins.fields.struct(move.type))
        ):
            yield Shape("cast", str(origin), move.line, self._metadata.name(struct))
        if further:
            return
        if (
            move.type == "i8"
            and constant is not None
            and constant <= 0
            and (member := self._around(move, -constant))
        ):
            yield from self._contained(move, origin, member)
        elif origin.kind in _OUTSIDE and not origin.address and constant != 0:
            if self._element(move, origin, constant):
                yield Shape(
                    "index",
                    str(origin),
                    move.line,
                    bound(move, self._expressions, self._origins, self._uses),
                )
            else:
                yield Shape(
                    "arithmetic", str(origin), move.line, self._expressions.of(index).text()
                )

    def _element(self, move: Instruction, origin: Origin, constant: int | None) -> bool:
        """Whether a moved pointer is an element of an array, not the pointer itself moving on."""
        if (constant is not None and constant < 0) or (move.type == "i8" and not origin.type):
            return False
        users = self._uses.of(move.result)
        if move.type == "i8":  # readl(base + register) is no array of bytes
            return any(
                user.opcode == "load"
                or (user.opcode == "store" and user.operands[1] == move.result)
                for user in users
            )
        source = self._origins.definitions.get(move.operands[0])
        return not any(
            user.opcode == "store" and source and user.operands[1] == source.operands[0]
            for user in users
        )

    def _around(self, move: Instruction, offset: int) -> str:
        """The member, at an offset in bytes of the struct around, that a pointer is the address of.

        "" without a struct.
        """
        for user, name in self._uses.final(move.result):
            struct = 0
            if user.opcode == "store" and user.operands[0] == name:
                struct = self._metadata.composite(
                    self._metadata.pointee(self._origins.of(user.operands[1]).type)
                )
            elif (
                user.opcode == "getelementptr"
                and user.operands[0] == name
                and user.type.startswith("%struct.")
            ):
                struct = self._origins.fields.struct(user.type)
            if struct:
                steps = self._origins.fields.at(struct, offset * 8)
                return next((step.name for step in steps if step.name), "")
        return ""

    def _contained(self, move: Instruction, origin: Origin, member: str) -> Iterator[Shape]:
        if origin.kind == "field" and origin.name in _LINKS and not origin.address:
            head = origin.base
            pointer = f"field {head.name}" if head and head.kind == "field" else str(head or "")
            if pointer and pointer != f"field {member}":  # else it is the step to the next element
                yield Shape("list", pointer, move.line, member)
        elif origin.kind in _OUTSIDE and str(origin) != f"field {member}":
            yield Shape("container", str(origin), move.line, member)

    def _assigned(self, store: Instruction) -> Iterator[Shape]:
        """A pointer to no type that is put in a variable of a struct's type."""
        stored, place = store.operands
        if (
            place not in self._uses.slots
            or not store.type.startswith("ptr")
            or (variable := self._body.variables.get(place)) is None
        ):
            return
        struct = self._metadata.composite(self._metadata.pointee(variable.type))
        if (
            struct
            and self._untyped(origin := self._origins.of(stored))
            and not self._computed(stored)
        ):
            yield Shape("cast", str(origin), store.line, self._metadata.name(struct))

    def _computed(self, value: str, depth: int = 0) -> bool:
        """Whether a pointer was moved on its way from where it came from.

        container_of, then, and no cast.
        """
        definition = self._origins.definitions.get(value)
        if definition is None or depth > 16:
            return False
        if definition.opcode in ("phi", "select"):
            return any(self._computed(operand, depth + 1) for operand in definition.operands)
        stores = self._uses.stores(definition.operands[0]) if definition.opcode == "load" else []
        return definition.opcode == "getelementptr" or (
            len(stores) == 1 and self._computed(stores[0].operands[0], depth + 1)
        )

    def _untyped(self, origin: Origin) -> bool:
        """Whether a value is a pointer to void, or a number."""
        if origin.kind not in _OUTSIDE or origin.address or origin.type:
            return False
        return origin.kind != "call" or self._void(origin.name)

    def _void(self, callee: str) -> bool:
        """Whether a function is known to return void*.

        Of one that is only declared, nothing is known.
        """
        body = self._module.functions.get(callee)
        if body is None:
            return False
        types = self._metadata.elements(
            self._metadata.reference(
                self._metadata.reference(body.attached("dbg"), "type"), "types"
            )
        )
        result = self._metadata.strip(types[0]) if types else 0
        return self._metadata.tag(result) == "pointer" and not self._metadata.reference(
            result, "baseType"
        )

    def _passed(self, call: Instruction) -> Iterator[Shape]:
        """A pointer that is passed to a function that tells what it is."""
        callee = plain(call.callee[1:])
        table = _table()
        for what in ("strings", "user"):
            for place in table[what].get(callee.lstrip("_"), ()):
                yield from self._shown("string" if what == "strings" else "user", call, place)
        if callee in table["formats"]:
            for place in self._texts(call, table["formats"][callee]):
                yield from self._shown("string", call, place)

    def _shown(
        self, what: Literal["string", "user"], call: Instruction, place: int
    ) -> Iterator[Shape]:
        if place < len(call.arguments):
            origin = self._origins.of(call.arguments[place])
            if origin.kind in _OUTSIDE and not origin.address:
                yield Shape(what, str(origin), call.line, plain(call.callee[1:]).lstrip("_"))

    def _texts(self, call: Instruction, place: int) -> Iterator[int]:
        """The arguments that stand for %s in a format."""
        if place >= len(call.arguments):
            return
        text = self._module.globals.get(plain(call.arguments[place].removeprefix("@")))
        match = _TEXT.search(text.initialiser) if text else None
        place += 1
        for conversion in _CONVERSION.finditer(match[1] if match else ""):
            if conversion[3]:
                place += conversion.group(1, 2).count("*")
                if conversion[3] == "s":
                    yield place
                place += 1
