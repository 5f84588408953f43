"""Generated sources made into two modules and a program: `ring3 split build`.

The kernel half and the run time are built by the kernel's own build system, the user half by clang
with the same headers. What the user half's code refers to and nobody has becomes a stub that stops
the upcall and says its name.

Modules and objects are kept in the cache under a name for the texts, the flags and the compiler
that they were made of, so that what has not changed is not compiled again.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ring3_split import programs
from ring3_split.errors import Refusal
from ring3_split.files import refused, write
from ring3_split.generate import tables
from ring3_split.generate.border import Border
from ring3_split.generate.halves import RUNTIME, Generated, memory
from ring3_split.generate.units import Unit
from ring3_split.kernel import Kernel
from ring3_split.profile.build import LIMIT, alone, compiler
from ring3_split.profile.headers import headers
from ring3_split.stamps import digest

CODE = (
    "-O1",
    "-g",
    "-fno-pic",
    "-ffunction-sections",
    "-fdata-sections",
    "-fno-asynchronous-unwind-tables",
)
RUN_TIME = (
    "-std=gnu11",
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fno-pie",
    "-fno-builtin",
    "-D_GNU_SOURCE",
)
ASAN = ("-fsanitize=address", "-fno-omit-frame-pointer")
MEMCHECK = ("-gdwarf-4", "-DSPLIT_MEMCHECK")  # Debian 12's valgrind ends at clang's DWARF 5
CHECKED = "-DSPLIT_CHECKED"
UNDEFINED = re.compile(r"undefined reference to `(\w+)'")
# what a static call of the kernel's jumps to: a function that is declared as one nowhere
TRAMPOLINE = "__SCT__"
FIRST_ADDRESS, STEP = 0x1000, 16


@dataclass(frozen=True)
class Built:
    """What was built."""

    runtime: Path  # ring3_split.ko
    driver: Path  # the kernel half's module
    program: Path  # the user half
    layout: str  # by which the halves know that they fit
    stops: tuple[str, ...]  # what the user half refers to and cannot have


@dataclass(frozen=True)
class Form:
    """What the user half is built for."""

    asan: bool = False  # AddressSanitizer is in it
    valgrind: bool = False  # memcheck sees its heap

    @property
    def flags(self) -> tuple[str, ...]:
        """How everything is compiled for that."""
        return ASAN if self.asan else MEMCHECK if self.valgrind else ()


USUAL = Form()


def build(kernel: Kernel, generated: Generated, form: Form = USUAL) -> Built:
    """Builds both halves.

    Raises:
        Refusal: no compiler or make; something does not compile.
    """
    compiler()
    runtime, driver = _modules(kernel, generated)
    program, stops = _program(kernel, generated, form)
    return Built(runtime, driver, program, tables.layout(generated.border), stops)


def kept(kernel: Kernel, file: Path, parts: Sequence[object], make: Callable[[], object]) -> Path:
    """`file`: what `make` has made of the same parts before, or makes now.

    Raises:
        Refusal: it cannot be made or written.
    """
    place = kernel.folder / "built" / f"{digest(kernel.name, kernel.key, *parts)}-{file.name}"
    if not place.exists():
        make()
        write(place, file.read_bytes(), once=True)
        return file
    try:
        shutil.copyfile(place, file)
    except OSError as error:
        raise refused(error, file) from None
    return file


def _texts(*folders: Path) -> list[object]:
    """Names and texts of the headers in `folders`."""
    files = (file for folder in folders for file in sorted(folder.glob("*.h")))
    return [text for file in files for text in (file.name, file.read_text())]


def _modules(kernel: Kernel, generated: Generated) -> tuple[Path, Path]:
    runtime = runtime_module(kernel)
    folder = generated.folder / "kernel"
    shutil.copytree(
        runtime.parents[1],
        folder / "runtime",
        ignore=shutil.ignore_patterns("*.ko", "*.o", ".*"),
        dirs_exist_ok=True,
    )
    shutil.copy(generated.folder / "tables.c", folder / "tables.c")
    driver = folder / f"{generated.border.survey.border.driver}.ko"
    # The name of the run time's folder is one for its texts.
    parts: list[object] = [compiler(), runtime.parents[1].name, *_texts(folder)]
    for file in (folder / "Kbuild", *sorted(folder.glob("*.c"))):
        # Those are made by the build.
        if not file.name.endswith(".mod.c"):
            parts += [file.name, file.read_text()]
    symbols = f"KBUILD_EXTRA_SYMBOLS={runtime.parent / 'Module.symvers'}"
    return runtime, kept(kernel, driver, parts, lambda: make(kernel, driver, [symbols]))


def runtime_module(kernel: Kernel) -> Path:
    """The run time's module, the same for all drivers: built now or found in the cache."""
    sources = sorted(
        path for path in (*RUNTIME.glob("*.h"), *(RUNTIME / "kernel").iterdir()) if path.is_file()
    )
    name = digest(kernel.name, compiler(), *(path.read_text() for path in sources))
    place = kernel.folder / "modules" / f"ring3_split-{name}"
    file = place / "kernel/ring3_split.ko"
    with alone(place):
        if not file.exists():
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(RUNTIME, place, ignore=shutil.ignore_patterns("user", "empty"))
            make(kernel, file, [])
    return file


