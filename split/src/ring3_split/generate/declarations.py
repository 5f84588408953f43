"""Functions as a preprocessed unit declares and defines them.

Their text, their lines and their parameters.

clang's IR knows a function by its first line and its debug types; a generator needs the text of its
declaration, and that of the kernel's functions which the unit only declares. After the
preprocessor, C at file scope is simple enough to be read by its brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

TOKEN = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^# (\d+) "([^"\n]+)"[^\n]*|[{}();]|\n',
    re.MULTILINE,
)
ATTRIBUTE = re.compile(
    r"\b__attribute__\s*\(\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)\)"
    r"|\b(?:__asm__|asm)\b[^()]*\((?:[^()]|\([^()]*\))*\)|\b__extension__\b|\b_Noreturn\b"
)
VARIABLE = re.compile(r"\bextern\s+(?:const\s+)?struct\s+(\w+)\s+(\w+)\s*[;\[]")
SPACE = re.compile(r"\s*")
NAME = re.compile(r"([A-Za-z_]\w*)\s*\(")
SPECIFIERS = re.compile(r"\b(static|extern|inline|__inline__|__inline|register)\b")
# Declarations of headers, which the units of a driver have in common, are read once.
KEPT = 1 << 15
NO_NAMES = (
    "if",
    "while",
    "for",
    "switch",
    "return",
    "sizeof",
    "typeof",
    "__typeof__",
    "_Static_assert",
    "__attribute__",
)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function."""

    type: str
    name: str

    @property
    def pointer(self) -> bool:
        """Whether it is passed as an address."""
        return "*" in self.type or "[" in self.type


@dataclass(frozen=True)
class Declared:
    """A function, declared or defined."""

    name: str
    returns: str
    parameters: tuple[Parameter, ...]
    variadic: bool
    text: str  # the declaration without attributes, as in "static int f(struct x *y)"
    file: str
    first: int  # lines in the file
    last: int
    defined: bool

    @property
    def inline(self) -> bool:
        """Whether it has no symbol that a call could be sent to."""
        return self.defined and bool(re.search(r"\bstatic\b", self.text))


@dataclass
class Unit:
    """What a unit has at file scope."""

    functions: dict[str, Declared]  # a definition goes before a declaration
    structs: set[str]  # that are defined in it
    variables: dict[str, str]  # of the kernel, that it declares -> struct

    def definition(self, name: str, file: str) -> Declared | None:
        """A function's definition in a file, if the source has its text and no macro made it."""
        found = self.functions.get(name)
        return found if found and found.defined and found.file == file else None


def read(text: str) -> Unit:
    """Reads a preprocessed unit."""
    structs = set(
        re.findall(r"\b(?:struct|union)\s+(\w+)(?:\s+__attribute__\s*\(\(.*?\)\))?\s*\{", text)
    )
    unit = Unit({}, structs, {name: struct for struct, name in VARIABLE.findall(text)})
    for chunk in _chunks(text):
        found = _function(*chunk)
        if found and (found.defined or found.name not in unit.functions):
            unit.functions[found.name] = found
    return unit


@dataclass
class _Chunk:
    """A declaration that is being read."""

    start: int
    first: int = 0  # its first line; 0 before its first word
    body: int = -1
    depth: int = 0

    def take(self, what: str, at: int, text: str) -> bool | None:
        """Goes over a bracket or a semicolon.

        At the end of the declaration: whether it has a function's body.
        """
        if what in ("(", "{"):
            if what == "{" and self.depth == 0 and self.body < 0:
                self.body = at
            self.depth += 1
        elif what in (")", "}"):
            self.depth -= 1
            if what == "}" and self.depth == 0 and _is_head(text[self.start : self.body]):
                return True
        elif what == ";" and self.depth == 0:
            return False
        return None


def _chunks(text: str) -> Iterator[tuple[str, str, int, int, bool]]:
    """Each declaration at file scope.

    Text before a body, file, first and last line, whether it has a function's body.
    """
    file, line, chunk = "", 1, _Chunk(0)
    for token in TOKEN.finditer(text):
        if token[0] == "\n" or token[1]:
            line = int(token[1]) - 1 if token[1] else line + 1
            file = token[2] or file
            if not chunk.first and not text[chunk.start : token.start()].strip():
                chunk.start = token.end()
            continue
        if not chunk.first:
            begin = SPACE.match(text, chunk.start)
            chunk.first = line - text.count(
                "\n", begin.end() if begin else chunk.start, token.start()
            )
        ended = chunk.take(token[0], token.start(), text)
        if ended is not None:
            end = chunk.body if ended else token.start()
            yield text[chunk.start : end], file, chunk.first, line, ended
            chunk = _Chunk(token.end())


def _is_head(text: str) -> bool:
    plain = ATTRIBUTE.sub("", _without_lines(text)).strip()
    return plain.endswith(")") and "=" not in plain and not plain.startswith("typedef")


def _without_lines(text: str) -> str:
    return re.sub(r"^# \d+.*$", "", text, flags=re.MULTILINE)


@lru_cache(KEPT)
def _function(text: str, file: str, first: int, last: int, defined: bool) -> Declared | None:
    plain = " ".join(ATTRIBUTE.sub(" ", _without_lines(text)).split())
    named = NAME.search(plain)
    if (
        not named
        or "=" in plain
        or "{" in plain
        or plain.startswith("typedef")
        or named[1] in NO_NAMES
    ):
        return None
    end = closing(plain, named.end() - 1)
    if end < 0 or plain[end + 1 :].strip():
        return None
    inner = [part.strip() for part in split(plain[named.end() : end])]
    variadic = inner[-1:] == ["..."]
    inner = [] if inner in (["void"], [""]) else inner[: len(inner) - variadic]
    returns = " ".join(SPECIFIERS.sub("", plain[: named.start()]).split())
    read = (_parameter(part) for part in inner)
    # A prototype need not name them.
    parameters = tuple(
        one if one.name else Parameter(one.type, f"arg{n}") for n, one in enumerate(read)
    )
    return Declared(
        named[1], returns, parameters, variadic, plain[: end + 1], file, first, last, defined
    )


def closing(text: str, opening: int) -> int:
    """Where a parenthesis is closed; -1: nowhere."""
    depth = 0
    for index in range(opening, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    return -1


def split(text: str) -> list[str]:
    """Parts at the outer commas."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]


@lru_cache(KEPT)
def _parameter(text: str) -> Parameter:
    """A parameter: "const struct x *y" is of the type "const struct x *"."""
    pointer = re.search(r"\(\s*\*\s*(?:const\s+)?(\w*)\s*\)", text)
    if pointer:
        return Parameter(text.replace(pointer[0], "(*)", 1), pointer[1])
    array = re.fullmatch(r"(.*?)(\w+)\s*(\[[^\]]*\])+", text)
    if array:
        return Parameter(f"{array[1].strip()} *", array[2])
    match = re.fullmatch(r"(.*[\s*])(\w+)", text)
    if (
        match
        and match[1].strip()
        and match[2] not in ("int", "long", "char", "short", "unsigned", "const")
    ):
        last = match[1].split()[-1:] or [""]
        if last[0] not in ("struct", "enum", "union", "const") or "*" in match[1]:
            return Parameter(match[1].strip(), match[2])
    return Parameter(text, "")
