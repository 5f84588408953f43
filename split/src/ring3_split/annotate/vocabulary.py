"""The language of annotations: what a pointer stands for when it crosses between the halves.

    [in | out | inout] WORD [(ARGUMENT, ...)]

`WORDS` is the whole of it. Lengths are expressions over sibling members (of a field), parameters
(of a parameter) or `arg0`, `arg1`, ... (in api.toml, where names differ from driver to driver).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from ring3_split.annotate.expression import Expression, Malformed, parse

Direction = Literal["", "in", "out", "inout"]


@dataclass(frozen=True)
class Word:
    """One word of the vocabulary."""

    means: str
    arguments: tuple[
        str, ...
    ] = ()  # "length", "type", "member", each possibly with "?" when it may be left out


WORDS: dict[str, Word] = {
    "single": Word("one object; its type, if the pointer does not say it", ("type?",)),
    "array": Word("that many objects, one behind the other", ("length", "type?")),
    "bytes": Word("that many bytes, copied as they are", ("length",)),
    "string": Word("characters up to the first zero"),
    "list": Word("the head of a list of such objects, linked by that member", ("type", "member")),
    "function": Word("a function: translated by the symbol table"),
    "operations": Word("a table of functions: each is translated by the symbol table"),
    "io": Word("mapped registers: only for readl and its like"),
    "dma": Word(
        "memory that the device uses, of that many bytes: mapped, never copied", ("length",)
    ),
    "user": Word("an address of the calling process: only for copy_from_user and its like"),
    "handle": Word("crosses as a number that the other half gives back; never followed"),
    "omit": Word("does not cross: the user half sees NULL and may not change it"),
}

# Answers to what is not a pointer.
WAYS = ("local", "memory", "mmio", "downcall", "lock", "atomic", "never")
VARIABLE_WAYS = ("read", "copy", "handle", "never")

SHAPE = re.compile(r"^\s*(?:(in|out|inout)\s+)?([a-z]+)\s*(?:\((.*)\))?\s*$", re.S)


@dataclass(frozen=True)
class Annotation:
    """What one pointer stands for."""

    word: str
    direction: Direction = ""
    length: str = ""
    type: str = ""  # struct, without the word
    member: str = ""

    def __str__(self) -> str:
        """As it is written."""
        kind = f"struct {self.type}" if self.type else ""
        inner = ", ".join(part for part in (self.length, kind, self.member) if part)
        if self.word == "list":
            inner = f"{kind}, {self.member}"
        text = f"{self.word}({inner})" if inner else self.word
        return f"{self.direction} {text}".strip()


@dataclass
class Parts:
    """An annotation with its length taken apart, to be checked."""

    annotation: Annotation
    length: Expression | None = field(default=None)


def read(text: str) -> Parts:
    """Reads an annotation; raises `Malformed` with what is wrong in a sentence."""
    shape = SHAPE.match(text)
    if not shape or shape[2] not in WORDS:
        raise Malformed(f"`{text}` is none of: {', '.join(usage(word) for word in WORDS)}")
    direction, name, inner = shape[1] or "", shape[2], shape[3]
    given = _split(inner) if inner is not None else []
    wanted = WORDS[name].arguments
    needed = sum(not argument.endswith("?") for argument in wanted)
    if not needed <= len(given) <= len(wanted):
        raise Malformed(f"`{text}` should be written {usage(name)}")
    values = dict(zip((argument.rstrip("?") for argument in wanted), given, strict=False))
    kind = values.get("type", "")
    if kind and not re.fullmatch(r"(struct|union)\s+\w+", kind):
        raise Malformed(f"`{kind}` in `{text}` is not a struct or union: write `struct NAME`")
    length = parse(values["length"]) if "length" in values else None
    annotation = Annotation(
        word=name,
        direction=direction,  # type: ignore[arg-type]
        length=values.get("length", ""),
        type=kind.split()[-1] if kind else "",
        member=values.get("member", ""),
    )
    return Parts(annotation, length)


def usage(word: str, typed: bool = True) -> str:
    """How a word is written: `array(LENGTH)`.

    A pointer that is not `typed` needs `array(LENGTH, struct NAME)`.
    """
    inner = []
    for argument in WORDS[word].arguments:
        if not argument.endswith("?") or not typed:
            inner.append("struct NAME" if argument.startswith("type") else argument.upper())
    return f"{word}({', '.join(inner)})" if inner else word


def _split(text: str) -> list[str]:
    """Arguments at the outer commas."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return parts
