"""Facts made by hand, and facts of small C files."""

from __future__ import annotations

from pathlib import Path

from ir_from_c import compile_c
from ring3_split import reader
from ring3_split.driver import Driver
from ring3_split.graph import Graph, link
from ring3_split.indirect import Precision
from ring3_split.model import VERSION, Data, Function, Module, ModuleFacts, Unit

TYPE = 7
OTHER = 8


def function(name: str, file: str = "d/a.c", **more: object) -> Function:
    """A function of ten lines."""
    return Function(name=name, file=file, line=10, end=19, signature=TYPE, **more)  # type: ignore[arg-type]


def unit(*functions: Function, source: str = "d/a.c", **more: object) -> Unit:
    """A unit of these functions."""
    return Unit(version=VERSION, source=source, functions=functions, **more)  # type: ignore[arg-type]


def module(*units: Unit, name: str = "a", directory: str = "d") -> ModuleFacts:
    """A module of these units."""
    return ModuleFacts(Module(name, directory, tuple(unit.source for unit in units)), units)


def linked(*modules: ModuleFacts, precision: Precision = "field") -> Graph:
    """Their graph."""
    return link(Driver("a", modules), precision)


def callees(graph: Graph, caller: str) -> set[str]:
    """What a function calls."""
    return set(graph.calls.get(caller, {}))


def compiled(clang: Path, folder: Path, text: str) -> tuple[ModuleFacts, Data]:
    """The facts of C text, which may include `kernel.h` of the kernel's headers."""
    headers = folder / "include"
    headers.mkdir(exist_ok=True)
    (headers / "kernel.h").write_text(
        "struct kernel_ops { void (*run)(void *); };\nvoid kernel_call(void (*)(void *));\n"
    )
    ir = compile_c(clang, folder, f'#include "kernel.h"\n{text}', f"-I{headers}")
    unit, data = reader.read(ir, "drivers/a.c", folder)
    return ModuleFacts(Module("a", "drivers", ("drivers/a.c",)), (unit,)), data
