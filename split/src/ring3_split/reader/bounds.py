"""How far an index goes: what it is compared with."""

from __future__ import annotations

from collections.abc import Iterator

from ring3_split.ir.instruction import Instruction
from ring3_split.ir.origin import Origins
from ring3_split.reader.expressions import Expressions
from ring3_split.reader.uses import Uses

_CASTS = ("zext", "sext", "trunc", "freeze")
_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
# `i < n` and, of a loop that leaves at `i >= n`, its opposite; `++i == n` is how a ring's index turns round.
_SHOWN = {"lt": "<", "ge": "<", "le": "<=", "gt": "<=", "eq": "<", "ne": "<"}
_ORDER = ("lt", "ge", "le", "gt", "ne", "eq")


def bound(index: str, expressions: Expressions, origins: Origins, uses: Uses) -> str:
    """ "< X" when the index is a variable that the function compares with X, else the expression that the index is."""
    value = index
    while (definition := origins.definitions.get(value)) and definition.opcode in _CASTS:
        value = definition.operands[0]
    if definition is None or definition.opcode != "load" or definition.operands[0] not in uses.slots:
        return expressions.of(index).text()
    slot = definition.operands[0]
    found = {}
    for comparison, name in _comparisons(slot, uses):
        predicate = comparison.text.partition("icmp ")[2].split()[0].lstrip("us") or "ne"
        predicate = "sge" if predicate == "ge" else predicate
        left, right = comparison.operands[:2]
        other = right if left == name else left
        kind = predicate[-2:] if left == name else _SWAPPED.get(predicate[-2:], predicate[-2:])
        limit = expressions.of(other)
        if (limit.number is None or limit.number > 0) and "?" not in limit.text():
            found.setdefault(kind, limit.text())
    for kind in _ORDER:
        if kind in found:
            return f"{_SHOWN[kind]} {found[kind]}"
    return _start(slot, expressions, uses) or expressions.of(index).text()


def _comparisons(slot: str, uses: Uses) -> Iterator[tuple[Instruction, str]]:
    """The comparisons of a variable, or of what is just stored to it, each with the operand that is the variable."""
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
