"""Memory that a function asks for: how much, of what, and where it is kept.

The length of an array that a driver allocates is what a copy of the array needs to know, and the
code that allocates it is the best place to read it:
`kcalloc(adapter->num_queues, sizeof(struct ring))` says both length and element.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache, reduce
from importlib import resources

from ring3_split.ir.instruction import Instruction
from ring3_split.ir.metadata import Metadata
from ring3_split.ir.module import Body, IrModule, plain
from ring3_split.ir.origin import Origins
from ring3_split.model import Allocation
from ring3_split.reader.expressions import Expressions, combined
from ring3_split.reader.uses import Uses


@dataclass(frozen=True, slots=True)
class Allocator:
    """A function that gives memory."""

    api: str
    size: tuple[int, ...]  # arguments whose product is the size
    private: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Table:
    """allocations.toml, read."""

    allocators: dict[str, Allocator]
    arithmetic: dict[str, str]
    prefixes: tuple[str, ...]
    suffixes: tuple[str, ...]

    def find(self, symbol: str) -> Allocator | None:
        """The allocator that a symbol is a name of."""
        for prefix in ("", *self.prefixes):
            name = symbol.removeprefix(prefix)
            while name not in self.allocators:
                shorter = next(
                    (
                        name.removesuffix(suffix)
                        for suffix in self.suffixes
                        if name.endswith(suffix)
                    ),
                    name,
                )
                if shorter == name:
                    break
                name = shorter
            if name in self.allocators:
                return self.allocators[name]
        return None


@cache
def table() -> Table:
    """The table, read once."""
    data = tomllib.loads(
        resources.files(__package__).joinpath("allocations.toml").read_text(encoding="utf-8")
    )
    allocators = {
        name: Allocator(name, tuple(row["size"]), row.get("private", ""), row.get("unit", ""))
        for name, row in data["allocators"].items()
    }
    return Table(allocators, data["arithmetic"], tuple(data["prefixes"]), tuple(data["suffixes"]))


def allocations(
    module: IrModule, body: Body, origins: Origins, uses: Uses
) -> tuple[Allocation, ...]:
    """The memory that a function asks for, in the order of its code."""
    known = {
        callee: allocator
        for callee in body.callees
        if "alloc" in callee or "_" in callee
        if (allocator := table().find(callee))
    }
    if not known:
        return ()
    reading = _Reading(module, body, origins, uses)
    return tuple(
        reading.allocation(call, known[plain(call.callee[1:])])
        for call in body.instructions
        if call.opcode == "call" and plain(call.callee[1:]) in known
    )


def _array(size: int, sizes: dict[int, str]) -> str:
    """A constant size, as a number of elements where it is a multiple of theirs."""
    for one, text in sizes.items():
        if one > 1 and size % one == 0:
            return text if size == one else f"{size // one} * {text}"
    return str(size)


class _Reading:
    def __init__(self, module: IrModule, body: Body, origins: Origins, uses: Uses) -> None:
        self._metadata: Metadata = module.metadata
        self._body = body
        self._origins = origins
        self._uses = uses
        self._expressions = Expressions(body, origins, uses, table().arithmetic)

    def allocation(self, call: Instruction, allocator: Allocator) -> Allocation:
        struct, into = self._kept(call)
        counted = self._private(allocator.private) if allocator.private else struct
        size = self._size(call, allocator, counted)
        return Allocation(
            allocator.api, call.line, size, self._metadata.name(struct) if struct else "", into
        )

    def _size(self, call: Instruction, allocator: Allocator, struct: int) -> str:
        factors = [
            self._expressions.of(call.arguments[place])
            for place in allocator.size
            if place < len(call.arguments)
        ]
        if not factors:
            return ""
        sizes = self._sizes(struct)
        product = reduce(lambda left, right: combined("*", left, right), factors)
        text = _array(product.number, sizes) if product.number is not None else product.text(sizes)
        return f"{text} {allocator.unit}" if allocator.unit else text

    def _sizes(self, struct: int) -> dict[int, str]:
        """The numbers that are sizes of a struct, or of elements of the array that ends it."""
        if not struct:
            return {}
        sizes = {self._metadata.size(struct) // 8: f"sizeof(struct {self._metadata.name(struct)})"}
        members = self._metadata.members(struct)
        if (
            members
            and not members[-1].size
            and (inner := self._metadata.composite(self._metadata.element(members[-1].type)))
        ):
            sizes.setdefault(
                self._metadata.size(inner) // 8, f"sizeof(struct {self._metadata.name(inner)})"
            )
        return sizes

    def _kept(self, call: Instruction) -> tuple[int, str]:
        """The struct that a result is used as (metadata id, 0 if none), and the receiving place."""
        struct, into, local = 0, "", ""
        for user, value in self._uses.final(call.result):
            if user.opcode == "ret":
                into = into or "return"
            elif user.opcode == "getelementptr" and user.type.startswith("%"):
                struct = struct or self._origins.fields.struct(user.type)
            elif user.opcode == "store" and user.operands[0] == value:
                place = self._origins.of(user.operands[1])
                struct = struct or self._metadata.composite(self._metadata.pointee(place.type))
                if user.operands[1] in self._uses.slots:
                    local = str(place)
                else:
                    into = into or str(place)
        return struct, into or local

    def _private(self, accessor: str) -> int:
        """The struct that the driver's part of an object is used as in this function."""
        for call in self._body.instructions:
            if call.callee == f"@{accessor}" and (struct := self._kept(call)[0]):
                return struct
        return 0
