"""Prototypes of the kernel functions that a driver calls, as its included headers say.

The IR has no types of functions that are only declared. So each unit is compiled once more with a
variable behind it for each function that it calls, a pointer to that function; the debug
information of these variables has the types as C writes them.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ring3_split import programs
from ring3_split.clang import READABLE, TIME_LIMIT
from ring3_split.files import write
from ring3_split.ir.module import parse
from ring3_split.kernel import Kernel
from ring3_split.model import Module, ModuleFacts
from ring3_split.reader.ctypes import CTypes

VERSION = 1  # of what is stored
_VARIABLE = "ring3_prototype_"
_ROUNDS = 4  # a line that does not compile is dropped, and the rest tried again


class Prototype(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function's type. Parameters have no names: the debug information of a type has none."""

    returns: str
    parameters: tuple[str, ...] = ()
    variadic: bool = False


def prototypes(kernel: Kernel, modules: Iterable[ModuleFacts]) -> dict[str, Prototype]:
    """The functions that modules call and do not define, from the cache or from clang.

    What cannot be declared is left out.
    """
    modules = tuple(modules)
    defined = {
        function.name for facts in modules for unit in facts.units for function in unit.functions
    }
    found: dict[str, Prototype] = {}
    for facts in modules:
        for unit in facts.units:
            called = {call.callee for function in unit.functions for call in function.calls}
            wanted = sorted(name for name in called - defined - found.keys() if name.isidentifier())
            found |= _of_unit(kernel, facts.module, unit.source, wanted) if wanted else {}
    return dict(sorted(found.items()))


def _of_unit(kernel: Kernel, module: Module, source: str, names: list[str]) -> dict[str, Prototype]:
    digest = hashlib.sha256(
        "\n".join((str(VERSION), kernel.key, kernel.compiler.version, source, *names)).encode()
    ).hexdigest()
    file = kernel.folder / "prototypes" / f"{module.name}-{digest[:16]}.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Prototype])
    except (OSError, msgspec.DecodeError):
        pass
    found = compiled(
        str(kernel.compiler.program), kernel.flags(module, source), kernel.root, source, names
    )
    if found:
        write(file, msgspec.json.encode(found))
    return found


def compiled(
    program: str, flags: tuple[str, ...], root: Path, source: str, names: Iterable[str]
) -> dict[str, Prototype]:
    """The prototypes of functions that a unit can call, by compiling it."""
    left = list(names)
    with tempfile.TemporaryDirectory(prefix="ring3-prototypes-") as folder:
        text, output = Path(folder) / "prototypes.c", Path(folder) / "prototypes.ll"
        for _ in range(_ROUNDS):
            text.write_text(_source(root / source, left))
            command = [
                program,
                "-x",
                "c",
                *flags,
                "-w",
                "-ferror-limit=0",
                *READABLE,
                str(text),
                "-o",
                str(output),
            ]
            try:
                done = programs.run(command, root, TIME_LIMIT)
            except (OSError, subprocess.TimeoutExpired):
                return {}
            if not done.returncode:
                return _read(output.read_text(errors="surrogateescape"))
            bad = {
                int(number) for number in re.findall(r"prototypes\.c:(\d+):\d+: error", done.stderr)
            }
            if not bad:
                return {}  # the unit itself does not compile, which is said where it is read
            left = [name for number, name in enumerate(left, 2) if number not in bad]
    return {}


def _source(unit: Path, names: Iterable[str]) -> str:
    """The unit, and a line for each function.

    A macro of the function's name is not what is called.
    """
    lines = [
        f"static __typeof__(&({name})) {_VARIABLE}{name} __attribute__((used));" for name in names
    ]
    return "\n".join((f'#include "{unit}"', *lines, ""))


def _read(text: str) -> dict[str, Prototype]:
    module = parse(text)
    types = CTypes(module.metadata)
    found = {}
    for name, variable in module.globals.items():
        if name.startswith(_VARIABLE) and variable.dbg >= 0:
            function = module.metadata.strip(
                module.metadata.pointee(module.metadata.variable_type(variable.dbg))
            )
            if module.metadata.tag(function) == "subroutine":
                found[name.removeprefix(_VARIABLE)] = Prototype(*types.signature(function))
    return found
