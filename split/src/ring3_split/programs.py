"""Programs of the host: compilers and make."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_NOTHING: Mapping[str, str] = {}


def environment() -> dict[str, str]:
    """What a program needs of the environment.

    No variable of it adds folders or speaks another language.
    """
    return {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "TMPDIR")} | {
        "LC_ALL": "C"
    }


def run(
    command: Sequence[str],
    folder: Path,
    seconds: int,
    names: Mapping[str, str] = _NOTHING,
    text: str = "",
) -> subprocess.CompletedProcess[str]:
    """Runs a program in a folder with `text` as its input, and takes what it says.

    Raises:
        subprocess.TimeoutExpired: it took longer than `seconds`, and was ended.
        OSError: it does not start.
    """
    return subprocess.run(
        command,
        cwd=folder,
        env=environment() | dict(names),
        input=text,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )
