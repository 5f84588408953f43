"""The file of a plan: TOML that a person reads, edits and keeps in version control.

One table for each function, sorted by id, one fact a line: moving a function changes one line.
Whoever moves one judges the file with `ring3 split plan --check`. Code generation reads `functions`
only; all else tells how the plan came to be.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomlkit
from tomlkit.exceptions import TOMLKitError

from ring3_split.context import Stated
from ring3_split.errors import Refusal
from ring3_split.indirect import Precision

VERSION = 1

HEADER = """\
Where the functions of a driver run: in the kernel half, in the user half, or in both \
(an inline of a header that both use).
Move a function by its placement, then have the file judged: ring3 split plan --check FILE
Say in which context the kernel calls it: [contexts."my_ops.poll"] \
with context = "process" or "atomic", and why = "..."
"""


class Side(StrEnum):
    """Where a function runs."""

    KERNEL = "kernel"
    USER = "user"
    BOTH = "both"


class Placed(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A function's place."""

    placement: Side
    lines: int
    # Why it stays in one word: "critical", "entry", "unknown", "fixed", "region", "section",
    # "lock", "inline" or "cost".
    rule: str = ""
    reason: str = ""
    # user half only: how the kernel or the kernel half calls it; each function with one is an
    # upcall
    called_by: list[str] = []
    # Kernel half only, of what must not begin without a user half: "refuse" it fails then, "later"
    # it is a work item and waits.
    without: Literal["", "refuse", "later"] = ""


class Totals(msgspec.Struct, frozen=True):
    """What a placement amounts to.

    Crossings are in calls of the profiled run, or in places of the code without a profile.
    """

    functions: int  # of the driver
    lines: int  # of these
    kernel_functions: int  # in the kernel half; those of both sides count
    kernel_lines: int  # of these
    kernel_percent: float  # of the lines
    upcalled: (
        int  # functions of the user half that are called from the kernel or from the kernel half
    )
    downcalled: int  # functions of the kernel half that the user half calls
    upcalls: int  # calls of `upcalled`
    downcalls: int  # calls of `downcalled`
    crossings: int  # upcalls and downcalls; with --whole, the two below as well
    kernel_downcalls: int = 0  # of the kernel's own functions, from the user half
    register_accesses: int = (
        0  # from the user half: downcalls, unless the registers are mapped there
    )


class Recovery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A work item of an object, when it is queued, and what is done before.

    C, in which `object` is a pointer to it.
    """

    work: str
    when: str = "true"
    first: str = ""  # statements; whatever the condition


class Mmio(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the user half reaches registers in memory."""

    map: bool = False  # by loads and stores to the BAR, not by calls that the kernel half checks


class Plan(msgspec.Struct, forbid_unknown_fields=True):
    """A plan, as its file has it."""

    version: int  # of this form
    kernel: str  # the kernel whose source was read
    driver: str  # its module
    precision: Precision  # of indirect calls
    method: str  # "propagation" or "cut"
    cost: str  # lines per crossing, a decimal number; "" for propagation, which does not weigh
    profile: (
        str  # the workload that was measured, and for how long; "" when crossings are estimated
    )
    totals: Totals  # what the placement amounts to
    functions: dict[str, Placed]  # function id -> where it runs
    # What a person says of the kernel: "my_ops.poll" or "request_foo:1" -> the context in which it
    # calls, and why.
    contexts: dict[str, Stated] = {}
    # Member -> the least and the most that the user half may set it to, where the code does not
    # tell.
    limits: dict[str, tuple[int, int]] = {}
    # A function of the kernel half -> what ends what the user half has begun by calling it, when
    # that dies before it has done so: another function, with the same arguments, or a statement.
    undo: dict[str, str] = {}
    # A function that the user half calls -> what must be so before, in C, of the parameters.
    requires: dict[str, str] = {}
    # An entry -> what must be so when it has succeeded, in C, of the parameters.
    ensures: dict[str, str] = {}
    # A function of the user half -> the statement that the kernel half begins with before it calls
    # up.
    before: dict[str, str] = {}
    # A function of the user half that returns nothing -> the statement with which the kernel half
    # goes on when it has failed.
    failed: dict[str, str] = {}
    # Struct -> what puts the device right after any other such upcall that the kernel half's own
    # code has made.
    recovery: dict[str, Recovery] = {}
    mmio: Mmio = Mmio()  # how the user half reaches registers in memory
    combolocks: list[str] = []  # spinlocks that both halves may take: a process sleeps for them
    # Functions of the user half without a result that the next one does anew, from the start, when
    # one has died in them.
    again: list[str] = []
    # Members that the user half sets while they are zero, and never again.
    once: list[str] = []
    # "function(parameter)": pointers that the user half may hand down as NULL though the source
    # nowhere hands NULL there.
    nullable: list[str] = []
    # Functions of the kernel half of which one runs at a time, whoever calls it.
    alone: list[str] = []

    def sides(self) -> dict[str, Side]:
        """Function id -> side."""
        return {function: placed.placement for function, placed in self.functions.items()}


