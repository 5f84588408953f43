"""Units that clang has parsed once in this process, for many questions about what they declare.

Half of the questions of a driver are about one unit, and to parse its headers takes a second or
two. From a unit that was compiled like a header, clang reads what a question needs.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ring3_split import programs

LIMIT = 120  # seconds
KEPT = 4  # units: some 20 megabytes each
WORD = re.compile(r"(?:\\[ #]|\$\$|\S)+")

# A unit that cannot be compiled so is None.
_units: OrderedDict[tuple[object, ...], Parsed | None] = OrderedDict()


@dataclass(frozen=True)
class Parsed:
    """A unit as `-include-pch` takes it."""

    file: Path
    files: tuple[str, ...]  # that it was read from


def parsed(root: Path, state: object, command: tuple[str, ...]) -> Parsed | None:
    """The unit that a command names, parsed by it; None where it does not compile.

    `state` names the unit's present text. Of a header that has changed since, clang says so.
    """
    key = (root, state, command)
    if key not in _units:
        _units[key] = _parse(root, command)
    _units.move_to_end(key)
    while len(_units) > KEPT:
        _, old = _units.popitem(last=False)
        if old is not None:
            old.file.unlink(missing_ok=True)
    return _units[key]


def _parse(root: Path, command: tuple[str, ...]) -> Parsed | None:
    with tempfile.NamedTemporaryFile(dir=_folder().name, suffix=".pch", delete=False) as made:
        file = Path(made.name)
    listed = file.with_suffix(".d")
    try:
        done = programs.run((*command, "-MD", "-MF", str(listed), "-o", str(file)), root, LIMIT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Parsed(file, tuple(files(listed))) if done.returncode == 0 else None


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="ring3-units-")


def files(rule: Path) -> list[str]:
    """The files of a rule for make that clang has written, but for its own input."""
    words = WORD.findall(rule.read_text(errors="replace").replace("\\\n", " "))
    names = (re.sub(r"\\([ #])", r"\1", word).replace("$$", "$") for word in words[1:])
    return sorted({name for name in names if name not in ("-", "<stdin>")})
