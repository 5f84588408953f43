"""The unmodified driver, compiled so that the function tracer sees its functions.

An optimising compiler makes one function of several, and what it has inlined is not called any
more. So the driver is built once more from the distribution's source, by the kernel's own build
system and against its headers, with those optimisations off. Nothing of the source is changed and
nothing is written beside it: the build runs in a folder of links.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ring3_split.errors import Refusal
from ring3_split.files import refused
from ring3_split.kernel import Kernel
from ring3_split.model import Module
from ring3_split.profile.headers import headers
from ring3_split.stamps import digest

# What would hide a function or its caller from the tracer. Functions that the source itself calls
# inline stay so.
VISIBLE = (
    "-fno-inline-functions",
    "-fno-inline-small-functions",
    "-fno-inline-functions-called-once",
    "-fno-partial-inlining",
    "-fno-ipa-cp",
    "-fno-ipa-sra",
    "-fno-ipa-icf",
    "-fno-optimize-sibling-calls",
)
LIMIT = 900  # seconds for one module


def build(kernel: Kernel, module: Module) -> Path:
    """The module's file, built now or found in the cache.

    Raises:
        Refusal: no compiler or make; the module does not compile.
    """
    folder = (
        kernel.folder
        / "modules"
        / f"{module.name}-{digest(kernel.name, module, compiler(), *VISIBLE)}"
    )
    with alone(folder):
        file = folder / module.directory / f"{module.name}.ko"
        if not file.exists():
            shutil.rmtree(folder, ignore_errors=True)
            mirror(kernel.root, module, folder)
            _make(kernel, file, [f"KCFLAGS={' '.join(VISIBLE)}"])
    return file


def build_own(kernel: Kernel, source: Path) -> Path:
    """A module of ours for the guest, of one file."""
    text = source.read_text()
    folder = kernel.folder / "modules" / f"{source.stem}-{digest(kernel.name, text, compiler())}"
    file = folder / f"{source.stem}.ko"
    with alone(folder):
        if not file.exists():
            folder.mkdir(exist_ok=True)
            (folder / source.name).write_text(text)
            (folder / "Kbuild").write_text(f"obj-m := {source.stem}.o\n")
            _make(kernel, file, [])
    return file


def compiler() -> str:
    """The compiler's path and version.

    Raises:
        Refusal: there is none.
    """
    program = shutil.which("gcc")
    if not program:
        raise Refusal(
            "gcc is missing, which builds the driver: apt-get install gcc libc6-dev, or profile "
            "with --stock"
        )
    done = subprocess.run(
        [program, "-dumpfullversion"], capture_output=True, text=True, check=False, timeout=60
    )
    return f"{program} {done.stdout.strip()}"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keeps others from a folder of the cache while it is made."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(folder.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise refused(error, folder) from None


def mirror(root: Path, module: Module, folder: Path) -> None:
    """Makes a tree in which only the module's folders are real.

    All else is a link to the kernel's source.

    So the compiler finds what the sources include by relative paths, and what it makes lies in our
    folder.
    """
    real = {""}
    # no file's path
    for place in (module.directory, *(os.path.dirname(source) for source in module.sources)):  # noqa: PTH120
        parts = place.split("/")
        real |= {"/".join(parts[: count + 1]) for count in range(len(parts))}
    for place in sorted(real):
        if not (root / place).is_dir():
            continue
        (folder / place).mkdir(parents=True)
        for entry in (root / place).iterdir():
            if f"{place}/{entry.name}".lstrip("/") not in real:
                (folder / place / entry.name).symlink_to(entry)


def _make(kernel: Kernel, file: Path, settings: list[str]) -> None:
    """Makes a module in its folder.

    Its name is the one target, so that its neighbours are not built.
    """
    if not shutil.which("make"):
        raise Refusal(
            "make is missing, which builds the driver: apt-get install make, or profile with "
            "--stock"
        )
    command = [
        "make",
        "-s",
        "-C",
        str(kernel.root),
        f"O={headers(kernel)}",
        f"M={file.parent}",
        "CC=gcc",
    ]
    # No type information of the kernel's image is at hand to make the module's from, and loading
    # needs none.
    command += ["CONFIG_DEBUG_INFO_BTF_MODULES=", *settings, file.name]
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("MAKE", "KBUILD_", "KCFLAGS"))
    }
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LIMIT, env=environment
        )
    except subprocess.TimeoutExpired:
        raise Refusal(
            f"building {file.stem} took longer than {LIMIT} s; profile the distribution's own "
            "with --stock"
        ) from None
    if done.returncode or not file.exists():
        lines = (done.stderr or done.stdout).strip().splitlines()
        first = next(
            (line for line in lines if "error" in line.lower()),
            lines[-1] if lines else "make said nothing",
        )
        hint = f" (this is {compiler()})" if "unrecognized" in first else ""
        raise Refusal(
            f"{file.stem} does not build: {first.strip()}{hint}; profile the distribution's own "
            "with --stock"
        )
