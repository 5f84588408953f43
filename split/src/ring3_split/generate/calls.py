"""The kernel's functions that a user half calls, with what each argument is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources

import msgspec

from ring3_split.annotate.border import Downcall
from ring3_split.annotate.declared import pointee
from ring3_split.errors import Refusal
from ring3_split.generate import declarations, objects, symbols
from ring3_split.generate.border import Border
from ring3_split.generate.conditions import Condition, required
from ring3_split.generate.declarations import Declared, Parameter
from ring3_split.generate.table import Argument, Call, Undo

ARGUMENTS = 8
# A pointer to a function that is declared by a name of its own.
NAMED_CODE = {
    "irq_handler_t": "irqreturn_t (*)(int, void *)",
    "work_func_t": "void (*)(struct work_struct *)",
}
# Macros of the kernel's that set members of its own structs: the user half calls functions of
# kernel_half.h instead.
WORK_ITEMS = {"split_init_work": "work_struct", "split_init_delayed_work": "delayed_work"}
# Inlines that change lists, of which no copy tells anything.
LISTS = ("INIT_LIST_HEAD", "list_add", "list_add_tail")
ALIKE = ("const char *", "char const *")


def add(border: Border) -> None:
    """Adds all calls of a border, and what of them cannot be had.

    Raises:
        Refusal: the plan speaks of a function that is not called.
    """
    _work_items(border)
    _lists(border)
    for downcall in border.survey.border.downcalls:
        name = downcall.function.rpartition(":")[2]
        if downcall.way == "never":
            border.table.refused[name] = downcall.reason or "it cannot be had outside the kernel"
        if downcall.way not in ("downcall", "driver"):
            continue
        declared = declaration(border, name)
        if declared is None:
            border.table.refused[name] = "no unit declares it as a function"
        elif len(declared.parameters) > ARGUMENTS:
            border.table.refused[name] = f"it has more than {ARGUMENTS} arguments"
        else:
            _add(border, downcall, declared)
    for name in sorted(border.wishes.nullable - border.pointers):
        raise Refusal(
            f"nullable: {name} is no pointer that the user half hands down: name it as "
            "FUNCTION(PARAMETER)"
        )
    called = {call.name for call in border.table.calls}
    for name in sorted(border.wishes.requires.keys() - called):
        if "." not in name:
            raise Refusal(f"requires: {name} is no function that the user half calls")
        if name not in border.settable:
            raise Refusal(f"requires: {name} is no pointer or number that the user half sets")


def _work_items(border: Border) -> None:
    """INIT_WORK and INIT_DELAYED_WORK.

    The kernel's work item gets the kernel half's function of that name.
    """
    if not border.table.working:
        return
    for name, struct in WORK_ITEMS.items():
        parameters = (Parameter(f"struct {struct} *", "work"), Parameter("work_func_t", "function"))
        declared = Declared(name, "void", parameters, False, f"void {name}()", "", 0, 0, False)
        arguments = [
            Argument("OBJECT", border.type_of(struct)),
            Argument("OBJECT", border.signature(NAMED_CODE["work_func_t"])),
        ]
        call = Call(name, declared, arguments, Argument())
        _require(border, call)
        border.table.calls.append(call)
    for key in border.table.working:
        border.table.reach[key] |= WORK_ITEMS.keys()


def _lists(border: Border) -> None:
    """Lists in the driver's own structs.

    The user half has heads made and elements put there in the kernel's objects.
    """
    graph, halves = border.survey.halves.graph, border.survey.halves
    users = {
        key
        for key in halves.user
        if any(border.own_list(access.field) for access in border.accesses.get(key, ()))
    }
    named = {
        key: {graph.functions[callee].name for callee in graph.calls.get(key, {})} for key in users
    }
    for name in LISTS:
        callers = {key for key in users if name in named[key]}
        declared = declaration(border, name) if callers else None
        if declared is None:
            continue
        call = Call(
            name,
            declared,
            [Argument("OBJECT", border.type_of("list_head"))] * len(declared.parameters),
            Argument(),
        )
        _require(border, call)
        border.table.calls.append(call)
        for key in border.table.reach:
            if callers & halves.reachable(key):
                border.table.reach[key].add(name)


def declaration(border: Border, name: str) -> Declared | None:
    """How a function is declared: its definition, where there is one in a header."""
    found = [
        unit.declared.functions[name] for unit in border.units if name in unit.declared.functions
    ]
    return next((one for one in found if one.defined), found[0] if found else None)


def _add(border: Border, downcall: Downcall, declared: Declared) -> None:
    arguments, mapped = [], []
    for number, parameter in enumerate(declared.parameters):
        said = (
            border.annotation(f"{downcall.function}({parameter.name})")
            if downcall.way == "driver"
            else None
        )
        note = downcall.arguments.get(number, str(said) if said else "")
        if downcall.way == "driver" and border.through(downcall.function, number) == "r":
            note = f"in {note}"
        if note.endswith("io") and parameter.pointer:
            mapped.append(f"split_is_mapped(split_host, (const void __iomem *){parameter.name})")
        argument = _argument(border, note, parameter, declared)
        if argument is None:
            border.table.refused[declared.name] = (
                f"what its argument {number} ({parameter.type}) points to is not known"
            )
            return
        arguments.append(argument)
    _cookie(border, declared, arguments)
    call = Call(
        declared.name, declared, arguments, _result(border, declared), own=downcall.way == "driver"
    )
    if declared.variadic:
        texts = [number for number, argument in enumerate(arguments) if argument.way == "TEXT"]
        if not texts:
            border.table.refused[declared.name] = (
                "its number of arguments varies, and they follow no format"
            )
            return
        call.format = texts[-1]
        arguments[call.format] = Argument("BRIEF")
    call.undo = _undo(border, call)
    call.ends = None if call.own else objects.ends().ends.get(call.name)
    if call.ends is not None and arguments[call.ends].way != "OBJECT":
        border.table.refused[declared.name] = "it frees what is no object of the user half's"
        return
    call.alone = call.own and call.name in border.wishes.alone
    _require(border, call, mapped)
    border.table.calls.append(call)


def _require(border: Border, call: Call, more: Sequence[str] = ()) -> None:
    """What must be so before a call: what requires.toml and the plan say, and `more`.

    And no pointer is NULL that must not be.
    """
    known = required().get(call.name, Condition())
    pairs = zip(call.declared.parameters, call.arguments, strict=True)
    pointers = [parameter.name for parameter, argument in pairs if argument.way != "SCALAR"]
    border.pointers |= {f"{call.name}({name})" for name in pointers}
    nullable = {
        *known.nullable,
        *_null(border, call),
        *(n for n in pointers if f"{call.name}({n})" in border.wishes.nullable),
    }
    conditions = [
        known.holds,
        *more,
        *objects.conditions(border, call),
        border.wishes.requires.get(call.name, ""),
    ]
    call.done = known.does
    call.requires = " && ".join(
        [*(n for n in pointers if n not in nullable), *(f"({one})" for one in conditions if one)]
    )


def _null(border: Border, call: Call) -> Iterator[str]:
    """The parameters for which the driver itself hands NULL to a function, at some place."""
    for code, place in border.called_in_text.get(call.name, ()):
        handed = declarations.split(code[place : declarations.closing(code, place - 1)])
        yield from (
            p.name
            for p, value in zip(call.declared.parameters, handed, strict=False)
            if value.strip() == "NULL"
        )


def _undo(border: Border, call: Call) -> Undo | None:
    """What gives back what a call takes.

    As the plan says of the driver's own, as undo.toml says of the kernel's.
    """
    if call.name in border.wishes.undo:
        said = border.wishes.undo[call.name]
        if "(" in said:
            return Undo("", (0,), 0, said)
        by = declaration(border, said)
        if by is None:
            raise Refusal(
                f"undo: {border.wishes.undo[call.name]}, which is to undo {call.name}, is no "
                "function of the driver"
            )
        return Undo(by.name, tuple(range(len(by.parameters))), len(by.parameters) - 1)
    row = undone().get(call.name)
    if row is None or declaration(border, row.by) is None:
        return None
    return Undo(row.by, tuple(row.arguments), row.key)


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of undo.toml."""

    by: str
    arguments: list[int]
    key: int = 0


