"""Where a value came from.

Followed backwards through -O0 code, without regard to the order of statements.

A local variable of -O0 code is memory: what was ever stored to it, it may hold. Casts, and indices
into an array, do not change where a value came from.
"""

from __future__ import annotations

import re
from functools import cached_property

from msgspec.structs import replace

from ring3_split.ir.bits import loaded_bits, rewritten, stored_bits
from ring3_split.ir.fields import Fields, Step
from ring3_split.ir.instruction import Instruction, value
from ring3_split.ir.module import Body, IrModule, plain
from ring3_split.ir.place import UNKNOWN, Origin
from ring3_split.ir.types import closing, split

__all__ = ["UNKNOWN", "Origin", "Origins"]

_MANY = 8  # a value that may be from more places than this is from nowhere in particular
_DEEP = 120  # longest way that is followed, in steps; each is a few Python frames
_CASTS = frozenset(
    (
        "trunc",
        "zext",
        "sext",
        "ptrtoint",
        "inttoptr",
        "bitcast",
        "addrspacecast",
        "freeze",
        "extractvalue",
    )
)
_GLOBAL = re.compile(r'@(?:[\w.$-]+|"[^"]*")')
_EXPRESSION = re.compile(r"(getelementptr|[a-z]+)[a-z ]*(?:inrange\([^)]*\) )?\(")


_LOOP = Origin("unknown", "loop")  # a value that is on the way to itself: adds nothing new


