"""The source of a driver without some of its functions.

Nothing is moved or reformatted: what goes is wrapped in `#if 0`, and `#line` keeps the numbers of
the original, so that a debugger and the compiler's messages speak of the file that people know.
Macros that a function defines stay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ring3_split.errors import Refusal

INCLUDE = re.compile(r"\s*#\s*include\b")
CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|endif)\b")
DEFINE = re.compile(r"\s*#\s*(define|undef)\b")


def body(lines: list[str], first: int, last: int) -> int:
    """The line behind the brace that opens a function's body."""
    return (
        next(number for number in range(first, last + 1) if lines[number - 1].startswith("{")) + 1
    )


@dataclass
class Slice:
    """A source file in the making."""

    path: str  # of the original, as it is named in messages
    lines: list[str]
    replaced: dict[tuple[int, int], str] = field(
        default_factory=dict
    )  # first and last line -> what stands there
    before: dict[int, str] = field(default_factory=dict)  # line -> what stands before it
    behind_includes: str = ""
    end: str = ""

    def replace(self, first: int, last: int, text: str = "") -> None:
        """Leaves out some lines."""
        for begin, end in self.replaced:
            if begin <= last and first <= end:
                raise Refusal(
                    f"{self.path}:{first}: two functions share lines, which cannot be taken apart"
                )
        self.replaced[first, last] = text

    def put_before(self, line: int, text: str) -> None:
        """Puts something before a line, behind what is there already."""
        self.before[line] = f"{self.before[line]}\n{text}" if line in self.before else text

    def text(self) -> str:
        """The file."""
        after = self._last_include()
        out = [f'#line 1 "{self.path}"']
        starts = {first: (last, text) for (first, last), text in self.replaced.items()}
        number = 1
        while number <= len(self.lines):
            if number in self.before:
                out += [self.before[number], f'#line {number} "{self.path}"']
            if number in starts:
                last, text = starts[number]
                out += self._without(number, last)
                out += [*([text] if text else []), f'#line {last + 1} "{self.path}"']
                number = last + 1
                continue
            out.append(self.lines[number - 1])
            if number == after and self.behind_includes:
                out += [self.behind_includes, f'#line {number + 1} "{self.path}"']
            number += 1
        return "\n".join(out) + "\n" + self.end

    def _without(self, first: int, last: int) -> list[str]:
        """The lines as they are, but not compiled; macros among them are."""
        out, number = ["#if 0"], first
        while number <= last:
            line = self.lines[number - 1]
            if DEFINE.match(line):
                out.append("#endif")
                while line.endswith("\\") and number < last:
                    out.append(line)
                    number += 1
                    line = self.lines[number - 1]
                out += [line, "#if 0"]
            else:
                out.append(line)
            number += 1
        return [*out, "#endif"]

    def _last_include(self) -> int:
        """The last line that includes something whatever the configuration is."""
        depth, last = 0, 0
        for number, line in enumerate(self.lines, 1):
            condition = CONDITION.match(line)
            if condition:
                depth += -1 if condition[1] == "endif" else 1
            elif depth == 0 and INCLUDE.match(line):
                last = number
        return last


def local_static(lines: list[str], first: int, last: int, name: str) -> tuple[int, int, str]:
    """First and last line and text of `static ... NAME = ...;` in a function.

    Raises:
        Refusal: it is not there in a form that can be moved.
    """
    start = next(
        (n for n in range(first, last + 1) if re.match(rf"\s*static\b.*\b{name}\b", lines[n - 1])),
        0,
    )
    end = next(
        (n for n in range(start, last + 1) if start and lines[n - 1].rstrip().endswith(";")), 0
    )
    if not end:
        raise Refusal(
            f"the static variable {name} in lines {first} to {last} cannot be moved out of its "
            "function"
        )
    return start, end, "\n".join(lines[start - 1 : end])
