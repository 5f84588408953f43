"""What a user half is looked at with in a guest: gdb, valgrind's memcheck, AddressSanitizer.

And how it is started.
"""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from ring3_split import programs
from ring3_split.errors import Refusal
from ring3_split.generate.build import Form

GDB = (
    "gdb",
    "-q",
    "-nx",
    "-iex",
    "set startup-with-shell off",
    "-iex",
    "set pagination off",
    "-iex",
    "handle SIGSTOP nostop noprint",
)
# What gdb does unless it is told: in a guest nobody talks to it.
BATCH = ("-batch", "-ex", "run", "-ex", "bt")
MARKER = "ring3-error"  # around what memcheck finds
MEMCHECK = "memcheck-amd64-linux"
VALGRIND = (
    "--tool=memcheck",
    "--error-exitcode=99",
    f"--error-markers={MARKER},{MARKER}-end",
    "--leak-check=no",
)
# Folders in which distributions have the parts of valgrind that its program starts.
PARTS = (
    "/usr/libexec/valgrind",
    "/usr/lib/x86_64-linux-gnu/valgrind",
    "/usr/lib/valgrind",
    "/usr/local/libexec/valgrind",
)
HEADER = Path("/usr/include/valgrind/memcheck.h")
MODULES = (
    "import sys; print('\\n'.join({m.__file__ for m in sys.modules.values() if getattr(m, "
    "'__file__', None)}))"
)
CONVERSIONS = Path("/usr/lib/x86_64-linux-gnu/gconv")
LINKER = Path("/lib64/ld-linux-x86-64.so.2")
SYMBOLS = Path("/usr/lib/debug/.build-id")
LIMIT = 60  # seconds


@dataclass(frozen=True)
class Tools:
    """What was asked for."""

    gdb: bool = False
    asan: bool = False
    valgrind: bool = False
    words: tuple[str, ...] = ()  # what gdb is told
    unconfined: bool = False
    unpinned: bool = False

    def __post_init__(self) -> None:
        """Refuses what excludes each other, and what is not installed."""
        if self.valgrind and (self.gdb or self.asan):
            raise Refusal(
                "--valgrind runs alone: gdb would see valgrind and not the driver, and "
                "AddressSanitizer has a heap of its own"
            )
        if self.words and not self.gdb:
            raise Refusal("what follows -- goes to gdb: say --gdb, too")
        if self.gdb and not shutil.which("gdb"):
            raise Refusal("gdb is not installed: as root, apt-get install gdb")
        if self.valgrind:
            _parts()

    @property
    def form(self) -> Form:
        """What the user half is built for."""
        return Form(self.asan, self.valgrind)

    @property
    def debugs(self) -> bool:
        """Whether somebody looks at the user half, which then has all its rights and is slower."""
        return self.gdb or self.asan or self.valgrind

    @property
    def slowness(self) -> int:
        """How many times the usual time everything may take."""
        return 10 if self.gdb or self.valgrind else 3 if self.asan else 1

    def command(self) -> str:
        """What stands before the name of the user half in the guest's shell."""
        if self.gdb:
            return shlex.join([*GDB, *(self.words or BATCH), "--args"])
        if not self.valgrind:
            return ""
        # Without its launcher, which distributions put a script around.
        folder = _parts()
        return shlex.join(
            [
                "env",
                f"VALGRIND_LIB={folder}",
                "VALGRIND_LAUNCHER=valgrind",
                f"{folder}/{MEMCHECK}",
                *VALGRIND,
            ]
        )

    def options(self) -> str:
        """What stands behind it."""
        wanted = (
            ("--unconfined", self.unconfined or self.debugs),
            ("--unpinned", self.unpinned or self.debugs),
        )
        return " ".join(option for option, given in wanted if given)

    def programs(self) -> list[Path]:
        """What the guest must have, beside what `files` says."""
        gdb = shutil.which("gdb") if self.gdb else None
        return [Path(gdb)] if gdb else []

    def files(self) -> dict[str, Path]:
        """Files that these programs open: path in the guest -> file."""
        found = [*(_of_gdb() if self.gdb else ()), *(_of_valgrind() if self.valgrind else ())]
        return {str(file): file for file in found}


USUAL = Tools()


def _of_gdb() -> list[Path]:
    """The Python modules that gdb loads when it starts, and how it makes wide characters."""
    command = ["gdb", "-q", "-nx", "-batch", "-ex", f"python {MODULES}"]
    done = programs.run(command, Path("/"), LIMIT)
    modules = [Path(line) for line in done.stdout.splitlines() if line.startswith("/")]
    return [
        file
        for file in (*modules, CONVERSIONS / "UTF-32.so", CONVERSIONS / "gconv-modules")
        if file.is_file()
    ]


def _parts() -> Path:
    if not HEADER.is_file():
        raise Refusal(
            f"{HEADER} is missing, by which the run time talks to memcheck: as root, apt-get "
            "install valgrind"
        )
    folder = next((Path(one) for one in PARTS if (Path(one) / MEMCHECK).is_file()), None)
    if folder is None:
        raise Refusal(
            f"valgrind's memcheck is in none of {', '.join(PARTS)}: as root, apt-get install "
            "valgrind"
        )
    return folder


def _of_valgrind() -> list[Path]:
    """Its parts, and the symbols of the dynamic linker, without which it does not begin."""
    done = programs.run(["readelf", "-n", str(LINKER)], Path("/"), LIMIT)
    identity = (done.stdout.partition("Build ID: ")[2].split() or ["none"])[0]
    symbols = SYMBOLS / identity[:2] / f"{identity[2:]}.debug"
    if not symbols.is_file():
        raise Refusal(
            f"valgrind needs the symbols of {LINKER}, which are not there ({symbols}): as root, "
            "apt-get install libc6-dbg"
        )
    folder = _parts()
    names = (
        MEMCHECK,
        "default.supp",
        "vgpreload_core-amd64-linux.so",
        "vgpreload_memcheck-amd64-linux.so",
    )
    return [*(folder / name for name in names), symbols]
