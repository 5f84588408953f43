"""Functions and variables that both halves have, each at its own address: the symbol table."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ring3_split.generate.border import Border
from ring3_split.generate.table import Field, Symbol
from ring3_split.generate.texts import last_bytes
from ring3_split.generate.units import Unit
from ring3_split.model import Function

STRUCT = re.compile(r"\bstruct (\w+)\s*(?:\[|$)")


@dataclass(frozen=True)
class Hoisted:
    """A static variable of a function, which both halves need at file scope."""

    function: str  # id
    name: str

    @property
    def symbol(self) -> str:
        """Its name there."""
        return f"split_{self.name}_of_{self.function.rpartition(':')[2]}"


def alias(name: str) -> str:
    """The global name of a function or variable that may be static."""
    return f"split_symbol_{name}"


def signature(facts: Function) -> str:
    """The type of pointers to a function, as declarations write it."""
    types = ", ".join(parameter.type for parameter in facts.parameters) or "void"
    space = "" if facts.returns.endswith("*") else " "
    return f"{facts.returns}{space}(*)({types})"


def add(border: Border) -> tuple[list[Hoisted], dict[str, list[str]]]:
    """Adds all symbols; gives what must move to file scope, and names to make global by unit."""
    hoisted: list[Hoisted] = []
    asked: list[tuple[Unit, str, Symbol]] = []
    aliases: dict[str, list[str]] = {unit.source: [] for unit in border.units}
    for name in sorted(_functions(border)):
        key = next(
            k
            for k, f in border.survey.halves.graph.functions.items()
            if f.name == name and border.survey.halves.graph.own(k)
        )
        facts = border.survey.halves.graph.functions[key]
        border.table.symbols.append(
            Symbol(name, alias(name), 0, border.signature(signature(facts)))
        )
        aliases[_unit(border, facts.file).source].append(name)
    for name, shared in sorted(border.survey.border.variables.items()):
        if not shared.where:
            if shared.way == "handle":
                known = next(
                    (
                        u.declared.variables[name]
                        for u in border.units
                        if name in u.declared.variables
                    ),
                    "",
                )
                border.table.symbols.append(
                    Symbol(name, name, 1, border.type_of(known) if known else "")
                )
            continue
        struct = STRUCT.search(shared.type)
        unit = _unit(border, shared.where.rpartition(":")[0])
        if "." in name:
            # What is handed to the kernel, which keeps it: tables of operations.
            if struct and any(
                argument.type == struct[1]
                for call in border.table.calls
                for argument in call.arguments
            ):
                function, _, local = name.partition(".")
                key = next(
                    k for k, f in border.survey.halves.graph.functions.items() if f.name == function
                )
                found = Hoisted(key, local)
                hoisted.append(found)
                asked.append(
                    (
                        unit,
                        f"sizeof(struct {struct[1]})",
                        Symbol(name, alias(found.symbol), 0, border.type_of(struct[1])),
                    )
                )
                aliases[unit.source].append(found.symbol)
            continue
        kind = border.type_of(struct[1]) if struct else f"variable {name}"
        asked.append((unit, f"sizeof({name})", Symbol(name, alias(name), 0, kind)))
        aliases[unit.source].append(name)
    _measure(border, asked)
    return hoisted, aliases


def _functions(border: Border) -> set[str]:
    """Entries, and kernel-half functions that the user half points to or calls indirectly."""
    graph, halves = border.survey.halves.graph, border.survey.halves
    entries = {entry.function for entry in border.survey.border.entries}
    taken = {stored.function for key in halves.user for stored in graph.functions[key].stored}
    found = {graph.functions[key].name for key in entries}
    pointed = {
        callee
        for key in halves.user
        for callee, edges in graph.calls.get(key, {}).items()
        if any(edge.how != "direct" for edge in edges)
    }
    for key in halves.kernel:
        if graph.functions[key].name in taken or key in pointed:
            found.add(graph.functions[key].name)
    return found


def _measure(border: Border, asked: list[tuple[Unit, str, Symbol]]) -> None:
    for unit in border.units:
        own = [(question, symbol) for one, question, symbol in asked if one is unit]
        for (_, symbol), size in zip(
            own, unit.numbers([question for question, _ in own]), strict=True
        ):
            symbol.size = size
            border.table.symbols.append(symbol)
            if symbol.type.startswith("variable "):
                border.table.types[symbol.type] = size
                border.table.inside[symbol.type] = []


def variable_views(border: Border) -> None:
    """Gives each entry views of the variables that it uses."""
    sizes = {symbol.name: symbol for symbol in border.table.symbols}
    for entry in border.table.entries:
        wanted = border.table.variables[entry.function]
        border.table.variables[entry.function] = [
            name
            for name in wanted
            if name in sizes and (name in border.statics or sizes[name].type == f"variable {name}")
        ]
        for name in border.table.variables[entry.function]:
            if name in border.statics:
                continue  # its members are those of its struct
            shared = border.survey.border.variables[name]
            size = sizes[name].size
            if "*" in shared.type:
                text = "char" in shared.type
                fields = [
                    Field(
                        f"[{n}]",
                        8 * n,
                        8,
                        "POINTER" if text else "OPAQUE",
                        False,
                        "bytes" if text else "",
                        "split_string" if text else "",
                    )
                    for n in range(size // 8)
                ]
            else:
                fields = [
                    Field(name, 0, size, written="w" in shared.user, texts=last_bytes(shared.type))
                ]
            border.table.views[entry.function][f"variable {name}"] = fields


def _unit(border: Border, file: str) -> Unit:
    return next((unit for unit in border.units if unit.source == file), border.units[0])
