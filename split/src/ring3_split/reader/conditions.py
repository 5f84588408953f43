"""Which way a branch can go, given the way that was come by.

`if (lock) spin_lock(lock); ...; if (lock) spin_unlock(lock);` takes a lock on one path and gives it
back on the same path, but a dataflow that forgets conditions sees it held at the end. So each path
carries facts about the few values that decide branches: local variables whose address is not taken,
results of calls, phi nodes. A fact is an exact number or the signs that a value may have, which is
all that tests for errors, flags and null need.

Fields and globals have names that begin with a star. What was seen of one may be different the next
time; flow.py says when it is believed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ring3_split.ir.instruction import Instruction
from ring3_split.ir.module import Body

Fact = int | frozenset[int]  # an exact value, or some of the signs -1, 0, 1
ANY = frozenset((-1, 0, 1))

_ICMP = re.compile(r"icmp (?:samesign )?(\w+) \S+ ([^,]+), ([^,\s]+)")
_LITERALS = {"true": 1, "false": 0, "null": 0, "zeroinitializer": 0}
_OPPOSITE = {"eq": "ne", "ne": "eq", "slt": "sge", "sge": "slt", "sgt": "sle", "sle": "sgt"}
_OPPOSITE |= {"ult": "uge", "uge": "ult", "ugt": "ule", "ule": "ugt"}
_SWAPPED = {
    "slt": "sgt",
    "sgt": "slt",
    "sle": "sge",
    "sge": "sle",
    "ult": "ugt",
    "ugt": "ult",
    "ule": "uge",
    "uge": "ule",
}
_DEPTH = 20  # of nested expressions; more is not what a test for an error looks like
_KEYS = ("@arch_static_branch", "@static_key_")
_COPIES = ("zext", "sext", "trunc", "freeze", "bitcast")


@dataclass(frozen=True, slots=True)
class Test:
    """A comparison of a value that is tracked with a constant."""

    root: str
    predicate: str
    constant: int

    def inverted(self) -> Test:
        """The opposite."""
        return Test(self.root, _OPPOSITE[self.predicate], self.constant)


Facts = dict[str | Test, Fact]
Value = (
    int | str | Test | None
)  # a constant, a tracked value by name, a comparison of one; None is not known


def signs(fact: Fact) -> frozenset[int]:
    """The signs that a fact leaves open."""
    return frozenset(((fact > 0) - (fact < 0),)) if isinstance(fact, int) else fact


def joined(one: Facts, other: Facts) -> Facts:
    """What holds whichever of two ways was taken."""
    result: Facts = {}
    for key, fact in one.items():
        if key in other:
            if other[key] == fact:
                result[key] = fact
            elif (both := signs(fact) | signs(other[key])) != ANY and isinstance(key, str):
                result[key] = both
    return result


def holds(test: Test, facts: Facts) -> bool | None:
    """Whether a comparison is true; None when it is not known."""
    fact = facts.get(test.root)
    if isinstance(fact, int):
        return _compare(fact, test.predicate, test.constant)
    if fact is not None and test.constant == 0:
        answers = {_compare(sign, test.predicate, 0) for sign in fact}
        if len(answers) == 1:
            return answers.pop()
    if test in facts:
        return bool(facts[test])
    inverse = facts.get(test.inverted())
    return None if inverse is None else not inverse


def assume(test: Test, truth: bool, facts: Facts) -> Facts:
    """The facts where a comparison came out so."""
    if not truth:
        return assume(test.inverted(), True, facts)
    result = dict(facts)
    if test.predicate == "eq":
        result[test.root] = test.constant
    elif test.constant == 0 and not test.predicate.startswith("u"):
        before = signs(facts.get(test.root, ANY))
        after = frozenset(sign for sign in before if _compare(sign, test.predicate, 0))
        if after != ANY and not isinstance(facts.get(test.root), int):
            result[test.root] = 0 if after == {0} else after
    else:
        result[test] = 1
    return result


def _compare(left: int, predicate: str, right: int) -> bool:
    if predicate.startswith("u"):
        left, right = left % 2**64, right % 2**64
    order = predicate[-2:]
    return {
        "eq": left == right,
        "ne": left != right,
        "lt": left < right,
        "le": left <= right,
        "gt": left > right,
        "ge": left >= right,
    }[order]


class Conditions:
    """The values of one function that decide its branches."""

    def __init__(self, body: Body, place: Callable[[str], str]) -> None:
        self._place = place  # the name of what a pointer points to, "" when it has none
        self._defined: dict[str, tuple[str, int, Instruction]] = {}
        self._stores: dict[str, list[tuple[str, int]]] = {}
        self._stored: dict[tuple[str, int], str] = {}
        self._slots: set[str] = set()
        self._index(body)

    def _index(self, body: Body) -> None:
        escaped: set[str] = set()
        for label, block in body.blocks.items():
            for place, instruction in enumerate(block.instructions):
                if instruction.result:
                    self._defined[instruction.result] = (label, place, instruction)
                if instruction.opcode == "alloca":
                    self._slots.add(instruction.result)
                elif instruction.opcode == "store":
                    escaped.add(instruction.operands[0])
                    self._stores.setdefault(instruction.operands[1], []).append((label, place))
                    self._stored[label, place] = instruction.operands[0]
                elif instruction.opcode == "call":
                    escaped.update(instruction.arguments)
                elif instruction.opcode != "load":
                    escaped.update(instruction.operands)
        self._slots -= escaped

    def tracked(self, slot: str) -> bool:
        """Whether a local variable changes only where this function stores to it by name."""
        return slot in self._slots

    def value(self, operand: str, label: str, place: int, depth: int = 0) -> Value:
        """What an operand is, where it is used: at a place in a block."""
        literal = _literal(operand)
        if literal is not None:
            return literal
        if operand not in self._defined or depth > _DEPTH:
            return operand if operand.startswith("%") else None
        instruction = self._defined[operand][2]
        inner = instruction.operands[0] if instruction.operands else ""
        if instruction.opcode == "icmp":
            value = self._comparison(instruction, label, place, depth)
        elif instruction.opcode in _COPIES or instruction.callee.startswith("@llvm.expect"):
            value = self.value(inner, label, place, depth + 1)
        elif (
            instruction.opcode == "xor"
            and instruction.type == "i1"
            and instruction.operands[1] == "true"
        ):
            value = _negated(self.value(inner, label, place, depth + 1))
        elif instruction.opcode == "load" and self._current(operand, label, place):
            value = self._key(inner, depth) or inner
        elif instruction.callee.startswith(
            _KEYS
        ):  # a branch that is patched into the code: read like a global
            value = f"*{instruction.callee} {' '.join(instruction.arguments)}"
        elif (
            instruction.opcode == "load"
            and inner not in self._slots
            and "load volatile" not in instruction.text
        ):
            value = self.field(inner) or operand
        else:
            value = operand
        return value

    def _key(self, slot: str, depth: int) -> Value:
        """The patched branch that a variable of a macro has the outcome of.

        None if it is no such variable.
        """
        if len(self._stores.get(slot, ())) != 1:
            return None
        ((label, place),) = self._stores[slot]
        value = self.value(self._stored[label, place], label, place, depth + 1)
        root = value.root if isinstance(value, Test) else value
        return value if isinstance(root, str) and root.startswith("*@") else None

    def field(self, pointer: str) -> str:
        """The name that what a pointer points to is tracked by; "" when it is not."""
        name = self._place(pointer)
        return f"*{name}" if name else ""

    def _comparison(self, instruction: Instruction, label: str, place: int, depth: int) -> Value:
        match = _ICMP.search(instruction.text)
        if not match:
            return instruction.result
        predicate, left, right = match[1], match[2], match[3]
        if _literal(right) is None:
            predicate, left, right = _SWAPPED.get(predicate, predicate), right, left
        constant = _literal(right)
        inner = self.value(left, label, place, depth + 1)
        value: Value = instruction.result
        if constant is None:
            other = self.value(right, label, place, depth + 1)
            if isinstance(inner, str) and isinstance(other, str) and inner[0] == other[0] == "*":
                value = f"*{predicate} {inner} {other}"
        elif isinstance(inner, int):
            value = int(_compare(inner, predicate, constant))
        elif isinstance(inner, str):
            value = Test(inner, predicate, constant)
        elif isinstance(inner, Test) and constant == 0 and predicate in ("eq", "ne"):
            value = inner if predicate == "ne" else inner.inverted()
        return value

    def _current(self, load: str, label: str, place: int) -> bool:
        """Whether a variable still has, at a place, the value that was loaded from it."""
        home, at, instruction = self._defined[load]
        slot = instruction.operands[0]
        if slot not in self._slots:
            return False
        stores = self._stores.get(slot, [])
        return len(stores) <= 1 or (
            home == label and not any(where == label and at < nth < place for where, nth in stores)
        )


def _literal(text: str) -> int | None:
    if text in _LITERALS:
        return _LITERALS[text]
    return int(text) if text.lstrip("-").isdigit() else None


def _negated(value: Value) -> Value:
    if isinstance(value, int):
        return int(not value)
    if isinstance(value, str):
        return Test(value, "eq", 0)
    return value.inverted() if value else None