@cache
def undone() -> dict[str, Row]:
    """Functions of the kernel that take something, and what gives it back."""
    return msgspec.toml.decode(
        resources.files(__package__).joinpath("undo.toml").read_bytes(), type=dict[str, Row]
    )


def _cookie(border: Border, declared: Declared, arguments: list[Argument]) -> None:
    """An interrupt handler's `void *` is what all of the driver's handlers take it for."""
    handed = [
        n for n, parameter in enumerate(declared.parameters) if parameter.type == "irq_handler_t"
    ]
    graph = border.survey.halves.graph
    named = NAMED_CODE["irq_handler_t"]
    handlers = [
        key for key, one in graph.owned() if symbols.signature(one) == named and key in graph.stored
    ]
    casts = border.shapes(handlers, "cast", "param 1")
    for number in [
        n
        for n, parameter in enumerate(declared.parameters)
        if handed and parameter.type == "void *"
    ]:
        if len(casts) == 1:
            arguments[number] = Argument(
                "OBJECT", border.type_of(next(iter(casts)).removeprefix("struct "))
            )


def _argument(
    border: Border, note: str, parameter: Parameter, declared: Declared
) -> Argument | None:
    word = note.rsplit(maxsplit=1)[-1].partition("(")[0] if note else ""
    if (
        word in ("function", "operations")
        or parameter.type in NAMED_CODE
        or "(*)" in parameter.type
    ):
        target = pointee(parameter.type)
        code = NAMED_CODE.get(parameter.type, parameter.type)
        return Argument(
            "OBJECT", border.type_of(target[1]) if target and target[1] else border.signature(code)
        )
    if not parameter.pointer:
        return Argument()
    target = pointee(parameter.type)
    if note.endswith("out single") and target is not None and target[0] == "pointer":
        inner = pointee(parameter.type.rstrip()[:-1].strip())
        return Argument("RESULT", border.type_of(inner[1]) if inner and inner[1] else "")
    if word == "string" or any(parameter.type.startswith(one) for one in ALIKE):
        return Argument("TEXT")
    return _object(border, note, parameter, declared)


