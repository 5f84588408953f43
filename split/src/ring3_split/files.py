"""Files in the cache: whole or absent."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from ring3_split.errors import Refusal

FULL = (errno.ENOSPC, errno.EDQUOT)


def write(file: Path, content: bytes, *, once: bool = False) -> None:
    """Puts a file in its place in one step.

    Whoever reads sees the old one or the new one, also when we are killed.

    With `once`, a file that is there stays as it is.

    Raises:
        Refusal: the disk is full, or the folder cannot be written.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        if once:
            with contextlib.suppress(FileExistsError):
                file.hardlink_to(temporary)
            temporary.unlink()
        else:
            temporary.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise refused(error, file) from None


def refused(error: OSError, file: Path) -> Refusal:
    """What to say of a file that cannot be written."""
    if error.errno in FULL:
        return Refusal(
            f"no room left in {file.parent}: free some, or name another for facts with --cache; "
            "what was read is kept"
        )
    return Refusal(
        f"{file} cannot be written: {error.strerror}; name another folder for facts with --cache "
        "FOLDER"
    )
