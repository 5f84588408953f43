"""The sources of both halves.

The driver's own, sliced, with what each half needs at the end of its files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ring3_split.annotate.survey import Survey
from ring3_split.errors import Refusal
from ring3_split.files import write
from ring3_split.generate import calls, slices, symbols, tables
from ring3_split.generate.border import Border, Wishes
from ring3_split.generate.combolocks import Combolocks
from ring3_split.generate.declarations import Declared
from ring3_split.generate.declarations import Parameter as Declaration
from ring3_split.generate.slices import Slice
from ring3_split.generate.symbols import Hoisted, alias
from ring3_split.generate.table import Call, Undo
from ring3_split.generate.units import Unit
from ring3_split.kernel import Kernel
from ring3_split.model import Function, Module, Parameter

RUNTIME = Path(__file__).parents[3] / "runtime"
NEVER = (
    "(false)"  # in a condition: no state fulfils it, for the kernel half alone calls that function
)


@dataclass
class Generated:
    """What was generated."""

    border: Border
    folder: Path
    units: list[Unit]
    removed: dict[str, list[str]] = field(
        default_factory=dict
    )  # half -> functions that it does not have


def generate(
    kernel: Kernel, module: Module, survey: Survey, wishes: Wishes, folder: Path
) -> Generated:
    """Writes both halves into `folder/kernel` and `folder/user`.

    Raises:
        Refusal: a function cannot be taken out of its file; the driver has code in another module.
    """
    others = [
        part.module.name
        for part in survey.halves.graph.driver.modules
        if part.module.name != module.name
    ]
    if others:
        raise Refusal(
            f"{module.name} has code of its own in {', '.join(others)}, a module beside it, and "
            "halves are made of one module: "
            "take such a driver (`ring3 split show DRIVER` lists them); `plan` and `annotate` "
            "know this one"
        )
    units = [Unit(kernel, module, source) for source in module.sources]
    border = Border(survey, units, wishes)
    for entry in survey.border.entries:
        if "*" in entry.returns:
            name = entry.function.rpartition(":")[2]
            raise Refusal(
                f"{name} returns a pointer, and the kernel would follow it: place it in the "
                "kernel half"
            )
        border.entry(entry)
    calls.add(border)
    border.table.ensures, border.table.again = dict(wishes.ensures), wishes.again
    _check(border)
    hoisted, aliases = symbols.add(border)
    symbols.variable_views(border)
    border.forget_conditions()
    border.measure()
    Combolocks(border).check()
    result = Generated(border, folder, units)
    write(folder / "tables.c", tables.render(border).encode())
    for unit in units:
        writer = Writer(
            result,
            unit,
            [one for one in hoisted if _file(survey, one.function) == unit.source],
            aliases[unit.source],
        )
        write(folder / f"kernel/{unit.stem}.c", writer.kernel().encode())
        write(folder / f"user/{unit.stem}.c", writer.user().encode())
    _files_of_halves(result, module)
    return result


def _file(survey: Survey, key: str) -> str:
    return survey.halves.graph.functions[key].file


def _check(border: Border) -> None:
    """Refuses a plan that speaks of what is not there, or of what would never end."""
    wishes = border.wishes
    for key, named in (("ensures", wishes.ensures), ("before", wishes.before)):
        for name in named.keys() - {
            entry.function.rpartition(":")[2] for entry in border.table.entries
        }:
            raise Refusal(f"{key}: {name} is no entry of the user half")
    for name in sorted(wishes.once - border.settled):
        raise Refusal(f"once: {name} is no member that the user half sets")
    halves = border.survey.halves
    for name in sorted(wishes.alone - {halves.graph.functions[key].name for key in halves.kernel}):
        raise Refusal(f"alone: {name} is no function of the kernel half")
    called = [
        border.survey.halves.graph.functions[entry.function] for entry in border.table.entries
    ]
    for name in sorted(wishes.again - {one.name for one in called if one.returns == "void"}):
        raise Refusal(f"again: {name} is no entry of the user half without a result")
    for struct, recovery in wishes.recovery.items():
        later = border.shapes(
            [key for key, without in wishes.without.items() if without == "later"],
            "container",
            "param 0",
        )
        if f"{struct}.{recovery.work}" not in {one.removesuffix(".work") for one in later}:
            raise Refusal(
                f"recovery: {struct}.{recovery.work} would be queued again and again while nobody "
                "answers: "
                'give the function of the kernel half that is its work without = "later"'
            )


class Writer:
    """Makes the two forms of a unit."""

    def __init__(
        self, result: Generated, unit: Unit, hoisted: list[Hoisted], aliases: list[str]
    ) -> None:
        self.result, self.unit, self.hoisted, self.aliases = result, unit, hoisted, aliases
        self.border, self.survey = result.border, result.border.survey
        self.functions = {
            key: one
            for key, one in self.survey.halves.graph.functions.items()
            if one.file == unit.source and self.survey.halves.graph.own(key)
        }
        self.entries = {entry.function: n for n, entry in enumerate(self.border.table.entries)}
        self.doors = Combolocks(self.border).doors
        self.owned = [call for call in self.border.table.calls if self._owns(call)]

    def _owns(self, call: Call) -> bool:
        """Whether the kernel's side of a call stands in this unit.

        The first one that knows the function.
        """
        if call.own:
            return call.declared.file == self.unit.source
        first = next(
            (unit for unit in self.border.units if call.name in unit.declared.functions),
            self.border.units[0],
        )
        return first is self.unit

    def _slice(self) -> Slice:
        text = (self.unit.kernel.root / self.unit.source).read_text(errors="surrogateescape")
        return Slice(self.unit.source, text.split("\n"))

    def _definition(self, one: Function, sliced: Slice) -> Declared | None:
        """A function's text in the file; None if a macro made it, such as module_pci_driver."""
        found = self.unit.declared.definition(one.name, self.unit.source)
        if found is None or not any(
            one.name in line for line in sliced.lines[found.first - 1 : found.last]
        ):
            return None
        return found

    def _without(self, half: str, key: str) -> None:
        self.result.removed.setdefault(half, []).append(key)

    def kernel(self) -> str:
        """The file of the kernel half."""
        sliced = self._slice()
        sliced.behind_includes = (
            f'#include "{self.border.survey.border.driver.replace("-", "_")}_split.h"'
        )
        for key, one in self.functions.items():
            found = self._definition(one, sliced)
            if (
                found is not None
                and key in self.survey.halves.kernel
                and key in self.border.wishes.without
            ):
                sliced.put_before(
                    slices.body(sliced.lines, found.first, found.last),
                    self._guard(one, self.border.wishes.without[key]),
                )
            if (
                found is not None
                and key in self.survey.halves.kernel
                and one.name in self.border.wishes.alone
            ):
                sliced.put_before(
                    slices.body(sliced.lines, found.first, found.last), "\tSPLIT_ALONE;"
                )
            if found is not None and key in self.survey.halves.kernel and key in self.doors:
                sliced.put_before(
                    slices.body(sliced.lines, found.first, found.last), self.doors[key]
                )
            if key in self.survey.halves.kernel or found is None:
                continue
            if key not in self.entries:
                self._refuse_named(key, one)
            stub = self._stub(one, self.entries[key], found.text) if key in self.entries else ""
            moved = "\n".join(
                self._moved(h, sliced.lines, found.first, found.last)[2]
                for h in self.hoisted
                if h.function == key
            )
            sliced.replace(found.first, found.last, "\n".join(filter(None, (stub, moved))))
            self._without("kernel", key)
        sliced.end = self._kernel_end()
        return tables.HEAD.format(what=f"The kernel half of {self.unit.source}") + sliced.text()

    def _refuse_named(self, key: str, one: Function) -> None:
        """A table of the kernel half cannot have what is neither there nor called up."""
        table = next(
            (
                place.object
                for place in self.survey.halves.graph.stored.get(key, ())
                if place.object
            ),
            "",
        )
        if table:
            raise Refusal(
                f"{one.name}: the table {table} has it, and nothing that is known calls it: place "
                "it in the kernel half, "
                "or in both if it keeps no state"
            )

    def _stub(self, one: Function, number: int, text: str) -> str:
        names = ", ".join(f"(unsigned long){p.name}" for p in one.parameters)
        call = f"split_upcall(split_host, {number}, arguments)"
        failed = self._failed(number)
        body = (
            f"return {call};"
            if one.returns != "void"
            else f"if ({call})\n\t\t{failed};"
            if failed
            else f"{call};"
        )
        return (
            f"{text}\n{{\n\tconst unsigned long arguments[] = {{ {names or '0'} }};\n\n"
            f"{self._instead(one, number)}{self._before(one)}\t{body}\n}}"
        )

    def _before(self, one: Function) -> str:
        statement = self.border.wishes.before.get(one.name)
        return f"\t{statement};\n" if statement else ""

    def _instead(self, one: Function, number: int) -> str:
        """What answers where the user half cannot be asked."""
        by = self.border.table.entries[number].called_by
        name = next(
            (
                self.border.wishes.instead[place]
                for place in by
                if place in self.border.wishes.instead
            ),
            "",
        )
        run = f"{name}({', '.join(p.name for p in one.parameters)})"
        return f"\tif (!split_asks(split_host))\n\t\treturn {run};\n" if name else ""

    def _failed(self, number: int) -> str:
        """What a stub without a result does when its upcall has failed."""
        entry = self.border.table.entries[number]
        first = entry.parameters[0] if entry.parameters else None
        if first is None:
            return ""
        if first.type == "struct work_struct *":
            return f"{self._again(entry.function)}({first.name})"
        wishes, graph = self.border.wishes, self.survey.halves.graph
        name = graph.functions[entry.function].name
        if name in wishes.failed:
            return wishes.failed[name]
        recovery = wishes.recovery.get(first.type.removeprefix("struct ").removesuffix(" *"))
        if recovery is None or not any(by in graph.functions for by in entry.called_by):
            return ""
        before, when = (
            re.sub(r"\bobject\b", first.name, text) for text in (recovery.first, recovery.when)
        )
        queued = f"if ({when}) schedule_work(&{first.name}->{recovery.work});"
        return f"({{ {before}; {queued} }})" if before else f"({{ {queued} }})"

    def _again(self, key: str) -> str:
        """What queues the work item of a function again."""
        found = self.border.shapes([key], "container", "param 0")
        member = (
            self.border.layouts.member(found.pop().removesuffix(".work"))
            if len(found) == 1
            else None
        )
        return (
            "split_again_delayed"
            if member is not None and member.struct == "delayed_work"
            else "split_again"
        )

    def _guard(self, one: Function, without: str) -> str:
        """The first statement of a function that must not begin without a user half."""
        then = (
            "return -EIO;"
            if without == "refuse"
            else f"return {self._again(one.id)}({one.parameters[0].name});"
        )
        return f"\tif (!split_asks(split_host))\n\t\t{then}"

    def _moved(self, one: Hoisted, lines: list[str], first: int, last: int) -> tuple[int, int, str]:
        begin, end, text = slices.local_static(lines, first, last, one.name)
        return begin, end, text.replace(f" {one.name} ", f" {one.symbol} ", 1)

    def _kernel_end(self) -> str:
        out = [""]
        out += [self._alias(name) for name in self.aliases]
        for call in self.owned:
            out.append(self._down(call))
            if call.undo:
                out.append(self._undo(call, call.undo))
            if call.requires:
                name = f"split_requires_{call.name}"
                out.append(_condition(name, call.declared.parameters, call.requires))
        for key in (key for key in self.functions if key in self.entries):
            one = self.functions[key]
            if one.name in self.border.table.ensures:
                there = [p.name for p in one.parameters if "*" in p.type]
                condition = " && ".join([*there, f"({self.border.table.ensures[one.name]})"])
                out.append(_condition(f"split_ensures_{one.name}", one.parameters, condition))
        for name, (declaration, expression, source) in self.border.table.counts.items():
            if source == self.unit.source:
                head = f"unsigned long {name}(const void *base)"
                out.append(f"{head};\n{head}\n{{\n\t{declaration}\n\n\treturn {expression};\n}}")
        for name, (declaration, expression, source) in self.border.table.conditions.items():
            if source == self.unit.source:
                head = f"int {name}(const void *base, unsigned long given)"
                out.append(
                    f"{head};\n{head}\n{{\n\t{declaration}\n\n"
                    f"\t(void)object;\n\t(void)value;\n\treturn {expression};\n}}"
                )
        out += self._checks()
        return "\n".join(out) + "\n"

    def _alias(self, name: str) -> str:
        return f'extern __typeof__({name}) {alias(name)} __attribute__((alias("{name}")));'

    def _down(self, call: Call) -> str:
        values = []
        for number, (argument, parameter) in enumerate(
            zip(call.arguments, call.declared.parameters, strict=True)
        ):
            pointer = argument.way != "SCALAR"
            values.append(
                f"(void *)arguments[{number}]"
                if pointer
                else f"({parameter.type})arguments[{number}]"
            )
        if call.format >= 0:
            # The user half has made the text of all that the format is for.
            values.append(values[call.format])
            values[call.format] = '"%s"'
        run = f"{call.name}({', '.join(values)})" if not call.done else "(void)arguments"
        body = (
            f"\t{run};\n\treturn 0;"
            if call.declared.returns == "void"
            else f"\treturn (unsigned long){run};"
        )
        name = f"split_down_{call.name}(const unsigned long *arguments)"
        return f"unsigned long {name};\nunsigned long {name}\n{{\n{body}\n}}"

    def _undo(self, call: Call, undo: Undo) -> str:
        name = f"split_undo_{call.name}(const unsigned long *arguments, unsigned long result)"
        if undo.statement:
            named = _named(call.declared.parameters)
            return f"void {name};\nvoid {name}\n{{\n{named}\n\t{undo.statement};\n}}"
        declared = calls.declaration(self.border, undo.by)
        types = [parameter.type for parameter in declared.parameters] if declared else []
        places = ["result" if number < 0 else f"arguments[{number}]" for number in undo.arguments]
        values = [
            f"({'void *' if '*' in kind else kind}){place}"
            for kind, place in zip(types, places, strict=True)
        ]
        run, before = f"\t{undo.by}({', '.join(values)});", f"void {name};\n"
        # What may not be called in this state is no remedy either: what was taken stays then.
        by = next((one for one in self.border.table.calls if one.name == undo.by), None)
        condition = by.requires if by else ""
        if by and condition and NEVER not in condition:
            before = f"int split_requires_{undo.by}(const unsigned long *arguments);\n{before}"
            given = f"\tconst unsigned long given[] = {{ {', '.join(places)} }};\n\n"
            held = f"split_requires_{undo.by}(given)"
            run = f"{given}\t{held};" if by.done else f"{given}\tif ({held})\n\t{run}"
        alone = "\tSPLIT_ALONE;\n" if undo.by in self.border.wishes.alone else ""
        return f"{before}void {name}\n{{\n{alone}{run}\n}}"

    def _checks(self) -> list[str]:
        """The compiler compares what the tables say with what it makes of the same headers."""
        table = self.border.table
        seen: dict[tuple[str, str], int] = {}
        for views in table.views.values():
            for kind, fields in views.items():
                unit = next((u for u in self.border.units if kind in u.declared.structs), None)
                if unit is self.unit:
                    seen |= {
                        (kind, one.path): one.offset
                        for one in fields
                        if one.kind != "BITS"
                        and ":" not in one.path
                        and kind not in table.outer
                        and kind not in self.border.behind
                    }
        sizes = {kind for kind, _ in seen}
        for outer, (_, offset) in self.border.behind.items():
            tail = self.border.layouts.structs[outer].members[-1]
            if not tail.size and outer in self.unit.declared.structs:
                seen[outer, tail.name] = offset
        out = [
            f'static_assert(sizeof(struct {kind}) == {table.types[kind]}, "{kind}");'
            for kind in sorted(sizes)
        ]
        return out + [
            f'static_assert(offsetof(struct {kind}, {path}) == {offset}, "{kind}.{path}");'
            for (kind, path), offset in sorted(seen.items())
        ]

    def user(self) -> str:
        """The file of the user half."""
        sliced = self._slice()
        sliced.behind_includes = '#include "prelude.h"\n' + "\n".join(self._intercepts())
        for key, one in self.functions.items():
            found = self._definition(one, sliced)
            if found is None:
                continue
            if key not in self.survey.halves.user:
                sliced.replace(found.first, found.last, found.text.replace("inline ", "") + ";")
                self._without("user", key)
            moved = [h for h in self.hoisted if h.function == key]
            if moved:
                self._hoist(sliced, moved, found.first, found.last)
        sliced.end = self._user_end()
        return tables.HEAD.format(what=f"The user half of {self.unit.source}") + sliced.text()

    def _hoist(self, sliced: Slice, moved: list[Hoisted], first: int, last: int) -> None:
        """Puts static variables of a function before it, where the symbol table can name them."""
        before, inside = [], []
        for one in moved:
            begin, end, text = self._moved(one, sliced.lines, first, last)
            before.append(text)
            inside.append((begin, end, one))
        for begin, end, one in inside:
            # Where it stood, its name becomes the other one for the rest of the function.
            sliced.replace(begin, end, f"#define {one.name} {one.symbol}")
            sliced.put_before(last + 1, f"#undef {one.name}")
        sliced.put_before(first, "\n".join(before))

    def _intercepts(self) -> list[str]:
        """Inlines that must not be taken apart are called by another name, which has a symbol."""
        out = []
        for name in inlined(self.border):
            if name in self.unit.declared.functions:
                out.append(
                    f"extern __typeof__({name}) split_stub_{name};\n#define {name} "
                    f"split_stub_{name}"
                )
        return out

    def _user_end(self) -> str:
        out = [""]
        present = [name for name in self.aliases if self._in_user(name)]
        out += [self._alias(name) for name in present]
        for key, number in self.entries.items():
            one = self.survey.halves.graph.functions[key]
            if one.file == self.unit.source:
                out.append(_runner(one, number))
        return "\n".join([*out, *self._checks()]) + "\n"

    def _in_user(self, name: str) -> bool:
        key = next((key for key, one in self.functions.items() if one.name == name), "")
        return not key or key in self.survey.halves.user


