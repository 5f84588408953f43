"""Lengths, as the size of an allocation, the bounds or the constants of indices say."""

from __future__ import annotations

import re

from ring3_split.annotate.case import Case, Evidence, Inferred, inferred
from ring3_split.annotate.expression import Malformed, parse
from ring3_split.annotate.flow import Seen
from ring3_split.annotate.vocabulary import Annotation
from ring3_split.model import Allocation


def allocated(case: Case) -> Inferred | None:
    """The size that it was allocated with. Several allocations must agree."""
    found: dict[Annotation, Evidence] = {}
    for origin, allocation in case.known.allocations.get(case.item.place, ()):
        annotation = measure(allocation, case)
        if annotation is None:
            return None
        seen = Seen(origin, allocation.line, "flow")
        found.setdefault(
            annotation,
            case.evidence(seen, f"allocated by {allocation.api} with {allocation.size} bytes"),
        )
    if len(found) == 1:
        annotation, evidence = next(iter(found.items()))
        return Inferred(annotation, (evidence,))
    return None


def bounded(case: Case) -> Inferred | None:
    """Elements whose index is always compared with the same value.

    That is one thing known where the pointer is, or a constant.
    """
    item, places = case.item, case.measured()
    if (
        item.pointee not in ("number", "struct", "pointer")
        or not places
        or case.unknown()
        or case.sinks()
    ):
        return None
    bounds = {seen.detail for seen in places if seen.what == "index"}
    if len(bounds) != 1 or any(seen.what != "index" for seen in places):
        return None
    length = (
        _bound(case, next(iter(bounds)).removeprefix("< "))
        if next(iter(bounds)).startswith("< ")
        else ""
    )
    says = f"the index is below {length} wherever it is used"
    return (
        inferred(Annotation("array", length=length), case.evidence(places[0], says))
        if length
        else None
    )


def _bound(case: Case, bound: str) -> str:
    """A bound in the names that an annotation of this pointer may use; "" if there is none."""
    item = case.item
    if bound.isdigit():
        return bound
    if item.kind == "field":
        owner = f"{item.key.rpartition('.')[0]}."
        return (
            bound.removeprefix(owner)
            if bound.startswith(owner) and bound.removeprefix(owner).isidentifier()
            else ""
        )
    index = bound.removeprefix("param ")
    here = all(
        seen.function == item.function for seen in case.measured()
    )  # parameters of another function have other numbers
    if item.kind == "parameter" and bound.startswith("param ") and index.isdigit() and here:
        parameters = case.known.halves.graph.functions[item.function].parameters
        return parameters[int(index)].name if int(index) < len(parameters) else ""
    return ""


def few(case: Case) -> Inferred | None:
    """Elements that are only ever reached by constant indices: as many as the highest asks for."""
    places = case.measured()
    if (
        not places
        or case.unknown()
        or case.sinks()
        or case.item.pointee not in ("number", "struct")
    ):
        return None
    if any(seen.what != "index" or not seen.detail.isdigit() for seen in places):
        return None
    last = max(places, key=lambda seen: int(seen.detail))
    length = int(last.detail) + 1
    return inferred(
        Annotation("array", length=str(length)),
        case.evidence(last, f"{last.detail} is the highest index, all are constant"),
    )


def measure(allocation: Allocation, case: Case) -> Annotation | None:
    """The annotation that a size in bytes amounts to.

    None if it cannot be said with names that the item sees.
    """
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
    factors = (
        [factor.strip() for factor in size.split("*")]
        if "+" not in size and "-" not in size
        else [size]
    )
    unit = f"sizeof(struct {struct})"
    if unit not in factors:
        return None
    factors.remove(unit)
    return " * ".join(factors) or "1"


def _local(expression: str, owner: str) -> str:
    """An expression over the owner's own members, or over constants.

    "" if it names anything else, or is not known.
    """
    names = re.findall(r"[A-Za-z_][\w.]*", re.sub(r"sizeof\([^)]*\)", "", expression))
    if (
        not expression
        or "?" in expression
        or any(not owner or not name.startswith(f"{owner}.") for name in names)
    ):
        return ""
    local = expression.replace(f"{owner}.", "") if owner else expression
    try:
        parse(local)
    except Malformed:
        return ""  # shifts and masks: a person says what they mean
    return local
