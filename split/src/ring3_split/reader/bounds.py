"""How far an index goes: what it is compared with."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ring3_split.ir.instruction import Instruction
from ring3_split.ir.origin import Origins
from ring3_split.reader.expressions import Expressions
from ring3_split.reader.uses import Uses

_CASTS = ("zext", "sext", "trunc", "freeze")
_PREDICATE = re.compile(r"icmp (?:samesign )?(\w+)")
_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
# `i < n`, of a loop that leaves at `i >= n` the opposite, and `i == n` where it ends.
_SHOWN = {"lt": "<", "ge": "<", "le": "<=", "gt": "<=", "eq": "<", "ne": "<"}


def bound(
    move: Instruction, expressions: Expressions, origins: Origins, uses: Uses, index: str = ""
) -> str:
    """An index's bound as "< X", if it is a variable that the function compares with X.

    Else it is the index itself.

    The index is the first that the instruction has, or the one that is named.

    A variable that counts in one loop after the other is compared in each: the comparison that
    counts is the first behind the place where the variable was last set anew. A limit that is a
    local variable tells less than one that is a field, and being equal to something less than being
    below it, unless it was just stepped: `++i == n` is how a ring turns round.
    """
    index = value = index or move.operands[1]
    while (definition := origins.definitions.get(value)) and definition.opcode in _CASTS:
        value = definition.operands[0]
    if (
        definition is None
        or definition.opcode != "load"
        or definition.operands[0] not in uses.slots
    ):
        return expressions.of(index).text()
    slot = definition.operands[0]
    begin = max(
        (store.index for store in _fresh(slot, origins, uses) if store.index < move.index),
        default=0,
    )
    stepped = {store.operands[0] for store in uses.stores(slot)}
    found: list[tuple[bool, bool, bool, int, str]] = []
    for comparison, name in _comparisons(slot, uses):
        left, right = comparison.operands[:2]
        kind = _PREDICATE.findall(comparison.text)[0][-2:]
        limit = expressions.of(right if left == name else left)
        if (limit.number is None or limit.number > 0) and "?" not in limit.text():
            shown = f"{_SHOWN[kind if left == name else _SWAPPED.get(kind, kind)]} {limit.text()}"
            weak = kind in ("eq", "ne") and name not in stepped
            found.append(
                ("local " in limit.text(), weak, comparison.index < begin, comparison.index, shown)
            )
    return (
        min(found)[-1] if found else _start(slot, expressions, uses) or expressions.of(index).text()
    )


def _fresh(slot: str, origins: Origins, uses: Uses) -> Iterator[Instruction]:
    """The stores that give a variable a value that is not made from its own."""
    own = {user.result for user in uses.of(slot) if user.opcode == "load"}
    for store in uses.stores(slot):
        definition = origins.definitions.get(store.operands[0])
        if definition is None or not own.intersection(definition.operands):
            yield store


def _comparisons(slot: str, uses: Uses) -> Iterator[tuple[Instruction, str]]:
    """The comparisons of a variable, or of a value just stored to it, with its operand each."""
    waiting = [user.result for user in uses.of(slot) if user.opcode == "load"]
    waiting += [store.operands[0] for store in uses.stores(slot)]
    for name in waiting:
        for user in uses.of(name):
            if user.opcode == "icmp":
                yield user, name
            elif user.opcode in _CASTS:
                waiting.append(user.result)


def _start(slot: str, expressions: Expressions, uses: Uses) -> str:
    """The field or parameter that a variable begins with."""
    for store in uses.stores(slot):
        text = expressions.of(store.operands[0]).text()
        if "." in text and " " not in text:
            return text
    return ""