def _object(border: Border, note: str, parameter: Parameter, declared: Declared) -> Argument | None:
    word = note.rsplit(maxsplit=1)[-1].partition("(")[0] if note else ""
    target = pointee(parameter.type)
    if (target and target[0] == "number") or word == "bytes":
        return _numbers(border, note, parameter, declared)
    if target is None or target[0] in ("char", "pointer"):
        # Where it is only handed on, nobody looks what it is.
        return Argument("OBJECT") if word == "handle" else None
    return Argument("OBJECT", border.type_of(target[1]) if target[1] else "")


def _numbers(
    border: Border, note: str, parameter: Parameter, declared: Declared
) -> Argument | None:
    """One number, or memory with several.

    As many as another argument says, or what the user half has allocated.
    """
    word, _, length = (
        note.rsplit(maxsplit=1)[-1].rstrip(")").partition("(") if note else ("", "", "")
    )
    plain = parameter.type.replace("*", "").replace("const", "").strip()
    if word in ("array", "bytes"):
        counted = next(
            (
                n
                for n, one in enumerate(declared.parameters)
                if length in (one.name, f"arg{n}") and not one.pointer
            ),
            None,
        )
        if counted is None and not length.isdigit():
            return Argument("OBJECT", border.type_of("bytes"))
        size = border.units[0].numbers([f"sizeof({plain})"])[0] if word == "array" else 1
        fixed = size * int(length) if counted is None else 0
        reads = note.startswith("in ") or "const" in parameter.type
        return Argument(
            "COUNTED",
            border.type_of("bytes"),
            fixed or size,
            ARGUMENTS if fixed else counted or 0,
            reads,
        )
    size = border.units[0].numbers([f"sizeof({plain})"])[0] if word == "single" else 0
    return Argument("NUMBER", size=size) if 0 < size <= 8 else None


def _result(border: Border, declared: Declared) -> Argument:
    target = pointee(declared.returns)
    if target is None:
        return Argument()
    return Argument("OBJECT", border.type_of(target[1]) if target[1] else "opaque")