class Origins:
    """The origins of the values of one function."""

    def __init__(self, module: IrModule, body: Body) -> None:
        self.fields = Fields.of(module)
        self._module = module
        self._metadata = module.metadata
        self._body = body
        self.definitions: dict[str, Instruction] = {}
        self._stores: dict[str, list[str]] = {}
        self._filled: dict[str, str] = {}  # variable whose address is passed -> callee
        self._known: dict[str, tuple[Origin, ...]] = {}
        self._copies: dict[str, str] = {}  # results of loads from local variables
        self._held: dict[str, tuple[Origin, ...]] = {}
        self._depth = 0
        self._slots = set(body.variables)
        self._index()

    @classmethod
    def within(cls, module: IrModule, body: Body) -> Origins:
        """The origins of a function of a module, which are made once."""
        key = f"origins {body.name}"
        known = module.kept.get(key)
        if not isinstance(known, cls):
            known = module.kept[key] = cls(module, body)
        return known

    def _index(self) -> None:
        slots = self._slots
        for instruction in self._body.instructions:
            opcode = instruction.opcode
            if instruction.result:
                self.definitions[instruction.result] = instruction
                if opcode == "alloca":
                    slots.add(instruction.result)
                elif opcode == "load" and instruction.operands[0] in slots:
                    self._copies[instruction.result] = instruction.operands[0]
            if opcode == "store":
                stored, pointer = instruction.operands
                if pointer in slots:
                    self._stores.setdefault(pointer, []).append(stored)
            for argument in instruction.arguments:
                if argument in slots:
                    self._filled.setdefault(argument, instruction.callee)
        arguments = {
            slot: variable
            for slot, variable in self._body.variables.items()
            if variable.argument >= 0
        }
        self._parameters = {
            stored: one
            for slot, one in arguments.items()
            for stored in self._stores.get(slot, [slot])[:1]
        }

    def of(self, text: str) -> Origin:
        """The one place that a value came from.

        Kind "unknown" when it may be from several that differ.

        The null pointer and what is not known are left out as long as something else is there.
        """
        found = self.every(text)
        if len(found) == 1:
            return found[0]
        telling = [origin for origin in found if origin.kind not in ("constant", "unknown")]
        if len(telling) == 1:
            return telling[0]
        if telling and len({(o.kind, o.name, o.index, o.address) for o in telling}) == 1:
            return (
                telling[0]
                if len({o.base for o in telling}) == 1
                else replace(telling[0], base=None)
            )
        return next(iter(found), UNKNOWN) if not telling else UNKNOWN

    def every(self, text: str) -> tuple[Origin, ...]:
        """All places that a value may have come from."""
        known = self._known.get(text)
        if known is not None:
            return known
        slot = self._copies.get(text)
        if slot is not None and (known := self._contents(slot)):  # nearly all, and quickly
            self._known[text] = known
            return known
        if self._depth > _DEEP:
            return (UNKNOWN,)
        self._known[text] = (_LOOP,)
        self._depth += 1
        found = tuple(dict.fromkeys(self._find(text)))
        self._depth -= 1
        self._known[text] = found = found if len(found) <= _MANY else (UNKNOWN,)
        return found

    def _find(self, text: str) -> tuple[Origin, ...]:
        if not text.startswith("%"):
            return self._constant(text)
        if text in self._slots:
            return (self._slot(text),)
        instruction = self.definitions.get(text)
        return self._computed(instruction) if instruction else (self._parameter(text),)

    def _computed(self, instruction: Instruction) -> tuple[Origin, ...]:
        """The origins of what an instruction gives."""
        found: tuple[Origin, ...] = (UNKNOWN,)
        operands = instruction.operands
        match instruction.opcode:
            case "load":
                found = self._load(instruction)
            case "getelementptr":
                found = tuple(
                    self._offset(origin, instruction.type, operands[1:], instruction)
                    for origin in self.every(operands[0])
                )
            case "call" | "callbr":
                found = (self._call(instruction),)
            case "phi" | "select":
                values = operands[1:] if instruction.opcode == "select" else operands
                found = tuple(origin for one in values for origin in self.every(one))
            case "add" | "sub" | "and" | "or" | "xor":
                pointer = next(
                    (one for one in operands[:2] if one.startswith(("%", "@"))), operands[0]
                )
                found = tuple(replace(origin, type=0, at=0) for origin in self.every(pointer))
            case cast if cast in _CASTS:
                found = self.every(operands[0])
        return found

    def _slot(self, text: str) -> Origin:
        variable = self._body.variables.get(text)
        if variable and variable.argument >= 0:
            return Origin(
                "param", variable.name, index=variable.argument, address=True, type=variable.type
            )
        return Origin(
            "local",
            variable.name if variable else text,
            address=True,
            type=variable.type if variable else 0,
        )

    def _parameter(self, text: str) -> Origin:
        variable = self._parameters.get(text)
        if variable:
            return Origin(
                "param",
                variable.name,
                index=variable.argument,
                type=self._metadata.pointee(variable.type),
            )
        names = self._body.parameters
        return Origin("param", text, index=names.index(text)) if text in names else UNKNOWN

    def _load(self, instruction: Instruction) -> tuple[Origin, ...]:
        return tuple(
            self._loaded(origin, instruction) for origin in self.every(instruction.operands[0])
        )

    def _contents(self, slot: str) -> tuple[Origin, ...]:
        """What a variable may hold, computed once."""
        known = self._held.get(slot)
        if known is None:
            if self._depth > _DEEP:
                return (UNKNOWN,)
            self._held[slot] = (_LOOP,)
            self._depth += 1
            known = self._held[slot] = self._assigned(slot)
            self._depth -= 1
        return known

    def _assigned(self, slot: str) -> tuple[Origin, ...]:
        """What is ever stored to a variable.

        Its declared type tells what a pointer in it points to.
        """
        stores: dict[Origin, None] = {}
        for stored in self._stores.get(slot, ()):
            stores.update(dict.fromkeys(self.every(stored)))
            if len(stores) > _MANY:
                return (UNKNOWN,)
        found = tuple(origin for origin in stores if origin != _LOOP) or tuple(stores)
        if slot in self._filled and all(origin.kind in ("constant", "unknown") for origin in found):
            found = (*found, Origin("call", plain(self._filled[slot].removeprefix("@"))))
        variable = self._body.variables.get(slot)
        pointee = self._metadata.pointee(variable.type) if variable else 0
        if not self._metadata.composite(pointee):
            return found
        return tuple(
            one if self._inside(one.type, pointee) else replace(one, type=pointee, at=0)
            for one in found
        )

    def _inside(self, type_: int, pointee: int) -> bool:
        """Whether a pointer still means the type that it is declared to."""
        return self._metadata.composite(type_) == self._metadata.composite(pointee)

    def _loaded(self, origin: Origin, instruction: Instruction) -> Origin:
        """What is loaded through a pointer."""
        if not origin.address:
            field = self.leaf(origin, instruction)
            if field is None:
                return Origin("unknown", base=origin, type=self._metadata.pointee(origin.type))
            origin = field
        elif (field := self.leaf(origin, instruction)) is not None:
            origin = field
        return replace(
            origin,
            address=False,
            type=self._metadata.pointee(self._metadata.element(origin.type)),
            at=0,
        )

    def _call(self, instruction: Instruction) -> Origin:
        callee = instruction.callee
        if callee.startswith("@"):
            return Origin("call", plain(callee[1:]))
        if callee.startswith("%"):
            return Origin("call", self.of(callee).name)
        return UNKNOWN

    def _constant(self, text: str) -> tuple[Origin, ...]:
        """A constant, a global, or a constant expression on one."""
        if text.startswith("@"):
            return (self._global(plain(text[1:])),)
        match = _EXPRESSION.match(text)
        if match is None:
            found = _GLOBAL.search(text)
            return (self._global(plain(found[0][1:])),) if found else (Origin("constant", text),)
        inner = text[match.end() : closing(text, match.end() - 1)]
        if match[1] != "getelementptr":
            return self.every(value(split(inner)[0].partition(" to ")[0]))
        type_, base, *indices = split(inner)
        return tuple(
            self._offset(origin, type_, [value(index) for index in indices])
            for origin in self.every(value(base))
        )

    def _global(self, name: str) -> Origin:
        variable = self._module.globals.get(name)
        type_ = self._metadata.variable_type(variable.dbg) if variable and variable.dbg >= 0 else 0
        return Origin("global", name, address=True, type=type_)

    def _offset(
        self, origin: Origin, type_: str, indices: list[str], instruction: Instruction | None = None
    ) -> Origin:
        """A pointer that was moved by getelementptr."""
        if type_ == "i8" and len(indices) == 1:
            return self._bytes(origin, indices[0])
        for index in indices[1:]:
            if type_.startswith("["):
                if node := self._metadata.composite(origin.type):  # of a union: an array in it
                    ways = self.fields.unions.array(node, type_, lambda: self._spelled(instruction))
                    origin = self.walk(origin, ways)
                array = self._metadata.strip(origin.type)
                if self._metadata.tag(array) == "array":
                    origin = replace(origin, type=self._metadata.reference(array, "baseType"))
                type_ = self._module.types.element(type_)
            elif type_.startswith(("%", "{", "<{")):
                steps = self.fields.steps(type_, int(index), origin.type)
                origin = self.walk(origin, steps) if steps else replace(origin, type=0)
                elements = self._module.types.elements(type_)
                type_ = elements[int(index)] if int(index) < len(elements) else ""
        return origin

    def _bytes(self, origin: Origin, index: str) -> Origin:
        """A pointer that was moved by bytes.

        Inside a string, or from a member to the struct around it.
        """
        if self._metadata.size(origin.type) == 8 and not self._metadata.composite(origin.type):
            return origin
        if index.startswith("-") and origin.address and origin.base:
            return replace(origin.object, type=0, at=0)
        global_type = origin.kind == "global" and origin.address and index.isdigit()
        steps = self.fields.at(origin.type, int(index) * 8) if global_type else ()
        return self.walk(origin, steps) if steps else replace(origin, type=0, at=0)

    def walk(self, origin: Origin, steps: tuple[Step, ...]) -> Origin:
        """The address of a member, from the address of a struct."""
        for step in steps:
            if step.name:
                origin = Origin(
                    "field", step.name, origin, address=True, type=step.type, at=step.at
                )
            else:
                origin = replace(origin, type=step.type, at=step.at)
        return origin

    def is_slot(self, text: str) -> bool:
        """Whether a value is the address of a local variable or of a parameter's copy."""
        return text in self._slots

    def member(self, origin: Origin, address: str) -> Origin:
        """The member of a union whose address a value is, as far as it can be told."""
        node = self._metadata.composite(origin.type)
        if (
            not node
            or self._metadata.tag(node) != "union"
            or not (origin.address or self._metadata.unnamed_part(node))
        ):
            return origin
        definition = self.definitions.get(address)
        return self.walk(
            origin, self.fields.unions.addressed(node, lambda: self._spelled(definition))
        )

    def part_of_store(self, load: Instruction) -> bool:
        """Whether a load only fetches the neighbours of a bit field that is then stored."""
        return load.result in self._rewritten

    @cached_property
    def _rewritten(self) -> set[str]:
        return rewritten(self._body.instructions, self.definitions)

    def leaf(self, origin: Origin, instruction: Instruction) -> Origin | None:
        """The field that a load or store through `origin` touches.

        Decides between members of a union and bit fields.

        None when it is no field.
        """
        metadata = self._metadata
        width = self._module.types.size(instruction.type) * 8
        for _ in range(16):
            node = metadata.composite(origin.type)
            if not node:
                break
            if metadata.tag(node) == "union":
                pointer = instruction.type.startswith("ptr")
                steps = self.fields.unions.accessed(
                    node, width, pointer, lambda: self._words(instruction)
                )
            elif any(member.bitfield for member in metadata.members(node)):
                start, count = self._bits(instruction, width)
                if self._module.types.big_endian:  # the first bit of a unit is its highest
                    start = width - start - count
                step = self.fields.bits(node, origin.at + start, count)
                steps = (step,) if step else ()
            elif (
                origin.object.kind == "global"
            ):  # the address of the first member is that of the variable
                steps = self.fields.at(node, origin.at)
            else:
                steps = ()
            if not steps:
                break
            origin = self.walk(origin, steps)
        return origin if origin.kind == "field" and origin.address else None

    def _words(self, instruction: Instruction) -> set[str]:
        """The names in the source at a load or store, and at the address that it uses."""
        address = self.definitions.get(
            instruction.operands[-1 if instruction.opcode == "store" else 0]
        )
        places = (instruction, address) if address else (instruction,)
        return {word for place in places for word in self._spelled(place)}

    def _spelled(self, instruction: Instruction | None) -> set[str]:
        return set(self._module.spelled(instruction)) if instruction else set()

    def _bits(self, instruction: Instruction, width: int) -> tuple[int, int]:
        """First bit and number of bits of a storage unit that a load or store means."""
        if instruction.opcode == "store":
            return stored_bits(instruction, self.definitions, width)
        return loaded_bits(
            instruction,
            self._body.instructions[instruction.index + 1 : instruction.index + 9],
            width,
        )