def _declared(kind: str, name: str) -> str:
    """A variable; the name of a function pointer would stand in the middle of its type."""
    return (
        f"__typeof__({kind}) {name}"
        if "(*)" in kind
        else f"{kind}{'' if kind.endswith('*') else ' '}{name}"
    )


def _named(parameters: Iterable[Parameter | Declaration]) -> str:
    """Variables of a function that gets its arguments in an array."""
    return "".join(
        f"\t{_declared(p.type, p.name)} = ({p.type})arguments[{n}];\n"
        for n, p in enumerate(parameters)
    )


def _condition(
    function: str, parameters: Collection[Parameter | Declaration], condition: str
) -> str:
    """A function of the kernel half that says whether a condition holds of arguments."""
    unused = "".join(f"\t(void){p.name};\n" for p in parameters)
    head = f"int {function}(const unsigned long *arguments)"
    return f"{head};\n{head}\n{{\n{_named(parameters)}\n{unused}\treturn {condition};\n}}"


def _runner(one: Function, number: int) -> str:
    values = ", ".join(f"({p.type})arguments[{n}]" for n, p in enumerate(one.parameters))
    run = f"{one.name}({values})"
    body = f"\t{run};\n\treturn 0;" if one.returns == "void" else f"\treturn (long){run};"
    name = f"split_run_{number}(const unsigned long *arguments)"
    return f"long {name};\nlong {name}\n{{\n{body}\n}}"


