"""One instruction of a function body, and how its text is taken apart."""

from __future__ import annotations

import re
from collections.abc import Callable

from ring3_split.ir.metadata import Metadata
from ring3_split.ir.types import closing, split

_CALLEE = re.compile(r'[@%](?:[\w.$-]+|"[^"]*")(?=\()')
_ASM = re.compile(r'(?:^|.* )asm (?:[a-z]+ )*"(?P<code>[^"]*)", "(?P<constraints>[^"]*)"\(')
_KCFI = re.compile(r'"kcfi"\(i32 (-?\d+)\)')
_ORDER = re.compile(
    r' (?:syncscope\("[^"]*"\) )?(?:unordered|monotonic|acquire|release|acq_rel|seq_cst)\b'
)
_LABEL = re.compile(r'label %([\w.$-]+|"[^"]*")')


class Instruction:
    """An instruction. What `type` and `operands` are depends on the opcode.

    load: loaded type; the pointer. store: type of the value; value, pointer. getelementptr: source
    element type; base and indices. call and callbr: type of the result; the arguments, as
    `arguments`. atomicrmw and cmpxchg: type of the value; pointer, value(s). Casts: type of the
    result; the value. All else: type of the first operand; the values in order. A value is "%n",
    "@name", a constant, or a constant expression.
    """

    __slots__ = (
        "_metadata",
        "arguments",
        "callee",
        "dbg",
        "index",
        "kcfi",
        "opcode",
        "operands",
        "result",
        "text",
        "type",
    )

    def __init__(self, index: int, text: str, metadata: Metadata) -> None:
        self.index = index  # position in the body
        self.text = text
        self._metadata = metadata
        self.callee = ""  # of a call: "@name", "%n", or "asm"
        self.kcfi: int | None = (
            None  # of a call through a pointer: hash of the pointer's type, 32 bits unsigned
        )
        self.type = ""
        self.operands: list[str] = []
        self.arguments: list[str] = []
        result, _, rest = text.partition(" = ") if text[0] == "%" else ("", "", text)
        self.result = result
        self.opcode, _, rest = rest.partition(" ")
        if self.opcode in ("tail", "musttail", "notail"):
            self.opcode, _, rest = rest.partition(" ")
        at = rest.rfind("!dbg !")
        self.dbg = 0
        if at >= 0:
            number = rest[at + 6 :]
            comma = number.find(",")
            self.dbg = int(number if comma < 0 else number[:comma])
        _PARSERS.get(self.opcode, _other)(self, rest)

    @property
    def line(self) -> int:
        """The source line, 0 when there is none. In a macro: where the function's file uses it."""
        return self._metadata.line(self.dbg) if self.dbg else 0

    @property
    def column(self) -> int:
        """The source column: of a field access, where the member's name stands."""
        return self._metadata.column(self.dbg) if self.dbg else 0

    @property
    def scope(self) -> int:
        """Metadata id of the lexical block or subprogram it belongs to."""
        return self._metadata.scope(self.dbg) if self.dbg else 0

    @property
    def assembly(self) -> tuple[str, str] | None:
        """Code and constraints of inline assembly."""
        match = _ASM.match(self.text) if self.callee == "asm" else None
        return (match["code"], match["constraints"]) if match else None

    @property
    def source(self) -> int:
        """Metadata id of !srcloc, where inline assembly stands in the source; 0 when not known."""
        match = re.search(r"!srcloc !(\d+)", self.text)
        return int(match[1]) if match else 0

    def targets(self) -> list[str]:
        """Labels that a terminator may go to, each once, in order."""
        return list(dict.fromkeys(label.strip('"') for label in _LABEL.findall(self.text)))

    def __repr__(self) -> str:
        return f"<{self.text}>"


def value(text: str) -> str:
    """The value of "type attributes value".

    Its last word, or the constant expression it ends in.
    """
    if text.endswith((")", "}", "]", ">")):
        if match := re.search(
            r"(?:^|[ )])((?:getelementptr|inttoptr|ptrtoint|addrspacecast|bitcast"
            r"|add|sub|trunc|xor) [^@]*\(.*)",
            text,
        ):
            return match[1]
        return text.partition(" ")[2] if text.startswith(("ptr ", "i")) else text
    return text.rpartition(" ")[2]


def _load(instruction: Instruction, rest: str) -> None:
    type_, _, pointer = rest.partition(", ptr %")
    if pointer and not type_.startswith(("volatile ", "atomic ")):  # nearly all
        instruction.type = type_
        instruction.operands = [f"%{pointer.partition(',')[0]}"]
        return
    type_, pointer, *_ = split(_flags(rest))
    instruction.type = type_
    instruction.operands = [value(_unordered(pointer))]


def _store(instruction: Instruction, rest: str) -> None:
    what, separator, pointer = rest.partition(", ptr %")
    if not separator or "(" in what or what.startswith(("volatile ", "atomic ")):
        what, pointer, *_ = split(_flags(rest))
        pointer = value(_unordered(pointer))
    else:
        pointer = f"%{pointer.partition(',')[0]}"
    stored = value(what)
    instruction.type = what[: len(what) - len(stored)].rstrip()
    instruction.operands = [stored, pointer]


