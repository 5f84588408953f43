"""Lengths from allocations: what a size in bytes says about the pointer that receives the memory."""

from __future__ import annotations

import re

from ring3_split.annotate.case import Case
from ring3_split.annotate.expression import Malformed, parse
from ring3_split.annotate.vocabulary import Annotation
from ring3_split.model import Allocation


def measure(allocation: Allocation, case: Case) -> Annotation | None:
    """The annotation that a size in bytes amounts to; None if it cannot be said with names that the item sees."""
    size, item = allocation.size.strip(), case.item
    api = case.known.apis.of(allocation.api)
    dma = bool(api and api.result.startswith("dma"))
    owner = item.key.rpartition(".")[0] if item.kind == "field" else ""
    struct = item.struct or allocation.type
    count = _divided(size, struct)
    if not dma and count is not None and struct:
        length = _local(count, owner)
        kind = "" if item.struct else struct
        if length == "1":
            return Annotation("single", type=kind)
        return Annotation("array", length=length, type=kind) if length else None
    length = _local(size, owner)
    if not length or (item.struct and not dma):
        return None
    return Annotation("dma" if dma else "bytes", length=length)


def _divided(size: str, struct: str) -> str | None:
    """A size without its factor `sizeof(struct)`; None if it has none."""
    factors = [factor.strip() for factor in size.split("*")] if "+" not in size and "-" not in size else [size]
    unit = f"sizeof(struct {struct})"
    if unit not in factors:
        return None
    factors.remove(unit)
    return " * ".join(factors) or "1"


def _local(expression: str, owner: str) -> str:
    """An expression over the owner's own members, or over constants; "" if it names anything else, or is not known."""
    names = re.findall(r"[A-Za-z_][\w.]*", re.sub(r"sizeof\([^)]*\)", "", expression))
    if not expression or "?" in expression or any(not owner or not name.startswith(f"{owner}.") for name in names):
        return ""
    local = expression.replace(f"{owner}.", "") if owner else expression
    try:
        parse(local)
    except Malformed:
        return ""  # shifts and masks: a person says what they mean
    return local
