"""What clang said of a driver's units, in the cache, each with the files that it was read from.

A driver's halves are generated again and again with another plan or other annotations, and clang,
asked the same, reads some thousand headers for seconds to say the same.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from ring3_split import programs
from ring3_split.errors import Refusal
from ring3_split.files import write
from ring3_split.generate.parsed import files, parsed
from ring3_split.stamps import digest, stamp

LIMIT = 120  # seconds
TICK = 20_000_000  # ns: times of files are those of the kernel's last tick
READERS = ("answers.py", "declarations.py", "parsed.py", "units.py")
LEVEL = 1  # of compression: a fifth is left

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Question:
    """A call of clang, and the state of what it is asked about."""

    folder: Path  # the kernel's in the cache
    root: Path
    key: str  # the kernel's state
    source: str
    stamp: tuple[int, int]  # the source's
    compiler: str  # its version
    command: tuple[str, ...]
    text: str
    unit: tuple[str, ...] = ()  # a command that parses what the text's first line includes

    def answer(self, kind: type[Answer], read: Callable[[str], Answer]) -> Answer:
        """What `read` makes of what clang says, from the cache if nothing has changed since.

        Raises:
            Refusal: it does not compile.
        """
        file = self._file(kind)
        known = _load(file, self.root, kind)
        if known is not None:
            return known
        start = time.time_ns() - TICK
        with tempfile.TemporaryDirectory(prefix="ring3-") as folder:
            said, names = self._ask_parsed() or self._ask(Path(folder) / "files")
        answer = read(said)
        stamps = {name: stamp(self.root / name) for name in names}
        # What changed or vanished meanwhile may have been read before.
        if all(0 < changed < start for changed, _ in stamps.values()):
            record = msgspec.json.encode(stamps)
            write(file, zlib.compress(record + b"\n" + msgspec.json.encode(answer), LEVEL))
        return answer

    def _file(self, kind: type[Answer]) -> Path:
        compiler = stamp(self.command[0])
        folder = self.folder / f"answers-{digest(self.compiler, compiler, _version())}"
        name = digest(self.key, self.source, kind, *self.command, self.text)
        return folder / f"{Path(self.source).name}.{name}.json.z"

    def _ask_parsed(self) -> tuple[str, tuple[str, ...]] | None:
        """What clang says behind the parsed unit, and the files that this was read from.

        None if there is no such unit, or a file of it has changed.
        """
        unit = parsed(self.root, (self.key, self.stamp), self.unit) if self.unit else None
        if unit is None:
            return None
        text = self.text.partition("\n")[2]
        done = self._run(("-include-pch", str(unit.file)), text)
        if done.returncode and "<stdin>:" in done.stderr:
            raise self._refusal(done)
        return None if done.returncode else (done.stdout, unit.files)

    def _ask(self, listed: Path) -> tuple[str, tuple[str, ...]]:
        done = self._run(("-MD", "-MF", str(listed)), self.text)
        if done.returncode:
            raise self._refusal(done)
        return done.stdout, tuple(files(listed))

    def _run(self, more: tuple[str, ...], text: str) -> subprocess.CompletedProcess[str]:
        try:
            return programs.run((*self.command, *more), self.root, LIMIT, text=text)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refusal(f"{self.source}: {error}") from error

    def _refusal(self, done: subprocess.CompletedProcess[str]) -> Refusal:
        errors = (line for line in done.stderr.splitlines() if "error" in line)
        return Refusal(f"{self.source}: {next(errors, done.stderr[-200:])}")


@cache
def _version() -> str:
    """Names what reads an answer: another one may read something else."""
    return digest(*((Path(__file__).parent / name).read_text() for name in READERS))


def _load(file: Path, root: Path, kind: type[Answer]) -> Answer | None:
    try:
        record, _, answer = zlib.decompress(file.read_bytes()).partition(b"\n")
        stamps = msgspec.json.decode(record, type=dict[str, tuple[int, int]])
        if any(stamp(root / name) != was for name, was in stamps.items()):
            return None
        known = msgspec.json.decode(answer, type=kind)
    except (OSError, zlib.error, msgspec.DecodeError):
        return None  # not there, or not whole: it is asked again
    with suppress(OSError):  # a cache that may only be read
        os.utime(file)
    return known
