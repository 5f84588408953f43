"""clang: which one, and one unit of C into the text IR that is read."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ring3_split import programs
from ring3_split.errors import Refusal

# kCFI, whose hashes say which function a pointer may mean, came with 16; in text IR in the form
# that is read here, with 17.
OLDEST = 17
# The newest whose text was seen. A newer one is tried, and said.
NEWEST = 19
# A unit takes about half a second; the largest of a GPU driver some ten.
TIME_LIMIT = 120  # seconds
FETCHED = "clang/bin/clang"  # in ring3's cache, by lab/setup.sh clang
# The IR as written by the front end, with line numbers and kCFI's hashes. The driver would refuse
# kCFI for some targets; the front end, asked by -Xclang, does not.
READABLE = (
    "-O0",
    "-g",
    "-S",
    "-emit-llvm",
    "-Xclang",
    "-disable-llvm-passes",
    "-Xclang",
    "-fsanitize=kcfi",
)


@dataclass(frozen=True)
class Clang:
    """A clang that can be used."""

    program: Path
    version: str  # "19.1.7"

    @property
    def note(self) -> str:
        """A warning about its version, or ""."""
        if int(self.version.split(".")[0]) <= NEWEST:
            return ""
        return (
            f"clang {self.version} is newer than {NEWEST}, the newest that was tried; "
            "if reading fails, take lab/setup.sh clang"
        )

    def compile(self, source: str, output: Path, flags: tuple[str, ...], root: Path) -> str:
        """Writes the IR of `source`, which is relative to `root`.

        The first error with its place, or "" when there is none.
        """
        command = [str(self.program), "-x", "c", *flags, *READABLE, source, "-o", str(output)]
        return self.run(command, root)

    def run(self, command: list[str], root: Path) -> str:
        """Runs a command of this compiler within the time limit; its first error, or ""."""
        try:
            done = programs.run(command, root, TIME_LIMIT)
        except subprocess.TimeoutExpired:
            return f"clang took more than {TIME_LIMIT} s"
        except OSError as error:
            return f"{self.program} does not start: {error.strerror}"
        return first_error(done.stderr, done.returncode) if done.returncode else ""


def first_error(text: str, code: int) -> str:
    """The first error that clang printed, in one line."""
    lines = text.splitlines()
    for line in lines:
        if re.search(r"\b(fatal )?error:", line):
            return line.strip()
    if code < 0:
        return f"clang was ended by signal {-code}"
    return next((line.strip() for line in lines if line.strip()), f"clang failed with code {code}")


def find(named: str | None, cache: Path) -> Clang:
    """The clang that was named, else the one in the cache, else the newest tried one on PATH.

    Raises:
        Refusal: there is none, or it is too old.
    """
    if named:
        program = shutil.which(named)
        if program is None:
            raise Refusal(
                f"--clang {named}: no such program; lab/setup.sh clang fetches one that fits"
            )
        return _checked(Path(program))
    candidates = [
        str(cache / FETCHED),
        *(f"clang-{n}" for n in range(NEWEST, OLDEST - 1, -1)),
        "clang",
    ]
    for candidate in candidates:
        program = shutil.which(candidate)
        if program is not None:
            return _checked(Path(program))
    raise Refusal(
        "clang is missing: lab/setup.sh clang fetches it, or name one with --clang PROGRAM"
    )


def _checked(program: Path) -> Clang:
    # Without the time of last change, a program that is replaced by another version would be taken
    # for the old one.
    try:
        done = programs.run([str(program), "--version"], Path.cwd(), 20)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refusal(
            f"{program} does not start ({error}); lab/setup.sh clang fetches a clang that fits"
        ) from None
    found = re.search(r"clang version (\d+(?:\.\d+)*)", done.stdout)
    if found is None:
        said = (done.stdout or done.stderr).strip().splitlines()
        raise Refusal(
            f"{program} is not clang{f' (it says: {said[0]})' if said else ''}; lab/setup.sh "
            "clang fetches one"
        )
    if int(found.group(1).split(".")[0]) < OLDEST:
        why = f"{OLDEST} or later is needed, for its type hashes (kCFI)"
        raise Refusal(
            f"{program} is clang {found.group(1)}; {why}: lab/setup.sh clang fetches one that fits"
        )
    return Clang(program, found.group(1))
