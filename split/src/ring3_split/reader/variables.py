"""Global variables: those that functions touch, and those that a unit has for others."""

from __future__ import annotations

from collections.abc import Iterable

from ring3_split.ir.module import Global, plain
from ring3_split.model import Variable
from ring3_split.reader.unit import Context


def variables(context: Context, touched: Iterable[str]) -> dict[str, Variable]:
    """The variables of a unit, by symbol.

    Whether one that is only declared is the kernel's, the driver's other units say.
    """
    found = {}
    names = {
        name
        for name, one in context.module.globals.items()
        if not one.linkage and one.kind != "alias" and one.dbg >= 0
    }
    for name in sorted(names | set(touched)):
        one = context.module.globals.get(plain(name))
        if one is not None:
            found[name] = _variable(context, one)
    return found


def _variable(context: Context, one: Global) -> Variable:
    if one.external or one.dbg < 0:
        return Variable(external=one.external)
    metadata = context.metadata
    fields = metadata.node(one.dbg)
    node = (
        int(fields["var"])
        if fields.get("var", "").isdigit()
        else metadata.reference(one.dbg, "var") or one.dbg
    )
    return Variable(
        context.ctypes.name(metadata.variable_type(one.dbg)),
        context.file(node),
        metadata.number(node, "line"),
    )
