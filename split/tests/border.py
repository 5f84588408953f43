"""A small driver made by hand, whose border the tests look at.

`open` is called by the kernel and runs in the user half, `send` stays in the kernel half; both work
on struct nic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ring3_split.annotate.survey import Survey, survey
from ring3_split.driver import Driver
from ring3_split.graph import link
from ring3_split.model import (
    VERSION,
    Access,
    Allocation,
    Call,
    Data,
    Function,
    Layout,
    Member,
    Module,
    ModuleFacts,
    Parameter,
    Shape,
    Stored,
    Unit,
    Variable,
)

FILE = "d/a.c"
OPEN, SEND = f"{FILE}:nic_open", f"{FILE}:nic_send"


def function(
    name: str, *parameters: tuple[str, str], file: str = FILE, line: int = 10, **more: object
) -> Function:
    declared = tuple(Parameter(*one) for one in parameters)
    return Function(name, file, line, line + 9, parameters=declared, **more)  # type: ignore[arg-type]


def nic(*members: Member) -> Layout:
    return Layout("nic", "d/nic.h", 5, 64, members)


def pointer(name: str, pointee: str = "", type_: str = "", **more: object) -> Member:
    return Member(name, type_ or f"struct {pointee} *", 8, 8, pointee=pointee, line=7, **more)  # type: ignore[arg-type]


def number(name: str, offset: int = 0) -> Member:
    return Member(name, "int", offset, 4)


def reads(*fields: str, base: str = "param 0") -> tuple[Access, ...]:
    return tuple(Access(field, "r", (11,), base=base) for field in fields)


class Border:
    """Facts that a test adds to before it asks."""

    def __init__(self, *members: Member) -> None:
        self.layouts = {"nic": nic(*members)}
        self.functions = {
            "nic_open": function("nic_open", ("nic", "struct nic *")),
            "nic_send": function("nic_send", ("nic", "struct nic *"), line=30),
        }
        self.stored = [
            Stored("nic_open", 50, field="ops.open", object="nic_ops"),
            Stored("nic_send", 51, field="ops.send"),
        ]
        self.accesses: dict[str, tuple[Access, ...]] = {
            OPEN: reads(*(f"nic.{member.name}" for member in members))
        }
        self.shapes: dict[str, tuple[Shape, ...]] = {}
        self.allocations: dict[str, tuple[Allocation, ...]] = {}
        self.variables: dict[str, Variable] = {}
        self.touched: dict[str, dict[str, str]] = {}
        self.sides = {OPEN: "user", SEND: "kernel"}

    def calls(self, caller: str, *calls: Call) -> Border:
        facts = self.functions[caller]
        self.functions[caller] = Function(
            facts.name,
            facts.file,
            facts.line,
            facts.end,
            parameters=facts.parameters,
            returns=facts.returns,
            calls=calls,
        )
        return self

    def adds(self, facts: Function, side: str = "user") -> Border:
        self.functions[facts.name] = facts
        self.sides[facts.id] = side
        return self

    def takes(self, *parameters: tuple[str, str]) -> Border:
        """Gives `nic_open` other parameters."""
        return self.adds(function("nic_open", *parameters))

    def sees(self, *shapes: Shape, function: str = OPEN) -> Border:
        self.shapes[function] = (*self.shapes.get(function, ()), *shapes)
        return self

    def look(self, answers: Mapping[str, str] | None = None) -> Survey:
        unit = Unit(VERSION, FILE, tuple(self.functions.values()), tuple(self.stored))
        data = Data(
            VERSION,
            FILE,
            self.accesses,
            self.allocations,
            self.shapes,
            self.touched,
            self.variables,
            self.layouts,
        )
        driver = Driver("nic", (ModuleFacts(Module("nic", "d", (FILE,)), (unit,)),), data=(data,))
        return survey(link(driver, "field"), self.sides, "6.12", answers)


def inferred(found: Survey, key: str) -> str:
    return str(found.inferred[key].annotation) if key in found.inferred else "asked"


def known(found: Survey, key: str) -> Sequence[str]:
    return found.questions[key].known
