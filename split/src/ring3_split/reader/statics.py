"""File scope: function addresses in initialisers, exports, aliases, module parameters.

Also hashes of declared functions.

# Not taken for a taken address
What only keeps a symbol alive or describes it to the linker is no way to call it: `__addressable`
marks, symbol tables (`__ksymtab`, `.export_symbol`), `.modinfo`, init and exit calls (a module's
are its aliases `init_module` and `cleanup_module`), static call keys and sites, tracepoints and
their tables, dynamic debug, jump labels, bug tables, and `llvm.used`. `docs/split-facts.md` has the
reasons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ring3_split.ir.module import Global, plain
from ring3_split.ir.types import closing, split
from ring3_split.model import Stored
from ring3_split.reader.unit import Context

_NAME = re.compile(r'@([\w.$-]+|"[^"]*")')
_SECTIONS = re.compile(
    r"\.discard|__?ksymtab|\.export_symbol|\.modinfo|__bug_table|__jump_table|\.static_call"
    r"|__tracepoint|_ftrace_events|__dyndbg|__verbose|\.initcall|\.exitcall|__bpf"
    r"|_kprobe_blacklist|__ex_table|\.altinstr|\.BTF_ids|_error_injection"
)
_NAMES = re.compile(
    r"__UNIQUE_ID_|__addressable_|__ksymtab_|__kstrtab|__kcrctab_|__export_symbol_"
    r"|__initcall_|__exitcall_|llvm\."
)
_TYPES = re.compile(
    r"%struct\.(?:tracepoint|trace_event_(?:call|class|functions)|bpf_raw_event_map"
    r"|static_call_key)\b"
)
_EXPORT = re.compile(r"\b__(?:ksymtab|export_symbol)_(\w+):")
_LOCAL = re.compile(r"__const\.([^.]+)\.(.+?)(?:\.\d+)?$")
_HASH = re.compile(r"\.set __kcfi_typeid_(\S+), (\d+)")
_PARAMETER = "__param_"


class Statics:
    """The file scope of one unit."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._module = context.module

    def exports(self) -> tuple[str, ...]:
        """Symbols that EXPORT_SYMBOL and its kin export, in the forms of all kernels since 2.6."""
        found = [
            name.removeprefix("__ksymtab_")
            for name in self._module.globals
            if name.startswith("__ksymtab_")
        ]
        found += [match[1] for line in self._module.assembly if (match := _EXPORT.search(line))]
        return tuple(dict.fromkeys(found))

    def declared(self) -> dict[str, int]:
        """Hashes of functions that are declared here and whose address is taken."""
        matches = (_HASH.search(line) for line in self._module.assembly if "__kcfi_typeid_" in line)
        return {plain(match[1]): int(match[2]) & 0xFFFFFFFF for match in matches if match}

    def parameters(self) -> tuple[str, ...]:
        """Names of the module parameters."""
        described = [
            name
            for name, one in self._module.globals.items()
            if name.startswith(_PARAMETER) and one.section == "__param"
        ]
        return tuple(name.removeprefix(_PARAMETER) for name in described)

    def stored(self) -> tuple[Stored, ...]:
        """Addresses of functions in the initialisers of variables."""
        found: list[Stored] = []
        for variable in self._module.globals.values():
            if "@" in variable.initialiser and not self._excluded(variable):
                found += self._initialised(variable)
        return tuple(dict.fromkeys(found))

    def _excluded(self, variable: Global) -> bool:
        if variable.external or _NAMES.match(variable.name) or _TYPES.match(variable.initialiser):
            return True
        return bool(_SECTIONS.match(variable.section))

    def _initialised(self, variable: Global) -> Iterator[Stored]:
        text = variable.initialiser
        if not any(self._context.is_function(plain(name)) for name in set(_NAME.findall(text))):
            return
        node, line = self._declared(variable)
        local = _LOCAL.match(variable.name)
        name = f"{local[1]}.{local[2]}" if local else variable.name
        for symbol, offset in self._symbols(split(text)[0], 0):
            if self._context.is_function(symbol):
                steps = self._context.fields.at(node, offset * 8) if node else ()
                names = [step.name for step in steps if step.name]
                yield Stored(symbol, line, field=names[-1] if names else "", object=name)

    def _declared(self, variable: Global) -> tuple[int, int]:
        """Type and line of a variable, or of the local variable whose initial value it holds.

        (0, 0) when not known.
        """
        metadata = self._context.metadata
        if variable.dbg >= 0:
            return metadata.variable_type(variable.dbg), metadata.number(
                int(metadata.node(variable.dbg).get("var", 0)), "line"
            )
        local = _LOCAL.match(variable.name)
        body = self._module.functions.get(local[1]) if local else None
        if local and body:
            types = [one.type for one in body.variables.values() if one.name == local[2]]
            return next(iter(types), 0), metadata.number(body.attached("dbg"), "line")
        return self._context.fields.struct(first_type(variable.initialiser)), 0

    def _symbols(self, text: str, offset: int) -> Iterator[tuple[str, int]]:
        """Symbols in "type value" with their offsets, in bytes."""
        type_text = first_type(text)
        value = text[len(type_text) :].strip()
        types = self._module.types
        if value[:1] == "[":
            size = types.size(types.element(type_text))
            for index, part in enumerate(split(value[1:-1].strip())):
                if "@" in part:
                    yield from self._symbols(part, offset + index * size)
        elif value[:1] == "{" or value[:2] == "<{":
            inner = value.removeprefix("<").removesuffix(">").strip()[1:-1].strip()
            for index, part in enumerate(split(inner)):
                if "@" in part:
                    yield from self._symbols(part, offset + types.offset(type_text, index))
        elif match := _NAME.search(value):
            yield plain(match[1]), offset


def first_type(text: str) -> str:
    """The type that a "type value" begins with."""
    if text[:1] in "[{<":
        return text[: closing(text, 0) + 1]
    if text.startswith("ptr addrspace("):
        return text[: text.index(")") + 1]
    return text.partition(" ")[0]
