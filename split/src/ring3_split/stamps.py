"""Whether files are as they were: time of last change and size, as make and ninja judge it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path


def stamp(path: str | Path) -> tuple[int, int]:
    """(time in ns, size in bytes) of a file; (0, 0) when there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - it is called some ten thousand times
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def digest(*parts: object) -> str:
    """A short name for what the parts say: equal parts, equal name."""
    return hashlib.sha256("\0".join(str(part) for part in parts).encode()).hexdigest()[:16]


def digest_of_files(root: Path, files: Iterable[str]) -> str:
    """A name for the present state of files below `root`."""
    return digest(*(f"{file} {stamp(root / file)}" for file in files))


def digest_of_folders(folders: Iterable[Path]) -> str:
    """A name for the present state of all files in some folders."""
    state = hashlib.sha256()
    for folder in folders:
        waiting = [str(folder)]
        while waiting:
            directory = waiting.pop()
            try:
                entries = sorted(os.scandir(directory), key=lambda e: e.name)
            except OSError:
                continue
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.name.endswith(".h"):
                    state.update(f"{entry.path} {stamp(entry.path)}\n".encode())
    return state.hexdigest()[:16]
