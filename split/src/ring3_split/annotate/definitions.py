"""Constants and structs that an answer names, looked up in the driver and kernel headers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path


class Definitions:
    """What the source defines.

    Files are read once, the driver's own first, and only when something is not known otherwise.
    """

    def __init__(self, root: Path, directories: tuple[str, ...]) -> None:
        self.root = root
        self.directories = directories

    def constant(self, name: str) -> bool:
        """Whether a macro or an enumerator has this name."""
        return self._somewhere(
            re.compile(rf"^\s*#\s*define\s+{name}\b|^\s*{name}\s*(,|=|$|/\*)", re.M)
        )

    def struct(self, name: str) -> bool:
        """Whether a struct or union of this name is defined."""
        return self._somewhere(
            re.compile(rf"^\s*(?:typedef\s+)?(?:struct|union)\s+{name}\s*\{{", re.M)
        )

    def _somewhere(self, pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(text) for text in self._own) or any(
            pattern.search(path.read_text(errors="replace")) for path in self._headers()
        )

    @cached_property
    def _own(self) -> list[str]:
        folders = [self.root / directory for directory in self.directories]
        return [
            path.read_text(errors="replace")
            for folder in folders
            for path in sorted(folder.glob("*.[ch]"))
        ]

    def _headers(self) -> Iterator[Path]:
        for folder in ("include/uapi", "include/linux", "include/net", "include/sound", "include"):
            yield from sorted((self.root / folder).rglob("*.h"))
