"""The kernel's functions that a user half calls, with what each argument is."""

from __future__ import annotations

from ring3_split.annotate.border import Downcall
from ring3_split.annotate.declared import pointee
from ring3_split.generate.border import Border
from ring3_split.generate.declarations import Declared, Parameter
from ring3_split.generate.table import Argument, Call

ARGUMENTS = 8
# A pointer to a function that is declared by a name of its own.
NAMED_CODE = ("irq_handler_t", "work_func_t", "irqreturn_t (*)(int, void *)")
ALIKE = ("const char *", "char const *")


def add(border: Border) -> None:
    """Adds all calls of a border, and what of them cannot be had."""
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


def declaration(border: Border, name: str) -> Declared | None:
    """How a function is declared: its definition, where there is one in a header."""
    found = [unit.declared.functions[name] for unit in border.units if name in unit.declared.functions]
    return next((one for one in found if one.defined), found[0] if found else None)


def _add(border: Border, downcall: Downcall, declared: Declared) -> None:
    arguments = []
    for number, parameter in enumerate(declared.parameters):
        said = border.annotation(f"{downcall.function}({parameter.name})") if downcall.way == "driver" else None
        note = downcall.arguments.get(number, str(said) if said else "")
        argument = _argument(border, note, parameter, declared)
        if argument is None:
            border.table.refused[declared.name] = f"what its argument {number} ({parameter.type}) points to is not known"
            return
        arguments.append(argument)
    call = Call(declared.name, declared, arguments, _result(border, declared), own=downcall.way == "driver")
    if declared.variadic:
        if not arguments or arguments[-1].way != "TEXT":
            border.table.refused[declared.name] = "its number of arguments varies, and they follow no format"
            return
        call.format = len(arguments) - 1
        arguments[-1] = Argument("BRIEF")
    border.table.calls.append(call)


def _argument(border: Border, note: str, parameter: Parameter, declared: Declared) -> Argument | None:
    word = note.rsplit(maxsplit=1)[-1].partition("(")[0] if note else ""
    if word in ("function", "operations") or parameter.type in NAMED_CODE or "(*)" in parameter.type:
        target = pointee(parameter.type)
        return Argument("OBJECT", border.type_of(target[1]) if target and target[1] else border.signature(parameter.type))
    if not parameter.pointer:
        return Argument()
    if note.endswith("out single"):
        inner = pointee(parameter.type.rstrip()[:-1].strip())
        return Argument("RESULT", border.type_of(inner[1]) if inner and inner[1] else "")
    if word == "string" or any(parameter.type.startswith(one) for one in ALIKE):
        return Argument("TEXT")
    return _object(border, note, parameter, declared)


def _object(border: Border, note: str, parameter: Parameter, declared: Declared) -> Argument | None:
    word = note.rsplit(maxsplit=1)[-1].partition("(")[0] if note else ""
    target = pointee(parameter.type)
    if target and target[0] == "number":
        return _numbers(border, note, parameter, declared)
    if target is None or target[0] in ("char", "pointer"):
        # Where it is only handed on, nobody looks what it is.
        return Argument("OBJECT") if word == "handle" else None
    return Argument("OBJECT", border.type_of(target[1]) if target[1] else "")


def _numbers(border: Border, note: str, parameter: Parameter, declared: Declared) -> Argument | None:
    """One number, or memory with several: as many as another argument says, or what the user half has allocated."""
    word, _, length = note.rsplit(maxsplit=1)[-1].rstrip(")").partition("(") if note else ("", "", "")
    plain = parameter.type.replace("*", "").replace("const", "").strip()
    if word in ("array", "bytes"):
        counted = next((n for n, one in enumerate(declared.parameters) if one.name == length and not one.pointer), None)
        if counted is None:
            return Argument("OBJECT", border.type_of("bytes"))
        size = border.units[0].numbers([f"sizeof({plain})"])[0] if word == "array" else 1
        return Argument("COUNTED", border.type_of("bytes"), size, counted)
    size = border.units[0].numbers([f"sizeof({plain})"])[0] if word == "single" else 0
    return Argument("NUMBER", size=size) if 0 < size <= 8 else None


def _result(border: Border, declared: Declared) -> Argument:
    target = pointee(declared.returns)
    if target is None:
        return Argument()
    return Argument("OBJECT", border.type_of(target[1]) if target[1] else "opaque")
