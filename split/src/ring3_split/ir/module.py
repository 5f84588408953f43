"""A module of text IR: functions, globals, aliases, struct types and debug information.

`parse` only finds where things are. A function's instructions, a global's initialiser and a
metadata node are taken apart when they are first asked for, because most of a translation unit is
headers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ring3_split.ir.globals import Global
from ring3_split.ir.instruction import Instruction
from ring3_split.ir.metadata import Metadata, unescape
from ring3_split.ir.types import Types, closing, split

__all__ = ["Block", "Body", "Global", "IrModule", "Variable", "parse", "plain"]

_NAME = r'[\w.$-]+|"[^"]*"'
_DEFINE = re.compile(rf"(?:define|declare) [^@]*@({_NAME})\(")
_GLOBAL = re.compile(rf"@({_NAME}) = (.*)")
_DECLARE = re.compile(r"    #dbg_declare\(ptr (%[^,]+), !(\d+)")
_CALLED = re.compile(rf" call [^@\n]*@({_NAME})\(")
_BRANCHES = frozenset(("br", "switch", "indirectbr", "callbr", "invoke"))


def plain(name: str) -> str:
    """A symbol without quotes and the mark of a literal name."""
    return unescape(name.strip('"')).removeprefix("\1") if '"' in name else name


@dataclass(slots=True)
class Block:
    """A basic block. Its label and its successors are without the percent sign."""

    label: str
    instructions: list[Instruction] = field(default_factory=list)
    successors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Variable:
    """A local variable or parameter of the source."""

    name: str
    type: int  # metadata id
    argument: int  # position of a parameter, from 0; -1 of a local variable


class Body:
    """A function that is defined."""

    def __init__(self, name: str, lines: list[str], metadata: Metadata) -> None:
        self.name = name
        self.header = lines[0]
        self._lines = lines
        self._metadata = metadata
        self._blocks: dict[str, Block] | None = None
        self._instructions: list[Instruction] = []
        self._variables: dict[str, Variable] = {}

    @cached_property
    def parameters(self) -> list[str]:
        """The IR's parameters: "%0" ...

        A struct may be several, or a pointer; `variables` has those of the source.
        """
        start = _DEFINE.match(self.header)
        at = start.end() - 1 if start else 0
        parts = split(self.header[at + 1 : closing(self.header, at)])
        return [part.rpartition(" ")[2] for part in parts if part != "..."]

    @property
    def internal(self) -> bool:
        """Whether it is static."""
        return self.header.startswith(("define internal", "define private"))

    @property
    def section(self) -> str:
        """The section that it is put in, "" for the usual one."""
        match = re.search(r' section "([^"]*)"', self.header)
        return match[1] if match else ""

    @cached_property
    def callees(self) -> frozenset[str]:
        """The symbols that it calls, found without taking its instructions apart."""
        return frozenset(plain(name) for name in _CALLED.findall("\n".join(self._lines)))

    def attached(self, kind: str) -> int:
        """Metadata id of an attachment, such as "dbg" or "kcfi_type"; 0 when there is none."""
        match = re.search(rf" !{kind} !(\d+)", self.header)
        return int(match[1]) if match else 0

    @property
    def kcfi(self) -> int | None:
        """The hash of its type, if its address may be taken."""
        node = self.attached("kcfi_type")
        return self._metadata.integers(node)[0] & 0xFFFFFFFF if node else None

    @property
    def blocks(self) -> dict[str, Block]:
        """Its basic blocks by label, the entry first."""
        if self._blocks is None:
            self._blocks = self._parse()
        return self._blocks

    @property
    def instructions(self) -> list[Instruction]:
        """All instructions in order; an instruction's `index` is its place here."""
        return self._instructions if self.blocks else []

    @property
    def variables(self) -> dict[str, Variable]:
        """The variables of the source by the value that is their address, "%2"."""
        return self._variables if self.blocks else {}

    def _parse(self) -> dict[str, Block]:
        unnamed = sum(1 for parameter in self.parameters if parameter[1:].isdigit())
        block = Block(str(unnamed))
        blocks: dict[str, Block] = {}
        instructions = self._instructions
        lines = iter(self._lines[1:])
        for line in lines:
            if line.startswith("  %") or (line.startswith("  ") and line[2] not in " #"):
                opcode_at = line.find(" = ") + 3 if line[2] == "%" else 2
                longer = line.startswith(("switch ", "callbr ", "invoke "), opcode_at)
                text = _continued(line, lines) if longer else line
                instruction = Instruction(len(instructions), text[2:], self._metadata)
                instructions.append(instruction)
                block.instructions.append(instruction)
                if instruction.opcode in _BRANCHES:
                    block.successors = instruction.targets()
            elif line.startswith("    #dbg_declare"):
                self._declare(line)
            elif line and line[0] not in " }":
                if block.instructions:
                    blocks[block.label] = block
                block = Block(line.partition(":")[0].strip('"'))
        blocks[block.label] = block
        return blocks

    def _declare(self, line: str) -> None:
        match = _DECLARE.match(line)
        if match:
            node = int(match[2])
            argument = self._metadata.number(node, "arg") - 1
            name = self._metadata.node(node).get("name", "")
            self._variables[match[1]] = Variable(
                name, self._metadata.reference(node, "type"), argument
            )


