"""Common kernel headers, compiled once for many units: about half of a unit's time is theirs.

A unit is compiled with them when it cannot tell the difference, and without when it might: when one
of its flags, or a macro that it defines before its last `#include <...>`, has a name that the
headers speak of, or when the headers are in its way and clang finds an error. What remains is a
unit that asks by `#ifdef` for a macro of a header that it does not include, and the numbers by
which macros make a name unique.
"""

from __future__ import annotations

import re
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ring3_split.clang import Clang
from ring3_split.errors import Refusal
from ring3_split.files import write
from ring3_split.stamps import digest

TABLE = Path(__file__).with_name("precompiled.toml")
# Names whose meaning may differ: they end in the text of messages and in the names of module
# parameters, never in a fact.
HARMLESS = frozenset({"pr_fmt", "dev_fmt", "KMSG_COMPONENT"})
# Inline functions of headers speak of these. Set and taken back in the text, they may differ on the
# command line of a unit.
NAMES = {
    "KBUILD_BASENAME": '"headers"',
    "KBUILD_MODNAME": '"headers"',
    "__KBUILD_MODNAME": "kmod_headers",
    "KBUILD_MODFILE": '"headers"',
}
DEFINED = re.compile(r"^[ \t]*#[ \t]*(?:define|undef)[ \t]+(\w+)", re.MULTILINE)
INCLUDED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<", re.MULTILINE)


@dataclass(frozen=True)
class Headers:
    """Compiled headers, and all names in their text."""

    file: Path
    names: frozenset[str]

    def fit(self, text: str, own_flags: tuple[str, ...]) -> bool:
        """Whether a unit with this text and these flags of its own reads the same with them."""
        if any(not flag.startswith(("-I", "-D")) for flag in own_flags):
            return False
        given = {re.split(r"[=(]", flag[2:])[0] for flag in own_flags if flag.startswith("-D")}
        last = max((match.start() for match in INCLUDED.finditer(text)), default=0)
        given.update(DEFINED.findall(text, 0, last))
        return not (given - HARMLESS) & self.names


def headers_for(source: str) -> tuple[str, ...]:
    """The headers that units of the source's folder have in common."""
    for entry in tomllib.loads(TABLE.read_text())["headers"]:
        if any(PurePosixPath(source).is_relative_to(folder) for folder in entry["folders"]):
            return tuple(entry["include"])
    return ()


class Precompiler:
    """Makes compiled headers on first demand and remembers those that cannot be made."""

    def __init__(self, compiler: Clang, root: Path, folder: Path, key: str) -> None:
        """`key` names the kernel's state, `folder` is where the headers are kept."""
        self._compiler, self._root, self._folder, self._key = compiler, root, folder, key
        self._made: dict[tuple[object, ...], Headers | None] = {}

    def headers(self, source: str, flags: tuple[str, ...]) -> Headers | None:
        """The headers for a unit, compiled with `flags`, which all units of a kind share.

        None when they do not compile.
        """
        wanted = headers_for(source)
        known = (wanted, flags)
        if known not in self._made:
            self._made[known] = self._make(wanted, flags) if wanted else None
        return self._made[known]

    def _make(self, wanted: tuple[str, ...], flags: tuple[str, ...]) -> Headers | None:
        present = [
            h
            for h in wanted
            if any((self._root / d / h).is_file() for d in ("include", "include/uapi"))
        ]
        lines = [f"#define {macro} {value}" for macro, value in NAMES.items()]
        lines += [f"#include <{header}>" for header in present] + [
            f"#undef {macro}" for macro in NAMES
        ]
        text = "\n".join([*lines, ""])
        name = digest(self._key, self._compiler.program, self._compiler.version, *flags, text)
        made, names = self._folder / f"{name}.pch", self._folder / f"{name}.names"
        try:
            if made.is_file():
                return Headers(made, frozenset(names.read_text().split()))
        except OSError:
            pass  # not whole: made again
        # clang compares the text's time with that in what it has compiled, which may be another
        # process's: the first one stays.
        write(self._folder / f"{name}.h", text.encode(), once=True)
        return self._compile(made, names, flags)

    def _compile(self, made: Path, names: Path, flags: tuple[str, ...]) -> Headers | None:
        # Several processes may make the same at once; the last one stays.
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="making-") as folder:
            listed, new = Path(folder) / "headers.d", Path(folder) / "headers.pch"
            command = [
                str(self._compiler.program),
                "-x",
                "c-header",
                *flags,
                "-O0",
                "-g",
                "-Xclang",
                "-fsanitize=kcfi",
            ]
            command += ["-MD", "-MF", str(listed), str(made.with_suffix(".h")), "-o", str(new)]
            if self._compiler.run(command, self._root):
                return None
            found = names_of(self._root, dependencies(listed))
            write(names, "\n".join(sorted(found)).encode())
            new.replace(made)
        return Headers(made, found)


def names_of(root: Path, files: list[str]) -> frozenset[str]:
    """All names in the text of some files."""
    names: set[str] = set()
    for file in files:
        names.update(re.findall(r"[A-Za-z_]\w*", (root / file).read_text(errors="replace")))
    return frozenset(names)


def dependencies(listed: Path) -> list[str]:
    """The files that a unit was read from, as clang lists them for make; the source first."""
    try:
        text = listed.read_text(errors="replace")
    except OSError as error:
        raise Refusal(f"{listed}: {error.strerror}; is there room for temporary files?") from None
    words = text.partition(":")[2].replace("\\\n", " ").replace("\\ ", "\0").split()
    return [word.replace("\0", " ") for word in words]