def load(path: Path) -> Plan:
    """Reads a plan, as it was edited. Refuses what is not one, and says where."""
    try:
        document = tomlkit.parse(path.read_text()).unwrap()
    except FileNotFoundError as error:
        raise Refusal(
            f"{path}: {error.strerror}: write a plan first: ring3 split plan DRIVER --out {path}"
        ) from None
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, TOMLKitError) as error:
        raise Refusal(f"{path}: not a TOML file: {error}") from None
    if "questions" in document or "inferred" in document:
        judge = f"ring3 split annotate {document.get('driver', 'DRIVER')} --check --out {path}"
        raise Refusal(f"{path}: a file of annotations, not a plan; it is judged by: {judge}")
    version = document.get("version")
    if version is None:
        raise Refusal(f"{path}: not a plan, it has no version")
    if version != VERSION:
        raise Refusal(
            f"{path}: version {version} of a plan, this program knows {VERSION}: make the plan anew"
        )
    try:
        return msgspec.convert(document, Plan)
    except msgspec.ValidationError as error:
        raise Refusal(f"{path}: {_where(error, document)}") from None


def save(plan: Plan, path: Path) -> None:
    """Writes a plan to a file that is not there yet: a person's edits are never overwritten."""
    try:
        with path.open("x") as file:
            file.write(text(plan))
    except FileExistsError:
        raise Refusal(
            f"{path}: is there already, perhaps with somebody's edits: move it away, or name "
            "another file"
        ) from None
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror}") from None


def text(plan: Plan) -> str:
    """The plan as TOML, the same for the same plan."""
    document = tomlkit.document()
    for line in HEADER.splitlines():
        document.add(tomlkit.comment(line))
    for key, value in msgspec.to_builtins(plan).items():
        if key not in (
            "totals",
            "functions",
            "contexts",
            "limits",
            "undo",
            "requires",
            "ensures",
            "before",
            "failed",
            "recovery",
            "mmio",
        ) and (value or key not in ("combolocks", "again", "once", "nullable", "alone")):
            document.add(key, value)
    document.add("totals", _table(msgspec.to_builtins(plan.totals)))
    for key, table in (
        ("limits", {n: list(pair) for n, pair in plan.limits.items()}),
        ("undo", plan.undo),
        ("requires", plan.requires),
        ("ensures", plan.ensures),
        ("before", plan.before),
        ("failed", plan.failed),
        ("recovery", msgspec.to_builtins(plan.recovery)),
        ("mmio", {"map": True} if plan.mmio.map else {}),
    ):
        if table:
            document.add(key, tomlkit.item(table))
    if plan.contexts:
        contexts = tomlkit.table(is_super_table=True)
        for name in sorted(plan.contexts):
            contexts.add(name, _table(msgspec.to_builtins(plan.contexts[name])))
        document.add("contexts", contexts)
    functions = tomlkit.table(is_super_table=True)
    for function in sorted(plan.functions):
        functions.add(function, _table(msgspec.to_builtins(plan.functions[function])))
    document.add("functions", functions)
    return tomlkit.dumps(document)


def _table(fields: dict[str, Any]) -> tomlkit.items.Table:
    """A table with the fields in their order; lists of more than one stand one value a line."""
    table = tomlkit.table()
    for key, value in fields.items():
        if isinstance(value, list) and len(value) > 1:
            array = tomlkit.array()
            array.extend(value)
            table.add(key, array.multiline(multiline=True))
        else:
            table.add(key, value)
    return table


def _where(error: msgspec.ValidationError, document: dict[str, Any]) -> str:
    """The message of a wrong value, with the function that it stands at.

    Msgspec names keys of a dictionary `[...]`.
    """
    functions = document.get("functions")
    for function, fields in functions.items() if isinstance(functions, dict) else ():
        try:
            msgspec.convert(fields, Placed)
        except msgspec.ValidationError as nested:
            return f"functions.{function}: {nested}"
    return str(error)
