"""What the IR does not keep and the source text has.

Where a body ends, `inline`, and the word at a place.

# Paths
Facts name files relative to the tree. A distribution keeps its headers in folders of their own, and
generated files may be anywhere: such a path is cut to the part that the tree has too, or, for
generated headers, from `include/` or `arch/` on, or else to what would be in a folder of the tree.

# Ends
Debug information has the first line of a function and of its body, not the last. The end is the
brace that closes the body; comments, strings and all but one branch of `#if` are skipped. A body
that a macro wrote has no brace of its own in the file: it ends where its last instruction is.
"""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path, PurePosixPath

_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
    r"""|^[ \t]*\#[ \t]*(?P<directive>if|el|endif)|[{}]""",
    re.DOTALL | re.MULTILINE,
)
_INLINE = re.compile(r"\b(?:__)?(?:always_)?inline(?:__)?\b|\bINLINE\b")
_ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b")
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
_WORD = re.compile(r"\w+")
_MEMBERS = re.compile(r"\w+(?:\s*(?:\.|->)\s*\w+)*")
_GENERATED = re.compile(r"/((?:arch/[^/]+/include|include)/.*)")


class Text:
    """One source file."""

    def __init__(self, path: str) -> None:
        try:
            self.text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:  # moved since it was compiled: what only the text tells is then not known
            self.text = ""
        self.lines = self.text.split("\n")
        self._starts = [0, *accumulate(map(len, self.lines))]

    def start(self, number: int) -> int:
        """Where a line begins in the text."""
        return self._starts[number - 1] + number - 1

    def line(self, number: int) -> str:
        """A line, from 1; "" when there is none."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def closing_brace(self, number: int) -> int:
        """The line that closes the first brace of line `number`.

        0 when there is no brace there, or it is never closed.
        """
        if "{" not in self.line(number):
            return 0
        depth = 0
        branches: list[int] = []
        for match in _TOKEN.finditer(self.text, self.start(number)):
            mark = match[0]
            if mark == "{":
                depth += 1
            elif mark == "}":
                depth -= 1
                if depth == 0:
                    return number + self.text.count("\n", self.start(number), match.start())
            elif match["directive"]:
                depth = _branch(match["directive"], depth, branches)
        return 0

    def inline(self, number: int, name: str) -> bool:
        """Whether the function that is named in line `number` is declared inline there."""
        line = self.line(number)
        head = line[
            : next((word.start() for word in _WORD.finditer(line) if word[0] == name), len(line))
        ]
        above = "".join(
            f"{self.line(before).rstrip()} " for before in range(self.first(number), number)
        )
        return bool(_INLINE.search(above + head))

    def first(self, number: int) -> int:
        """The line in which the declaration begins whose name is in line `number`.

        Its type may stand above.
        """
        for before in range(number - 1, max(number - 5, 0), -1):
            text = self.line(before).rstrip()
            if not text or text[-1] in ";}/{:\\" or text[0] in "#/ *":
                return before + 1
        return max(number - 4, 1)

    def words(self, number: int, column: int) -> list[str]:
        """The identifier at a column, from 1, and the members after it with dots and arrows."""
        match = _MEMBERS.match(self.line(number), column - 1) if column else None
        return _WORD.findall(match[0]) if match else []

    def assembly_macros(self) -> set[str]:
        """The macros of this file that have inline assembly in them."""
        return (
            {match[1] for match in _DEFINE.finditer(self.text) if _ASM.search(match[2])}
            if "asm" in self.text
            else set()
        )


def _branch(directive: str, depth: int, branches: list[int]) -> int:
    """The depth of braces after a conditional directive.

    Each branch begins as deep as the first did.
    """
    if directive == "if":
        branches.append(depth)
    elif branches:
        return branches[-1] if directive == "el" else (branches.pop(), depth)[1]
    return depth


class Sources:
    """The files of one unit."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._texts: dict[str, Text] = {}
        self._relative: dict[str, str] = {}
        self._folders: list[str] = []  # that have stood for the root so far

    def text(self, path: str) -> Text:
        """A file, by its absolute path, or else by that of the tree's own copy."""
        if path not in self._texts:
            self._texts[path] = Text(
                path if Path(path).is_file() else str(self._root / self.relative(path))
            )
        return self._texts[path]

    def relative(self, path: str) -> str:
        """A path relative to the tree."""
        if path not in self._relative:
            self._relative[path] = self._cut(path)
        return self._relative[path]

    def _cut(self, path: str) -> str:
        whole = PurePosixPath(_normal(path))
        if whole.is_relative_to(self._root):
            return str(whole.relative_to(self._root))
        text = str(whole)
        for folder in self._folders:
            if text.startswith(folder):
                return text[len(folder) :]
        ends = ["/".join(whole.parts[first:]) for first in range(2, len(whole.parts) - 1)]
        for end in ends:
            if (self._root / end).is_file():
                self._folders.append(text[: -len(end)])
                return end
        beside = next((end for end in ends if (self._root / end).parent.is_dir()), "")
        generated = _GENERATED.search(text)
        return generated[1] if generated else beside or text


def _normal(path: str) -> str:
    """A path without "." and ".."."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] not in ("", ".."):
            parts.pop()
        elif part != "." and (part or not parts):
            parts.append(part)
    return "/".join(parts)
