"""The text of a driver's files as a list of pieces at file scope.

What a generator keeps, moves or leaves out by lines.

Debug information has the functions. It has no prototypes, macros and tables, nor where a definition
begins whose type, attributes or storage class stand above its name. This is the text itself, with
comments and strings blanked, cut at file scope.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

BLANKED = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)
DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w+)[ \t]*(\w*)")
CALLED = re.compile(r"(\w+)\s*\(")
ATTRIBUTE = re.compile(r"\b__attribute__\s*\(\(.*?\)\)|\b__\w+\b(?!\s*\()", re.DOTALL)
TYPE = re.compile(r"(?:typedef\s+)?(?:struct|union|enum)\b\s*(\w*)\s*\{")
VARIABLE = re.compile(r"(\w+)\s*(?:\[[^=;]*\])*\s*(?:=|;|$)", re.DOTALL)


class Piece(msgspec.Struct, omit_defaults=True):
    """Some lines at file scope."""

    # "function", "prototype", "variable", "type", "macro" (a call of one), "define", "include", or
    # another directive
    kind: str
    name: str
    first: int
    last: int
    conditions: list[int] = []  # lines of the #if and its kin that it stands in


def outline(root: Path, files: Iterable[str]) -> dict[str, list[Piece]]:
    """The pieces of files of the tree, in order; a file that is not there has none."""
    found = {}
    for file in files:
        try:
            found[file] = pieces((root / file).read_text(encoding="utf-8", errors="replace"))
        except OSError:
            found[file] = []
    return found


def pieces(text: str) -> list[Piece]:
    """The pieces of a text."""
    blank = BLANKED.sub(
        lambda match: re.sub(r"[^\n]", " ", match[0]) if match[0][0] == "/" else _hollow(match[0]),
        text,
    )
    return list(_Cutter(blank.split("\n")).cut())


def _hollow(quoted: str) -> str:
    return quoted[0] + " " * (len(quoted) - 2) + quoted[-1]


class _Cutter:
    """Walks the lines of a text without comments."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.conditions: list[int] = []
        self.begun = 0  # line in which the piece at hand begins
        self.text = ""
        self.depth = 0

    def cut(self) -> Iterator[Piece]:
        """The pieces, each when it ends."""
        number = 0
        while number < len(self.lines):
            number += 1
            line = self.lines[number - 1]
            if match := DIRECTIVE.match(line):
                last = number
                while self.lines[last - 1].rstrip().endswith("\\") and last < len(self.lines):
                    last += 1
                yield from self._directive(match[1], match[2], number, last)
                number = last
                continue
            for character in line:
                self._take(character, number)
                if self._ended(character):
                    yield from self._piece(number)
            if self.text:
                self.text += "\n"

    def _take(self, character: str, number: int) -> None:
        if not self.text:
            if character.isspace() or character == ";":
                return
            self.begun = number
        self.text += character
        self.depth += (character in "{(") - (character in "})")

    def _ended(self, character: str) -> bool:
        """Whether a piece ends here.

        At a semicolon, the brace of a function, or the bracket of a macro that stands
        alone.
        """
        if self.depth > 0 or not self.text:
            return False
        if character == ";":
            return True
        if character == "}":
            return _function(self.text[: self.text.index("{")])
        return (
            character == ")"
            and re.fullmatch(r"[A-Z][A-Z0-9_]+\s*\(.*\)|module_\w+\s*\(.*\)", self.text, re.DOTALL)
            is not None
        )

    def _piece(self, last: int) -> Iterator[Piece]:
        kind, name = _kind(self.text)
        yield Piece(kind, name, self.begun, last, list(self.conditions))
        self.text, self.depth = "", 0

    def _directive(self, word: str, name: str, first: int, last: int) -> Iterator[Piece]:
        """A directive at file scope.

        Inside of a piece only its conditions count, and they are the piece's own.
        """
        if self.text:
            return
        if word in ("elif", "else", "endif") and self.conditions:
            self.conditions.pop()
        yield Piece(
            word,
            name if word in ("define", "undef", "ifdef", "ifndef") else "",
            first,
            last,
            list(self.conditions),
        )
        if word in ("if", "ifdef", "ifndef", "elif", "else"):
            self.conditions.append(first)


def _function(head: str) -> bool:
    """Whether what stands before a brace is the head of a function."""
    plain = ATTRIBUTE.sub(" ", head)
    return "=" not in plain and "(" in plain and TYPE.match(f"{plain.strip()} {{") is None


def _kind(text: str) -> tuple[str, str]:
    """What a piece is, and its name."""
    plain = ATTRIBUTE.sub(" ", text).strip()
    head = plain.partition("{")[0]
    called = CALLED.search(head.partition("=")[0])
    if match := TYPE.match(plain):
        return (
            ("type", match[1])
            if plain.rstrip(";").rstrip().endswith("}") or plain.startswith("typedef")
            else _variable(plain)
        )
    if called and _function(head):
        alone = called.start() == 0
        return ("macro" if alone else "function" if "{" in plain else "prototype"), called[1]
    return _variable(plain)


def _variable(plain: str) -> tuple[str, str]:
    match = VARIABLE.search(
        plain.partition("=")[0] if "=" in plain else plain.rpartition("}")[2] or plain
    )
    return "variable", match[1] if match else ""
