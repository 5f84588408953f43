"""The types of the templates' fields in a kernel.

A small C file, compiled with the kernel's own headers.

Each field is one line of C. A kernel may lack a header, a struct or a member: clang names the line,
the line is dropped, and said in `absent`.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from pathlib import Path

import msgspec

from ring3_split import programs
from ring3_split.clang import READABLE, TIME_LIMIT, first_error
from ring3_split.errors import Refusal
from ring3_split.files import write
from ring3_split.kernel import Kernel
from ring3_split.roots.templates import families, templates

VERSION = 2  # of what is stored


class Signatures(msgspec.Struct, frozen=True):
    """kCFI hashes of fields."""

    hashes: dict[str, int]
    shared: dict[
        str, str
    ] = {}  # fields whose type tells nothing -> an entry point that has it and is not critical
    absent: tuple[str, ...] = ()  # fields that this kernel does not have
    broken: tuple[str, ...] = ()  # headers that it does not have, or that do not compile


def signatures(kernel: Kernel, family: str) -> Signatures:
    """The hashes of all fields of a family's templates, from the cache or from clang.

    Raises:
        Refusal: the kernel's headers cannot be compiled at all.
    """
    lines = _source(family)
    digest = hashlib.sha256(
        "\n".join((str(VERSION), kernel.key, kernel.compiler.version, *lines)).encode()
    ).hexdigest()[:16]
    file = kernel.folder / "templates" / f"{family}-{digest}.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=Signatures)
    except (OSError, msgspec.DecodeError):
        pass
    found = _told_apart(_compiled(kernel, lines), family)
    write(file, msgspec.json.encode(found))
    return found


def _source(family: str) -> list[str]:
    """The C file: a line a header, then for each field one that declares a function of its type."""
    own = families()[family].headers if family in families() else ()
    lines = [
        f"#include <{header}>" for header in dict.fromkeys((*families()["common"].headers, *own))
    ]
    fields = dict.fromkeys((*_fields(family), *_others(family)))
    return lines + [_declaration(name, number) for number, name in enumerate(fields)]


def _fields(family: str) -> list[str]:
    return [name for template in templates(family) for name in template.fields]


def _others(family: str) -> tuple[str, ...]:
    own = families()[family].others if family in families() else ()
    return (*families()["common"].others, *own)


def _declaration(name: str, number: int) -> str:
    """A line that makes clang write the hash of a field's type."""
    struct, _, member = name.partition(".")
    function = f"extern __typeof__(*((struct {struct} *)0)->{member}) root_{number}"
    return f"{function}; void *const of_{number} = (void *)root_{number}; /* {name} */"


def _told_apart(found: Signatures, family: str) -> Signatures:
    """Without the types that entry points have which are not critical."""
    fields = dict.fromkeys(_fields(family))
    others = {found.hashes[name]: name for name in _others(family) if name in found.hashes}
    shared = {
        name: others[found.hashes[name]] for name in fields if found.hashes.get(name) in others
    }
    hashes = {
        name: found.hashes[name] for name in fields if name in found.hashes and name not in shared
    }
    absent = tuple(name for name in found.absent if name in fields)
    return Signatures(hashes, shared, absent, found.broken)


def _compiled(kernel: Kernel, lines: list[str]) -> Signatures:
    """Compiles the file, dropping the lines that this kernel has errors for, until it is clean."""
    left = list(lines)
    with tempfile.TemporaryDirectory(prefix="ring3-roots-") as folder:
        source = Path(folder) / "templates.c"
        while True:
            source.write_text("\n".join(left) + "\n")
            text, errors = _clang(kernel, source)
            if not errors:
                return _hashes(text, lines, left)
            bad = {int(number) for number in re.findall(r"templates\.c:(\d+)", errors)}
            if not bad:
                raise Refusal(
                    f"the headers of {kernel.name} cannot be compiled: {first_error(errors, 1)}"
                )
            # Fields are not judged while a header is broken: they may be fine without it.
            headers = {number for number in bad if left[number - 1].startswith("#include")}
            left = [line for number, line in enumerate(left, 1) if number not in (headers or bad)]


def _clang(kernel: Kernel, source: Path) -> tuple[str, str]:
    """The IR of a file, or clang's errors, all of them."""
    output = source.with_suffix(".ll")
    names = (
        "-DMODULE",
        '-DKBUILD_BASENAME="templates"',
        '-DKBUILD_MODNAME="templates"',
        "-D__KBUILD_MODNAME=kmod_templates",
    )
    options = ("-ferror-limit=0", "-w", *names, '-DKBUILD_MODFILE="templates"')
    command = [
        str(kernel.compiler.program),
        "-x",
        "c",
        *kernel.base,
        *options,
        *READABLE,
        str(source),
        "-o",
        str(output),
    ]
    try:
        done = programs.run(command, kernel.root, TIME_LIMIT)
    except subprocess.TimeoutExpired:
        raise Refusal(
            f"clang took more than {TIME_LIMIT} s for the headers of {kernel.name}"
        ) from None
    return ("", done.stderr or "clang failed") if done.returncode else (output.read_text(), "")


def _hashes(text: str, lines: list[str], left: list[str]) -> Signatures:
    """The hashes, which clang gives as symbols to the assembler."""
    found = dict(re.findall(r"__kcfi_typeid_(root_\d+), (\d+)", text))
    named = dict(re.findall(r"\b(root_\d+);.*/\* (\S+) \*/", "\n".join(lines)))
    hashes = {name: int(found[symbol]) for symbol, name in named.items() if symbol in found}
    broken = tuple(
        line.removeprefix("#include ")
        for line in lines
        if line.startswith("#") and line not in left
    )
    return Signatures(
        hashes, absent=tuple(name for name in named.values() if name not in hashes), broken=broken
    )