def make(kernel: Kernel, file: Path, settings: list[str]) -> None:
    """Builds a module by the kernel's build system, from what lies beside it.

    Raises:
        Refusal: no make; it does not compile.
    """
    command = [
        "make",
        "-s",
        f"-j{2 * (os.cpu_count() or 1)}",
        "-C",
        str(kernel.root),
        f"O={headers(kernel)}",
        f"M={file.parent}",
        "CC=gcc",
    ]
    # No type information of the kernel's image is at hand to make the module's from, and loading
    # needs none.
    command += ["CONFIG_DEBUG_INFO_BTF_MODULES=", "KBUILD_MODPOST_WARN=", *settings]
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
        raise Refusal(f"building {file.stem} took longer than {LIMIT} s") from None
    except OSError as error:
        raise Refusal(f"make does not start: {error.strerror}: apt-get install make") from None
    if done.returncode or not file.exists():
        raise Refusal(
            f"{file.name} does not build: {_first(done.stderr or done.stdout)}; sources are in "
            f"{file.parent}"
        )


def _first(text: str) -> str:
    lines = text.strip().splitlines() or ["nothing was said"]
    return next((line for line in lines if "error" in line.lower()), lines[-1]).strip()


def _program(kernel: Kernel, generated: Generated, form: Form) -> tuple[Path, tuple[str, ...]]:
    folder = generated.folder / "user"
    objects = [_code(generated, unit, form) for unit in generated.units]
    own = [*RUN_TIME, *form.flags, *([CHECKED] if form.flags else ())]
    shutil.copy(generated.folder / "tables.c", folder / "tables.c")
    sources = [*(RUNTIME / "user").glob("*.c"), folder / "tables.c", folder / "runners.c"]
    options = [*own, "-Wno-missing-field-initializers", "-Wno-unused-const-variable", "-c"]
    same = [compiler(), *options, *_texts(RUNTIME, RUNTIME / "user")]
    for source in sources:
        out = folder / f"rt_{source.stem}.o"
        made = partial(gcc, options, source, out)
        objects.append(kept(kernel, out, [*same, source.read_text()], made))
    name = f"split-{generated.border.survey.border.driver}"
    known = _stubs_of_table(generated.border)
    # The first link says what is missing, the second one has it.
    missing = _missing(folder, objects, known, form)
    _write_stubs(generated, known, missing)
    stubs = [
        gcc(["-c"], folder / "stubs.S", folder / "rt_stubs.o"),
        gcc([*own, "-c"], folder / "stub_table.c", folder / "rt_table.o"),
    ]
    program = folder / name
    done = link([*objects, *stubs], program, form)
    if done.returncode:
        raise Refusal(f"the user half does not link: {_first(done.stderr)}")
    return program, tuple(missing)


def _code(generated: Generated, unit: Unit, form: Form) -> Path:
    """A unit of the driver, compiled for a process."""
    out = generated.folder / f"user/{unit.stem}.o"
    source = generated.folder / f"user/{unit.stem}.c"
    own = [
        f"-I{RUNTIME / 'user'}",
        f"-I{unit.kernel.root / Path(unit.source).parent}",
        "-D__NO_FORTIFY",
    ]
    flags = [*unit.flags(), *own, *CODE, *form.flags]
    clang = str(unit.kernel.compiler.program)

    def make() -> None:
        command = [clang, "-x", "c", *flags, "-c", str(source), "-o", str(out)]
        done = programs.run(command, unit.kernel.root, LIMIT)
        if done.returncode:
            raise Refusal(f"the user half of {unit.source} does not compile: {_first(done.stderr)}")

    parts: list[object] = [clang, unit.kernel.compiler.version, *flags]
    parts += [*_texts(RUNTIME, RUNTIME / "user", source.parent), source.read_text()]
    return kept(unit.kernel, out, parts, make)