def memory(border: Border) -> dict[str, int]:
    """Allocators that the user half calls: name -> arguments that are multiplied, less one."""
    found = {}
    for downcall in border.survey.border.downcalls:
        if downcall.way == "memory" and downcall.frees is None:
            array = "array" in downcall.function or "calloc" in downcall.function
            found[downcall.function] = int(
                array or ("arg1" in downcall.result and "*" in downcall.result)
            )
    return found


def inlined(border: Border) -> list[str]:
    """Functions of headers that are stubs in the user half."""
    names = [call.name for call in border.table.calls if not call.own] + list(memory(border))
    return [
        name for name in names if (d := calls.declaration(border, name)) is not None and d.inline
    ]


def _files_of_halves(result: Generated, module: Module) -> None:
    """What a half has beside the driver's files."""
    border, folder = result.border, result.folder
    name = border.survey.border.driver.replace("-", "_")
    header = tables.HEAD.format(what=f"What every file of the kernel half of {name} begins with")
    write(
        folder / f"kernel/{name}_split.h",
        f'{header}\n#include "kernel_half.h"\n{Combolocks(border).header}'.encode(),
    )
    objects = " ".join(f"{unit.stem}.o" for unit in result.units)
    kbuild = f"""# SPDX-License-Identifier: GPL-2.0
# Generated by `ring3 split generate`, not to be edited.
obj-m := {border.survey.border.driver}.o
{border.survey.border.driver}-y := {objects} tables.o
ccflags-y := -I$(src) -I$(src)/runtime -I$(src)/runtime/kernel
ccflags-y += -I$(srctree)/{module.directory} -Wno-unused-function
"""
    write(folder / "kernel/Kbuild", kbuild.encode())
    runners = "".join(
        f"long split_run_{n}(const unsigned long *);\n" for n in range(len(border.table.entries))
    )
    rows = "".join(f"\tsplit_run_{n},\n" for n in range(len(border.table.entries)))
    head = tables.HEAD.format(what=f"The functions that run the entries of {name}")
    write(
        folder / "user/runners.c",
        f"{head}\n{runners}\nlong (*const split_runners[])(const unsigned long *) = "
        f"{{\n{rows}}};\n".encode(),
    )
