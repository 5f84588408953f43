"""Facts of a translation unit, read from clang's text IR."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ring3_split.errors import Refusal
from ring3_split.ir.module import IrModule, parse
from ring3_split.ir.origin import Origins
from ring3_split.model import (
    VERSION,
    Access,
    Allocation,
    Assigned,
    Data,
    Function,
    Handed,
    Shape,
    Stored,
    Unit,
    Used,
)
from ring3_split.reader.accesses import Accesses
from ring3_split.reader.allocations import allocations as allocated
from ring3_split.reader.functions import Functions
from ring3_split.reader.layouts import Layouts
from ring3_split.reader.pointers import flows
from ring3_split.reader.ranges import Ranges
from ring3_split.reader.regions import Held, regions
from ring3_split.reader.shapes import shapes as shaped
from ring3_split.reader.statics import Statics
from ring3_split.reader.unit import Context
from ring3_split.reader.uses import Uses
from ring3_split.reader.values import Values
from ring3_split.reader.variables import variables as known_variables
from ring3_split.reader.within import placed


def read(ir_path: Path, source: str, root: Path) -> tuple[Unit, Data]:
    """Reads the IR of `source`, which is relative to the kernel tree `root`.

    Raises Refusal when the file cannot be read or is not IR of clang.
    """
    try:
        module = parse(ir_path.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError as error:
        raise Refusal(f"{source}: its IR cannot be read: {error}") from error
    except ValueError as error:
        raise Refusal(f"{source}: {ir_path} is not text IR of clang: {error}") from error
    with _collector_paused():
        facts = _facts(module, source, root)
        module.forget()
    return facts


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Holds back the collector of cycles.

    Nothing of a unit is garbage before it is read, and looking costs a third.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _facts(module: IrModule, source: str, root: Path) -> tuple[Unit, Data]:
    context = Context(module, root)
    functions, data = _functions(context, source)
    statics = Statics(context)
    stored = statics.stored()
    unit = Unit(
        version=VERSION,
        source=source,
        functions=functions,
        stored=stored,
        exports=statics.exports(),
        aliases=module.aliases,
        parameters=statics.parameters(),
        declared=statics.declared(),
        structs=_structs(context, functions, stored),
    )
    return unit, data


def _structs(
    context: Context, functions: tuple[Function, ...], stored: tuple[Stored, ...]
) -> dict[str, str]:
    """The files of the structs by whose fields functions are known.

    A field of the kernel's is called by the kernel.
    """
    fields = {place.field for place in stored}
    for function in functions:
        fields |= {place.field for place in function.stored} | {
            call.field for call in function.indirect
        }
    owners = context.fields.owners
    names = {field.rpartition(".")[0] for field in fields if field}
    return {name: context.file(owners[name]) for name in sorted(names) if name in owners}


def _functions(context: Context, source: str) -> tuple[tuple[Function, ...], Data]:
    """The functions of the unit, and what their code does with memory."""
    reader = Functions(context)
    held = regions(context.module)
    functions: list[Function] = []
    accesses: dict[str, tuple[Access, ...]] = {}
    allocations: dict[str, tuple[Allocation, ...]] = {}
    shapes: dict[str, tuple[Shape, ...]] = {}
    variables: dict[str, dict[str, str]] = {}
    handed: dict[str, tuple[Handed, ...]] = {}
    used: dict[str, tuple[Used, ...]] = {}
    assigned: dict[str, tuple[Assigned, ...]] = {}
    through: dict[str, dict[str, str]] = {}
    for body in context.module.functions.values():
        if not body.attached("dbg"):
            continue  # made by the compiler: it is in no source
        function = reader.read(body, held.get(body.name, Held()))
        touched = Accesses(context, body)
        functions.append(
            msgspec.structs.replace(function, regions=placed(function.regions, touched.fields))
        )
        accesses[function.id] = touched.fields
        variables[function.id] = touched.globals
        handed[function.id], through[function.id] = touched.handed, touched.through
        origins, uses = Origins.within(context.module, body), Uses(body)
        allocations[function.id] = allocated(context.module, body, origins, uses)
        shapes[function.id] = (
            *shaped(context.module, body, origins, uses),
            *flows(body, origins, uses),
        )
        used[function.id] = Values(body, origins, uses, context.module.types).used()
        assigned[function.id] = Ranges(body, origins, uses, context.module.types).assigned()
    fields = {access.field for all_of_one in accesses.values() for access in all_of_one}
    data = Data(
        version=VERSION,
        source=source,
        accesses={name: found for name, found in accesses.items() if found},
        allocations={name: found for name, found in allocations.items() if found},
        shapes={name: found for name, found in shapes.items() if found},
        globals={name: found for name, found in variables.items() if found},
        # Sorted, because two readings of one unit are to be equal byte for byte, and sets have no
        # order.
        variables=dict(
            sorted(
                known_variables(
                    context, {name for ones in variables.values() for name in ones}
                ).items()
            )
        ),
        layouts=dict(sorted(Layouts(context).of(fields).items())),
        handed={name: found for name, found in handed.items() if found},
        used={name: found for name, found in used.items() if found},
        assigned={name: found for name, found in assigned.items() if found},
        through={name: found for name, found in through.items() if found},
    )
    return tuple(functions), data
