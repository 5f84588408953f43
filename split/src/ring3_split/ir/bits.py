"""Which bits of a storage unit a bit-field access means, by the shifts and masks around it."""

from __future__ import annotations

from ring3_split.ir.instruction import Instruction

_SHAPES = frozenset(("lshr", "ashr", "shl", "and"))


def loaded_bits(load: Instruction, following: list[Instruction], width: int) -> tuple[int, int]:
    """First bit and number of bits used of a unit of `width` bits, by the code after its load."""
    name = load.result
    shift = left = 0
    for instruction in following:
        if instruction.opcode not in _SHAPES or instruction.operands[0] != name:
            continue
        amount = _number(instruction.operands[1])
        if amount is None:
            break
        if instruction.opcode == "and":
            return shift, max((amount & (1 << width) - 1).bit_length(), 1)
        if instruction.opcode == "ashr":
            return amount - left, width - amount
        if instruction.opcode == "shl":
            left = amount
        else:
            shift = amount
        name = instruction.result
    return shift, width - shift


def stored_bits(
    store: Instruction, definitions: dict[str, Instruction], width: int
) -> tuple[int, int]:
    """First bit and number of bits that a store of a storage unit of `width` bits changes."""
    kept = _kept(store, definitions)
    mask = _number(kept.operands[1]) if kept else None
    if mask is None:
        return 0, width
    cleared = ~mask & (1 << width) - 1
    low = max((cleared & -cleared).bit_length() - 1, 0)
    return low, max((cleared >> low).bit_length(), 1)


def rewritten(instructions: list[Instruction], definitions: dict[str, Instruction]) -> set[str]:
    """Results of the loads that only fetch the neighbours of a bit field that is then stored."""
    found = set()
    for store in instructions:
        kept = _kept(store, definitions) if store.opcode == "store" else None
        load = definitions.get(kept.operands[0]) if kept else None
        if load and load.opcode == "load" and load.operands[0] == store.operands[1]:
            found.add(load.result)
    return found


def _kept(store: Instruction, definitions: dict[str, Instruction]) -> Instruction | None:
    """The instruction that keeps the other bits of the unit that is stored."""
    value = definitions.get(store.operands[0])
    if value and value.opcode == "or":
        value = definitions.get(value.operands[0])
    return value if value and value.opcode == "and" else None


def _number(text: str) -> int | None:
    return int(text) if text.lstrip("-").isdigit() else None
