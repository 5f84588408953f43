"""A function's facts.

Extent, declaration, calls, addresses of functions that it takes, assembly, per-CPU data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ring3_split.ir.instruction import Instruction
from ring3_split.ir.module import Body, plain
from ring3_split.ir.origin import Origin, Origins
from ring3_split.model import Call, Function, Indirect, Parameter, Stored
from ring3_split.reader.regions import Held
from ring3_split.reader.unit import Context

_MACRO = 1 << 31  # clang's source locations of text that came out of a macro have this bit
_SEGMENT = re.compile(r"addrspace\(25[67]\)|%[gf]s:")
_GLOBALS = re.compile(r'@([\w.$-]+|"[^"]*")')
_PERCPU_SYMBOLS = frozenset(("__per_cpu_offset", "per_cpu__this_cpu_off", "this_cpu_off"))
_TRAMPOLINE = "@__SCT__"  # of a static call: what a tracepoint calls is not in the unit
_SINKS = frozenset(("store", "call", "callbr", "ret", "cmpxchg", "atomicrmw", "phi", "select"))


class Functions:
    """The functions of one unit."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._module = context.module
        self._metadata = context.metadata
        self._macros: dict[str, set[str]] = {}
        self._percpu = {
            name
            for name, variable in self._module.globals.items()
            if "percpu" in variable.section or name in _PERCPU_SYMBOLS
        }

    def read(self, body: Body, held: Held) -> Function:
        """The facts of one function, with the locks that it holds."""
        node = body.attached("dbg")
        path = self._context.path(node)
        line = self._metadata.number(node, "line")
        returns, types, variadic = self._context.ctypes.signature(
            self._metadata.reference(node, "type")
        )
        names = {variable.argument: variable.name for variable in body.variables.values()}
        calls, indirect = self._calls(body, held.at)
        return Function(
            name=body.name,
            file=self._context.sources.relative(path),
            line=line,
            end=self._end(body, line, path),
            first=self._first(line, path),
            static=body.internal,
            inline=self._inline(body, line, path),
            section=body.section,
            signature=body.kcfi,
            returns=returns,
            parameters=tuple(
                Parameter(names.get(index, ""), type_) for index, type_ in enumerate(types)
            ),
            variadic=variadic,
            calls=calls,
            indirect=indirect,
            stored=self._stored(body),
            regions=held.regions,
            given=held.given,
            assembly=self._assembly(body, path),
            percpu=self._percpu_lines(body),
        )

    def _end(self, body: Body, line: int, path: str) -> int:
        """The line of the brace that closes the body, or else the last line that has code."""
        node = body.attached("dbg")
        brace = self._context.sources.text(path).closing_brace(
            self._metadata.number(node, "scopeLine") or line
        )
        if brace:
            return max(brace, line)
        return max((one.line for one in body.instructions), default=line) or line

    def _first(self, line: int, path: str) -> int:
        """The declaration's first line, if its type or attributes precede its name; else 0."""
        first = self._context.sources.text(path).first(line)
        return first if first < line else 0

    def _inline(self, body: Body, line: int, path: str) -> bool:
        group = re.search(r" (#\d+)(?: |$)", body.header)
        attributes = self._module.attributes.get(group[1], "") if group else ""
        return "alwaysinline" in attributes or self._context.sources.text(path).inline(
            line, body.name
        )

    def _calls(
        self, body: Body, held: dict[int, tuple[int, ...]]
    ) -> tuple[tuple[Call, ...], tuple[Indirect, ...]]:
        direct, indirect = [], []
        for instruction in body.instructions:
            callee = instruction.callee
            if not callee or callee == "asm" or callee.startswith(("@llvm.", '@"llvm.')):
                continue
            locks = held.get(instruction.index, ())
            targets = [plain(callee[1:])] if callee[0] == "@" else self._targets(body, instruction)
            direct += [Call(target, instruction.line, locks) for target in targets]
            if not targets:
                indirect.append(self._indirect(body, instruction, locks))
        return tuple(direct), tuple(indirect)

    def _targets(self, body: Body, call: Instruction) -> list[str]:
        """The functions that a local pointer may be, when it can be nothing else."""
        origins = Origins.within(self._module, body).every(call.callee)
        values = [one for one in origins if one.kind != "constant"]  # null, which is not called
        known = all(
            one.kind == "global" and one.address and self._context.is_function(one.name)
            for one in values
        )
        return [one.name for one in values] if known else []

    def _indirect(self, body: Body, call: Instruction, held: tuple[int, ...]) -> Indirect:
        origin = Origins.within(self._module, body).of(call.callee)
        loaded = not origin.address
        return Indirect(
            signature=call.kcfi or 0,
            line=call.line,
            field=origin.name if origin.kind == "field" and loaded else "",
            parameter=origin.index if origin.kind == "param" else -1,
            held=held,
            variable=origin.name if origin.kind == "global" and loaded else "",
        )

    def _stored(self, body: Body) -> tuple[Stored, ...]:
        """Where the addresses of functions go in this body."""
        takers = [
            one
            for one in body.instructions
            if one.opcode in _SINKS and any(map(self._is_function, one.operands))
        ]
        if not takers:
            return ()
        origins = Origins.within(self._module, body)
        found: list[Stored] = []
        flows = any(one.opcode in ("phi", "select") or self._local(origins, one) for one in takers)
        for instruction in body.instructions if flows else takers:
            found += self._sunk(origins, instruction)
        told = {one.function for one in found if one.field or one.api or one.object}
        return tuple(
            dict.fromkeys(
                one
                for one in found
                if one.field or one.api or one.object or one.function not in told
            )
        )

    def _is_function(self, operand: str) -> bool:
        return (
            operand.startswith("@")
            and self._context.is_function(plain(operand[1:]))
            and not operand.startswith(_TRAMPOLINE)
        )

    def _local(self, origins: Origins, store: Instruction) -> bool:
        return store.opcode == "store" and origins.of(store.operands[1]).kind in ("local", "param")

    def _sunk(self, origins: Origins, instruction: Instruction) -> list[Stored]:
        """The functions whose address an instruction stores or passes."""
        if instruction.opcode == "store":
            functions = self._functions(origins, instruction.operands[0])
            return [self._store(origins, instruction, function) for function in functions]
        if instruction.opcode not in _SINKS - {"phi", "select"}:
            return []
        api = self._api(origins, instruction)
        owner = (
            self._owner(origins.every(instruction.operands[0]))
            if api and instruction.operands
            else ""
        )
        return [
            Stored(
                function, instruction.line, api=api, argument=position if api else -1, owner=owner
            )
            for position, operand in enumerate(instruction.operands)
            for function in self._functions(origins, operand)
        ]

    def _functions(self, origins: Origins, operand: str) -> list[str]:
        """The functions whose address a value may be."""
        if operand[:1] not in "%@":
            return []
        return [
            o.name
            for o in origins.every(operand)
            if o.kind == "global" and o.address and self._context.is_function(o.name)
        ]

    def _store(self, origins: Origins, store: Instruction, function: str) -> Stored:
        place = origins.of(store.operands[1])
        field = origins.leaf(place, store)
        if field:
            places = [
                leaf.base
                for one in origins.every(store.operands[1])
                if (leaf := origins.leaf(one, store))
            ]
            return Stored(function, store.line, field=field.name, owner=self._owner(places))
        return Stored(
            function,
            store.line,
            object=place.name if place.kind == "global" and place.address else "",
        )

    def _owner(self, places: Iterable[Origin | None]) -> str:
        """The outermost member that an address lies in.

        Of the driver's struct, where a work or a timer is embedded there.

        A pointer may have come from several places (it began as null): they must agree.
        """
        names = set()
        for place in places:
            name, inner = "", place
            while inner is not None and inner.address and inner.kind in ("field", "global"):
                name, inner = inner.name, inner.base
            names.add(name)
        return names.pop() if len(names) == 1 else ""

    def _api(self, origins: Origins, call: Instruction) -> str:
        """The symbol that is called, or the field that its address was loaded from.

        "" of assembly, and of what is no call.
        """
        if call.callee.startswith("@"):
            return plain(call.callee[1:])
        if call.callee.startswith("%"):
            origin = origins.of(call.callee)
            return origin.name if origin.kind == "field" else "?"
        return ""

    def _assembly(self, body: Body, path: str) -> tuple[int, ...]:
        """Lines with assembly that the function's own file wrote.

        In its text, or by a macro that this file defines.
        """
        written = (one for one in body.instructions if one.callee == "asm" and self._code(one))
        own = (
            one.line
            for one in written
            if not self._from_macro(one) or self._own_macro(one.line, path)
        )
        return tuple(sorted(set(own)))

    def _code(self, instruction: Instruction) -> bool:
        """Whether the assembly has any text: an empty one is only a barrier for the compiler."""
        return bool(instruction.assembly and instruction.assembly[0])

    def _from_macro(self, instruction: Instruction) -> bool:
        numbers = self._metadata.integers(instruction.source) if instruction.source else []
        return bool(numbers and numbers[0] & _MACRO)

    def _own_macro(self, line: int, path: str) -> bool:
        if path not in self._macros:
            self._macros[path] = self._context.sources.text(path).assembly_macros()
        macros = self._macros[path]
        return bool(macros) and not macros.isdisjoint(
            re.findall(r"\w+", self._context.sources.text(path).line(line))
        )

    def _percpu_lines(self, body: Body) -> tuple[int, ...]:
        """Lines that use per-CPU data.

        Through the segment of this CPU, or the table of all CPUs' areas.
        """
        return tuple(
            sorted(
                {one.line for one in body.instructions if one.dbg and self._uses_percpu(one.text)}
            )
        )

    def _uses_percpu(self, text: str) -> bool:
        if ("addrspace(25" in text or "s:" in text) and _SEGMENT.search(text):
            return True
        return (
            bool(self._percpu)
            and "@" in text
            and any(plain(name) in self._percpu for name in _GLOBALS.findall(text))
        )
