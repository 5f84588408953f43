"""What a number is computed from: constants, fields, parameters, as C would write it."""

from __future__ import annotations

from dataclasses import dataclass

from ring3_split.ir.instruction import Instruction
from ring3_split.ir.module import Body, plain
from ring3_split.ir.origin import Origins
from ring3_split.reader.uses import Uses

_CASTS = ("zext", "sext", "trunc", "bitcast", "ptrtoint", "inttoptr", "freeze")
_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "shl": "<<",
    "lshr": ">>",
    "ashr": ">>",
    "and": "&",
    "or": "|",
}
_OPERATORS |= {"udiv": "/", "sdiv": "/", "urem": "%", "srem": "%", "xor": "^"}
_BINDING = {"*": 5, "/": 5, "%": 5, "+": 4, "-": 4, "<<": 3, ">>": 3, "&": 2, "^": 1, "|": 0}
_DEEP = 24


@dataclass(frozen=True, slots=True)
class Expression:
    """A number, a name, or an operation on two expressions."""

    operator: str = ""
    left: Expression | None = None
    right: Expression | None = None
    name: str = ""
    number: int | None = None

    def text(self, sizes: dict[int, str] | None = None, place: str = "") -> str:
        """The expression as C.

        A number that is one of `sizes` is shown so in place of a size: alone, in sums, products.
        """
        if self.number is not None:
            return (
                (sizes or {}).get(self.number, str(self.number))
                if place in ("", "+", "*")
                else str(self.number)
            )
        if self.left is None or self.right is None:
            return self.name or "?"
        parts = []
        for side, part in ((0, self.left), (1, self.right)):
            inner = part.text(sizes, self.operator)
            loose = part.operator and _BINDING[part.operator] < _BINDING[self.operator] + side
            parts.append(f"({inner})" if loose else inner)
        return f" {self.operator} ".join(parts)


UNKNOWN = Expression(name="?")


def number(value: int) -> Expression:
    """A constant."""
    return Expression(number=value)


def combined(operator: str, left: Expression, right: Expression) -> Expression:
    """An operation on two expressions, done at once where both are known."""
    if right.number is not None and left.number is not None and operator in ("+", "-", "*", "<<"):
        one, other = left.number, right.number
        return number(
            {
                "+": one + other,
                "-": one - other,
                "*": one * other,
                "<<": one << max(0, min(other, 63)),
            }[operator]
        )
    if operator == "*" and 1 in (left.number, right.number):
        return right if left.number == 1 else left
    if operator in ("+", "-", "<<") and right.number == 0:
        return left
    if operator == "*" and left.number is not None:
        left, right = right, left
    return Expression(operator, left, right)


class Expressions:
    """The expressions of one function."""

    def __init__(
        self, body: Body, origins: Origins, uses: Uses, arithmetic: dict[str, str]
    ) -> None:
        self._body = body
        self._origins = origins
        self._uses = uses
        self._arithmetic = arithmetic  # inline functions that are operators
        self._block = {
            each.index: block.label for block in body.blocks.values() for each in block.instructions
        }

    def of(self, value: str, depth: int = 0) -> Expression:
        """What a value is computed from."""
        definition = self._origins.definitions.get(value)
        if value.lstrip("-").isdigit():
            result = number(int(value))
        elif depth > _DEEP or definition is None:
            result = self._leaf(value)
        elif definition.opcode in _CASTS:
            result = self.of(definition.operands[0], depth + 1)
        elif definition.opcode in _OPERATORS:
            left, right = (self.of(operand, depth + 1) for operand in definition.operands[:2])
            result = combined(_OPERATORS[definition.opcode], left, right)
        elif definition.opcode == "load" and definition.operands[0] in self._uses.slots:
            result = self._variable(definition, depth)
        elif definition.opcode == "call":
            result = self._call(definition, depth)
        else:
            result = self._leaf(value)
        return result

    def _call(self, call: Instruction, depth: int) -> Expression:
        callee = plain(call.callee[1:])
        if callee.startswith("llvm.expect"):
            return self.of(call.arguments[0], depth + 1)
        if callee in self._arithmetic:
            result, *rest = (self.of(argument, depth + 1) for argument in call.arguments)
            for each in rest:
                result = combined(self._arithmetic[callee], result, each)
            return result
        return Expression(name=f"{callee}()") if call.callee.startswith("@") else UNKNOWN

    def _variable(self, load: Instruction, depth: int) -> Expression:
        """A local variable: what was stored to it, if it can only be one thing."""
        slot = load.operands[0]
        stores = self._uses.stores(slot)
        before = [store for store in stores if store.index < load.index]
        near = bool(before) and self._block[before[-1].index] == self._block[load.index]
        if before and (near or len(stores) == 1):
            return self.of(before[-1].operands[0], depth + 1)
        variable = self._body.variables.get(slot)
        if variable is None:
            return UNKNOWN
        return Expression(
            name=f"param {variable.argument}"
            if variable.argument >= 0
            else f"local {variable.name}"
        )

    def _leaf(self, value: str) -> Expression:
        origin = self._origins.of(value)
        if origin.kind == "field" and not origin.address:
            return Expression(name=origin.name)
        return Expression(name=str(origin) or "?")