def _continued(line: str, lines: Iterator[str]) -> str:
    """The whole of an instruction that goes on over several lines."""
    parts = [line]
    if " switch " in line[:200] or line.startswith("  switch "):
        while not parts[-1].startswith("  ]") and not parts[-1].rstrip().endswith("]"):
            parts.append(next(lines))
    else:
        parts.append(next(lines).strip())
    return " ".join(part.strip() if index else part for index, part in enumerate(parts))


def nothing_spelled(_: Instruction) -> list[str]:
    """What stands in the source at an instruction when there is no source."""
    return []


@dataclass
class IrModule:
    """A translation unit. Names are without "@" and "%"; values in instructions are with them."""

    functions: dict[str, Body]
    declarations: dict[str, str]  # functions that are only declared: their line
    globals: dict[str, Global]
    aliases: dict[str, str]  # alias -> symbol
    structs: dict[str, str]  # "%struct.e1000_hw" -> "{ ptr, i32 }"
    assembly: list[str]  # lines of file-scope assembly
    attributes: dict[str, str]  # "#0" -> its text
    metadata: Metadata
    types: Types
    source: str  # source_filename
    # The names in the source at an instruction; whoever has the source sets it.
    spelled: Callable[[Instruction], list[str]] = nothing_spelled
    kept: dict[str, object] = field(
        default_factory=dict
    )  # what analyses found out and others need too

    def forget(self) -> None:
        """Drops all references back to the module, so that no cycle delays freeing it."""
        self.kept.clear()
        self.spelled = nothing_spelled


def parse(text: str) -> IrModule:
    """Finds functions, globals, types and metadata of a module's text.

    Raises ValueError for text that is not IR of clang.
    """
    found = _Parts()
    if not text.endswith("\n"):
        raise ValueError("it is cut off")
    lines = text.split("\n")
    end = len(lines)
    at = 0
    while at < end:
        line = lines[at]
        first = line[:1]
        if first == "!" and line.startswith("!0 = "):
            break
        if first == "d" and line.startswith("define "):
            close = _end(lines, at)
            found.define(line, lines[at:close])
            at = close
        elif first:
            found.other(line)
        at += 1
    if not found.layout:
        raise ValueError("no target datalayout: this is not clang's IR")
    found.metadata.lines = _nodes(lines[at:])
    return IrModule(
        found.functions,
        found.declarations,
        found.globals,
        found.aliases,
        found.structs,
        found.assembly,
        found.attributes,
        found.metadata,
        Types(found.layout, found.structs),
        found.source,
    )


def _end(lines: list[str], start: int) -> int:
    """The line that ends a function."""
    try:
        return lines.index("}", start)
    except ValueError:
        raise ValueError(f"the function of line {start + 1} does not end") from None


class _Parts:
    """What has been found so far."""

    def __init__(self) -> None:
        self.metadata = Metadata([])
        self.functions: dict[str, Body] = {}
        self.declarations: dict[str, str] = {}
        self.globals: dict[str, Global] = {}
        self.aliases: dict[str, str] = {}
        self.structs: dict[str, str] = {}
        self.assembly: list[str] = []
        self.attributes: dict[str, str] = {}
        self.layout = ""
        self.source = ""

    def define(self, line: str, lines: list[str]) -> None:
        match = _DEFINE.match(line)
        if match:
            name = plain(match[1])
            self.functions[name] = Body(name, lines, self.metadata)

    def other(self, line: str) -> None:
        """A line outside of functions and metadata."""
        if line.startswith("@"):
            self._global(line)
        elif line.startswith("declare "):
            if match := _DEFINE.match(line):
                self.declarations[plain(match[1])] = line
        elif line.startswith("%"):
            name, _, body = line.partition(" = type ")
            self.structs[name] = body
        elif line.startswith('module asm "'):
            self.assembly.append(unescape(line[12:-1]))
        elif line.startswith("attributes #"):
            self.attributes[line[11:].partition(" ")[0]] = line
        elif line.startswith("target datalayout"):
            self.layout = line.partition('"')[2].rstrip('"')
        elif line.startswith("source_filename"):
            self.source = unescape(line.partition('"')[2].rstrip('"'))

    def _global(self, line: str) -> None:
        match = _GLOBAL.match(line)
        if match is None:
            return
        name = plain(match[1])
        variable = Global(name, match[2])
        if variable.kind == "alias":
            self.aliases[name] = plain(variable.initialiser.rpartition("ptr @")[2])
        else:
            self.globals[name] = variable


def _nodes(lines: list[str]) -> list[str]:
    """Metadata lines by node id. Clang writes them in order, one a line."""
    if lines and lines[-1] == "":
        lines = lines[:-1]
    if lines and not lines[-1].startswith(f"!{len(lines) - 1} = "):
        ordered: dict[int, str] = {}
        for line in lines:
            if match := re.match(r"!(\d+) = ", line):
                ordered[int(match[1])] = line
        lines = [ordered.get(index, "") for index in range(max(ordered, default=-1) + 1)]
    return lines