def _flags(rest: str) -> str:
    while rest.startswith(("volatile ", "atomic ")):
        rest = rest.partition(" ")[2]
    return rest


def _unordered(operand: str) -> str:
    """An operand without the memory ordering that may follow it."""
    return (
        _ORDER.split(operand, maxsplit=1)[0]
        if operand.endswith(("t", "e", "l", "c", "d"))
        else operand
    )


def _atomic(instruction: Instruction, rest: str) -> None:
    at = rest.find("ptr")
    parts = split(rest[at:].partition(", !")[0])
    instruction.operands = [
        value(_unordered(part)) for part in parts if not part.startswith("align")
    ]
    instruction.type = parts[1].partition(" ")[0] if len(parts) > 1 else ""


def _return(instruction: Instruction, rest: str) -> None:
    if not rest.startswith("void"):
        _other(instruction, rest)


def _getelementptr(instruction: Instruction, rest: str) -> None:
    while rest.startswith(("inbounds ", "nuw ", "nusw ", "inrange")):
        rest = rest.partition(" ")[2]
    type_, base, *indices = (
        split(rest) if "(" in rest or "{" in rest or "<" in rest else rest.split(", ")
    )
    instruction.type = type_
    instruction.operands = [
        value(base),
        *[index.rpartition(" ")[2] for index in indices if index[0] != "!"],
    ]


def _call(instruction: Instruction, rest: str) -> None:
    before = rest.find('"')
    assembly = _ASM.match(rest) if before > 0 and "asm " in rest[:before] else None
    if assembly:
        instruction.callee = "asm"
        start = assembly.end() - 1
        instruction.type = rest[: rest.index("asm ")].rstrip()
    else:
        match = _CALLEE.search(rest)
        if match is None:  # a call of a constant expression, such as a fixed address
            instruction.callee, start = "?", rest.find("(")
        else:
            instruction.callee, start = match[0], match.end()
            instruction.type = rest[: match.start()].rstrip()
    end = rest.find(")", start)
    if "(" in rest[start + 1 : end]:
        end = closing(rest, start)
    parts = split(rest[start + 1 : end])
    # A result that is returned through memory is no argument of the source.
    instruction.arguments = instruction.operands = [
        value(part) for part in parts if " sret(" not in part
    ]
    if instruction.callee[0] != "@" and (kcfi := _KCFI.search(rest, end)):
        instruction.kcfi = int(kcfi[1]) & 0xFFFFFFFF


def _cast(instruction: Instruction, rest: str) -> None:
    source, _, target = rest.rpartition(" to ")
    instruction.type = target.partition(",")[0]
    instruction.operands = [value(source)]


def _compare(instruction: Instruction, rest: str) -> None:
    _other(instruction, rest.partition(" ")[2])


def _other(instruction: Instruction, rest: str) -> None:
    rest = rest.partition(", !")[0]
    parts = split(rest)
    if not parts:
        return
    first = parts[0]
    operand = value(first)
    head = first[: len(first) - len(operand)].split()
    instruction.type = head[-1] if head else ""
    instruction.operands = [operand, *(value(part) for part in parts[1:])]


def _branch(instruction: Instruction, rest: str) -> None:
    if not rest.startswith("label"):
        first = rest.partition(",")[0]
        instruction.type, _, operand = first.rpartition(" ")
        instruction.operands = [operand]


def _phi(instruction: Instruction, rest: str) -> None:
    at = rest.find("[ ")
    instruction.type = rest[:at].strip()
    incoming = split(rest[at:].partition(", !")[0])
    instruction.operands = [
        split(part[1:-1])[0].strip() for part in incoming if part.startswith("[")
    ]


def _alloca(instruction: Instruction, rest: str) -> None:
    type_, _, alignment = rest.partition(", align ")
    if alignment and ", i" not in type_:  # nearly all: one element
        instruction.type = type_
        return
    parts = split(rest)
    instruction.type = parts[0]
    instruction.operands = [
        value(part) for part in parts[1:] if not part.startswith(("align", "addrspace", "!"))
    ]


_PARSERS: dict[str, Callable[[Instruction, str], None]] = {
    "load": _load,
    "store": _store,
    "getelementptr": _getelementptr,
    "call": _call,
    "callbr": _call,
    "phi": _phi,
    "alloca": _alloca,
    "ret": _return,
    "atomicrmw": _atomic,
    "cmpxchg": _atomic,
    "icmp": _compare,
    "fcmp": _compare,
    **dict.fromkeys(("br", "switch", "indirectbr"), _branch),
    **dict.fromkeys(
        (
            "trunc",
            "zext",
            "sext",
            "ptrtoint",
            "inttoptr",
            "bitcast",
            "addrspacecast",
            "fptosi",
            "sitofp",
        ),
        _cast,
    ),
}
