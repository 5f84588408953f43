"""A loaded module: from guest addresses to functions, and to inlined ones around a call."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ring3_split.errors import Refusal
from ring3_split.profile.elf import Object


@dataclass(frozen=True)
class Frame:
    """A function that an instruction belongs to.

    `file` is a path relative to the tree, or a base name when no more is known.
    """

    name: str
    file: str


@dataclass
class Image:
    """A module's file and where its sections lay."""

    module: str
    object: Object
    places: dict[str, int]
    roots: tuple[
        Path, ...
    ] = ()  # folders that its line information has paths below; none: it has no such information
    loaded: int = 0  # the epoch in which it was loaded
    _ranges: list[tuple[int, int, int]] = field(default_factory=list)  # (begin, end, section)
    _hooks: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        for name, address in self.places.items():
            number = self.object.number(name)
            if number is not None and self.object.sections[number].code:
                self._ranges.append((address, address + self.object.sections[number].size, number))
        self._hooks = frozenset(self.object.hooks())

    def locate(self, address: int, epoch: int) -> tuple[int, int] | None:
        """(section, offset) of an address, if it is in this module.

        Memory of init code is somebody else's afterwards.
        """
        for begin, end, number in self._ranges:
            if begin <= address < end:
                initial = self.object.sections[number].name.startswith(".init")
                if epoch == self.loaded or (epoch > self.loaded and not initial):
                    return number, address - begin
        return None

    def entered(self, address: int, epoch: int) -> Frame | None:
        """The function whose hook is at an address."""
        place = self.locate(address, epoch)
        if place not in self._hooks:
            return None
        return self.symbol(place)

    def symbol(self, place: tuple[int, int]) -> Frame | None:
        """The function whose code is at a place, by the symbol table."""
        found = self.object.function(*place)
        return Frame(found[0].name, found[0].file) if found else None

    def visible(self) -> list[Frame]:
        """The functions that have a hook."""
        return [frame for frame in (self.symbol(place) for place in sorted(self._hooks)) if frame]

    def frames(self, places: Iterable[tuple[int, int]]) -> dict[tuple[int, int], tuple[Frame, ...]]:
        """The functions at each place, the innermost inlined one first."""
        wanted = sorted(set(places))
        if not self.roots:
            symbols = ((place, self.symbol(place)) for place in wanted)
            return {place: (frame,) for place, frame in symbols if frame}
        found = {}
        for section in sorted({section for section, _ in wanted}):
            offsets = [offset for other, offset in wanted if other == section]
            for offset, frames in zip(offsets, self._lines(section, offsets), strict=True):
                found[section, offset] = frames
        return found

    def _lines(self, section: int, offsets: Sequence[int]) -> list[tuple[Frame, ...]]:
        program = shutil.which("addr2line")
        if not program:
            raise Refusal(
                "addr2line is missing, which reads line information: apt-get install binutils"
            )
        command = [
            program,
            "-a",
            "-i",
            "-f",
            "-e",
            str(self.object.path),
            "-j",
            self.object.sections[section].name,
        ]
        text = "".join(f"{offset:#x}\n" for offset in offsets)
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            raise Refusal(f"addr2line does not read {self.object.path}: {done.stderr.strip()}")
        return parse_lines(done.stdout, self.roots)


def parse_lines(text: str, roots: Sequence[Path]) -> list[tuple[Frame, ...]]:
    """Reads what `addr2line -a -i -f` prints.

    An address, then for each frame a line with the function and one with the place.
    """
    found: list[list[Frame]] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("0x"):
            found.append([])
        else:
            found[-1].append(Frame(line, _relative(next(lines, "").rpartition(":")[0], roots)))
    return [tuple(frame for frame in frames if frame.name != "??") for frames in found]


def _relative(path: str, roots: Sequence[Path]) -> str:
    plain = os.path.normpath(path)
    for root in roots:
        if plain.startswith(f"{root}/"):
            return plain[len(str(root)) + 1 :]
    return plain