def gcc(arguments: list[str], source: Path, out: Path) -> Path:
    """Compiles a file against the run time's headers.

    Raises:
        Refusal: no compiler; it does not compile.
    """
    command = [
        "gcc",
        *arguments,
        f"-I{RUNTIME}",
        f"-I{RUNTIME / 'user'}",
        str(source),
        "-o",
        str(out),
    ]
    done = programs.run(command, out.parent, LIMIT)
    if done.returncode:
        raise Refusal(f"{source.name} does not compile: {_first(done.stderr)}")
    return out


def link(
    objects: list[Path], program: Path, form: Form = USUAL
) -> subprocess.CompletedProcess[str]:
    """Makes a program of objects, or tells why not.

    A checker takes the place of its heap, which is in a library then.
    """
    kind = ["-fsanitize=address"] if form.asan else [] if form.valgrind else ["-static"]
    command = [
        "gcc",
        *kind,
        "-no-pie",
        "-g",
        "-Wl,--gc-sections",
        *map(str, objects),
        "-o",
        str(program),
        "-lpthread",
    ]
    return programs.run(command, program.parent, LIMIT)


def _stubs_of_table(border: Border) -> dict[str, str]:
    """Stubs that lead somewhere: symbol -> its row of the table of stubs."""
    found = {}
    for number, call in enumerate(border.table.calls):
        row = f'{{ "{call.name}", SPLIT_STUB_CALL, {call.format}, {number} }}'
        found[f"split_stub_{call.name}" if call.declared.inline and not call.own else call.name] = (
            row
        )
    for name, factors in memory(border).items():
        row = f'{{ "{name}", SPLIT_STUB_MEMORY, -1, {factors} }}'
        found[f"split_stub_{name}"] = row
        found[name] = row
    return found


def _missing(folder: Path, objects: list[Path], known: dict[str, str], form: Form) -> list[str]:
    done = link(objects, folder / "unlinked", form)
    names = set(UNDEFINED.findall(done.stderr)) - {"split_stubs"}
    return sorted(names - known.keys())


def _write_stubs(generated: Generated, known: dict[str, str], missing: list[str]) -> None:
    """Functions become stubs, data addresses that nothing can be read from."""
    functions = {name for unit in generated.units for name in unit.declared.functions}
    # A function of the kernel half is known in this one by its stub.
    others = {
        name: name.removeprefix("split_symbol_")
        for name in missing
        if name.startswith("split_symbol_")
    }
    functions |= {name for name in missing if name.startswith(TRAMPOLINE)}
    stops = sorted(
        {name for name in missing if name in functions} | (set(others.values()) - known.keys())
    )
    rows = [*known.values(), *(f'{{ "{name}", SPLIT_STUB_STOP, -1, 0 }}' for name in stops)]
    lines = [
        "/* Generated by `ring3 split build`: what the user half calls and does not have. */",
        "\t.text",
    ]
    for number, name in enumerate([*known, *stops]):
        lines.append(
            f"\t.weak {name}\n\t.type {name}, @function\n{name}:\n\tmov ${number}, %eax\n\tjmp "
            "split_thunk"
        )
    lines += [f"\t.globl {name}\n\t.set {name}, {target}" for name, target in others.items()]
    for number, name in enumerate(
        one for one in missing if one not in functions and one not in others
    ):
        lines.append(f"\t.globl {name}\n\t.set {name}, {FIRST_ADDRESS + number * STEP:#x}")
    lines.append('\t.section .note.GNU-stack,"",@progbits')
    (generated.folder / "user/stubs.S").write_text("\n".join(lines) + "\n")
    table = ",\n\t".join(rows)
    head = (
        '/* Generated by `ring3 split build`. */\n#include "split.h"\n\nconst struct '
        "split_stub split_stubs[] = "
    )
    (generated.folder / "user/stub_table.c").write_text(f"{head}{{\n\t{table},\n}};\n")
