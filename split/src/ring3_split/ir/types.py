"""Sizes and offsets of IR types, as the unit's data layout has them. All in bytes.

Only what clang writes for C is known: integers, floats, pointers (opaque), arrays, vectors,
structs, packed structs.
"""

from __future__ import annotations

import re

# Bits of alignment where the layout string says nothing [LangRef, Data Layout].
_DEFAULTS = {
    "i1": 8,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 32,
    "f16": 16,
    "f32": 32,
    "f64": 64,
    "f128": 128,
}
_FLOATS = {
    "half": 16,
    "bfloat": 16,
    "float": 32,
    "double": 64,
    "x86_fp80": 80,
    "fp128": 128,
    "ppc_fp128": 128,
}
_BRACKETS = {"{": 1, "[": 1, "(": 1, "<": 1, "}": -1, "]": -1, ")": -1, ">": -1}
_BRACKET = re.compile(r'[{\[(<"]')
_SPECIAL = re.compile(r'[,{}\[\]()<>]|"[^"]*"')


def split(text: str) -> list[str]:
    """The parts between the outermost commas. Linear in the length of the text."""
    if not any(bracket in text for bracket in '{[(<"'):
        return text.split(", ") if text else []
    parts = []
    depth = start = 0
    for match in _SPECIAL.finditer(text):
        mark = match[0]
        if mark == ",":
            if depth == 0:
                parts.append(text[start : match.start()].strip())
                start = match.end()
        else:
            depth += _BRACKETS.get(mark, 0)
    last = text[start:].strip()
    return [*parts, last] if last else parts


def closing(text: str, start: int) -> int:
    """Where the bracket at `start` is closed; the end of the text when it is not."""
    depth = 0
    for match in _SPECIAL.finditer(text, start):
        depth += _BRACKETS.get(match[0], 0)
        if depth == 0:
            return match.start()
    return len(text)


class Types:
    """The types of one module."""

    def __init__(self, layout: str, structs: dict[str, str]) -> None:
        self.structs = structs
        self.big_endian = layout.startswith("E")
        self._alignments = dict(_DEFAULTS)
        self._pointers: dict[int, tuple[int, int]] = {0: (64, 64)}
        for part in layout.split("-"):
            self._specify(part)
        self._sizes: dict[str, tuple[int, int]] = {}
        self._offsets: dict[str, tuple[int, ...]] = {}
        self._elements: dict[str, tuple[str, ...]] = {}

    def _specify(self, part: str) -> None:
        """Reads one part of the data layout string, such as "i64:64" or "p270:32:32"."""
        if match := re.fullmatch(r"p(\d*):(\d+):(\d+).*", part):
            self._pointers[int(match[1] or 0)] = int(match[2]), int(match[3])
        elif match := re.fullmatch(r"([if]\d+):(\d+).*", part):
            self._alignments[match[1]] = int(match[2])

    @property
    def pointer(self) -> int:
        """The size of a pointer."""
        return self._pointers[0][0] // 8

    def size(self, text: str) -> int:
        """How far elements of an array of this type are apart."""
        return self._measure(text)[0]

    def elements(self, text: str) -> tuple[str, ...]:
        """The types of a struct's members, padding included."""
        if text not in self._elements:
            body = self.structs.get(text, text) if text.startswith("%") else text
            inner = body.strip().removeprefix("<").removesuffix(">").strip()
            self._elements[text] = (
                tuple(split(inner[1:-1].strip())) if inner.startswith("{") else ()
            )
        return self._elements[text]

    def offset(self, text: str, index: int) -> int:
        """Where the member of a struct begins."""
        self._measure(text)
        offsets = self._offsets.get(text, ())
        return offsets[index] if index < len(offsets) else 0

    def element(self, text: str) -> str:
        """The element type of an array or vector; "" of anything else."""
        match = re.match(r"[\[<](?:vscale x )?\d+ x ", text)
        return text[match.end() : -1] if match else ""

    def _measure(self, text: str) -> tuple[int, int]:
        """Size (a multiple of the alignment) and alignment."""
        known = self._sizes.get(text)
        if known is None:
            known = self._sizes[text] = self._compute(text)
        return known

    def _compute(self, text: str) -> tuple[int, int]:
        if text.startswith("ptr"):
            space = re.match(r"ptr addrspace\((\d+)\)", text)
            size, alignment = self._pointers.get(int(space[1]) if space else 0, self._pointers[0])
            return size // 8, alignment // 8
        if text.startswith("i") and text[1:].isdigit():
            return self._integer(int(text[1:]))
        if text.startswith("["):
            match = re.match(r"\[(\d+) x ", text)
            size, alignment = self._measure(self.element(text))
            return size * int(match[1] if match else 0), alignment
        if text.startswith(("{", "<{", "%")):
            return self._struct(text)
        if text.startswith("<"):
            match = re.match(r"<(\d+) x ", text)
            size = self.size(self.element(text)) * int(match[1] if match else 0)
            return size, max(size, 1)
        return self._float(text)

    def _integer(self, bits: int) -> tuple[int, int]:
        wider = [
            int(name[1:]) for name in self._alignments if name[0] == "i" and int(name[1:]) >= bits
        ]
        widest = max(int(name[1:]) for name in self._alignments if name[0] == "i")
        alignment = self._alignments[f"i{min(wider, default=widest)}"] // 8
        return -(-((bits + 7) // 8) // alignment) * alignment, alignment

    def _float(self, text: str) -> tuple[int, int]:
        bits = _FLOATS.get(text, 8)
        alignment = self._alignments.get(f"f{bits}", bits) // 8
        return -(-(bits // 8) // alignment) * alignment, alignment

    def _struct(self, text: str) -> tuple[int, int]:
        body = self.structs.get(text, text)
        packed = body.startswith("<")
        offset = 0
        strictest = 1
        offsets = []
        for element in self.elements(text):
            size, alignment = self._measure(element)
            if not packed:
                strictest = max(strictest, alignment)
                offset = -(-offset // alignment) * alignment
            offsets.append(offset)
            offset += size
        self._offsets[text] = tuple(offsets)
        return -(-offset // strictest) * strictest, strictest
