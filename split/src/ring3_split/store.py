"""Facts in the cache: files that are whole or absent, each with what it was made from.

The facts of a unit are two files, `Unit` and `Data`, because most commands need only the first. A
file tells the state that it is of: the kernel's key, the unit's flags, and the files that it was
read from beyond the kernel's own headers. Which reader and which clang made it stands in the
folder's name, so that two versions do not write over each other.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from ring3_split import model
from ring3_split.files import refused, write
from ring3_split.kernel import Kernel, macros
from ring3_split.model import Data, Module, Unit
from ring3_split.stamps import digest, stamp

# Facts that an older version made are kept for a while, for whoever still runs it.
KEPT = 14 * 86400  # seconds
# JSON of facts shrinks to a sixth, and is read from the disk faster so.
LEVEL = 1
PACKAGE = Path(__file__).parent

Fact = TypeVar("Fact", Unit, Data)


class Record(msgspec.Struct, frozen=True):
    """What stands before the facts in a file."""

    key: str
    files: dict[str, tuple[int, int]]  # source and headers of its own -> stamp


@dataclass(frozen=True)
class Store:
    """The facts of one kernel, by one reader and one clang."""

    kernel: Kernel
    folder: Path
    _stamps: dict[str, tuple[int, int]] = field(default_factory=dict)

    def unit(self, module: Module, source: str) -> Unit | None:
        """The facts of a unit, if they are there and of its present state."""
        return self._load(module, source, Unit)

    def data(self, module: Module, source: str) -> Data | None:
        """The data facts of a unit, if they are there and of its present state."""
        return self._load(module, source, Data)

    def put(self, module: Module, facts: tuple[Unit, Data], source: str, files: list[str]) -> None:
        """Keeps the facts of a unit that was read from `files`.

        `Unit` last, so that where it is, `Data` is.
        """
        root = self.kernel.root
        record = msgspec.json.encode(
            Record(self._key(module, source), {f: stamp(root / f) for f in files})
        )
        for fact in reversed(facts):
            write(
                self._file(module, source, type(fact)),
                zlib.compress(record + b"\n" + msgspec.json.encode(fact), LEVEL),
            )

    def _load(self, module: Module, source: str, kind: type[Fact]) -> Fact | None:
        try:
            content = zlib.decompress(self._file(module, source, kind).read_bytes())
            record, _, facts = content.partition(b"\n")
            if self._current(msgspec.json.decode(record, type=Record), module, source):
                return msgspec.json.decode(facts, type=kind)
        except (OSError, zlib.error, msgspec.DecodeError):
            pass  # not there, or not whole: it is read anew
        return None

    def _current(self, record: Record, module: Module, source: str) -> bool:
        return record.key == self._key(module, source) and all(
            self._stamp(f) == s for f, s in record.files.items()
        )

    def _stamp(self, file: str) -> tuple[int, int]:
        known = self._stamps.get(file)
        if known is None:
            known = self._stamps[file] = stamp(self.kernel.root / file)
        return known

    def _key(self, module: Module, source: str) -> str:
        return digest(
            self.kernel.key, *self.kernel.own_flags(module, source), *macros(module, source)
        )

    def _file(self, module: Module, source: str, kind: type[Unit] | type[Data]) -> Path:
        name = f"{posixpath.basename(source)}.{kind.__name__.lower()}.json.z"
        return self.folder / posixpath.dirname(source) / module.name / name


def open_store(kernel: Kernel) -> Store:
    """The store of a kernel for the reader and the clang that are used now.

    Those that nobody used for long are removed.
    """
    name = f"facts-{digest(model.VERSION, reader_version(), kernel.compiler.version)}"
    folder = kernel.folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
    except OSError as error:
        raise refused(error, folder) from None
    for pattern in ("facts-*", "modules-*", "exporters-*", "answers-*/*", "pch/*"):
        for other in kernel.folder.glob(pattern):
            if time.time() - stamp(other)[0] / 1e9 > KEPT:
                shutil.rmtree(other, ignore_errors=True) if other.is_dir() else other.unlink(
                    missing_ok=True
                )
    return Store(kernel, folder)


def reader_version() -> str:
    """A name for the reader as it is: its own source files, with their tables."""
    return digest(*(f"{file.name} {digest(file.read_text())}" for file in _reader_files()))


def _reader_files() -> Iterator[Path]:
    yield PACKAGE / "model.py"
    for folder in ("ir", "reader"):
        for ending in ("*.py", "*.toml"):
            yield from sorted((PACKAGE / folder).rglob(ending))
