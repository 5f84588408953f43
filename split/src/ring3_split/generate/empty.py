"""The empty driver of `runtime/empty`, by which crossings are measured.

Built, or found in the cache.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ring3_split.errors import Refusal
from ring3_split.generate.build import RUN_TIME, gcc, link, make
from ring3_split.generate.halves import RUNTIME
from ring3_split.kernel import Kernel
from ring3_split.profile.build import alone, compiler
from ring3_split.stamps import digest


@dataclass(frozen=True)
class Empty:
    """Both halves."""

    module: Path
    program: Path


def build(kernel: Kernel, runtime: Path) -> Empty:
    """Builds both halves; `runtime` is the run time's module.

    Raises:
        Refusal: something does not compile.
    """
    sources = sorted(path for path in RUNTIME.rglob("*") if path.is_file())
    name = digest(kernel.name, compiler(), *RUN_TIME, *(path.read_text() for path in sources))
    place = kernel.folder / "modules" / f"split_empty-{name}"
    found = Empty(place / "empty/split_empty.ko", place / "user/split-empty")
    with alone(place):
        if not found.program.exists():
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(RUNTIME, place)
            make(
                kernel, found.module, [f"KBUILD_EXTRA_SYMBOLS={runtime.parent / 'Module.symvers'}"]
            )
            link_program(found.program)
    return found


def link_program(program: Path) -> None:
    """Makes the user half, which needs no kernel.

    Raises:
        Refusal: it does not compile.
    """
    sources = [
        *sorted((RUNTIME / "user").glob("*.c")),
        RUNTIME / "empty/tables.c",
        RUNTIME / "empty/user.c",
    ]
    flags = [*RUN_TIME, "-Wno-missing-field-initializers", "-Wno-unused-const-variable", "-c"]
    done = link(
        [gcc(flags, source, program.parent / f"{source.stem}.o") for source in sources], program
    )
    if done.returncode:
        raise Refusal(
            "the user half of the empty driver does not link: "
            f"{done.stderr.strip().splitlines()[-1]}"
        )
