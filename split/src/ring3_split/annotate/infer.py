"""What each pointer stands for, as far as the driver's code tells.

Rules, in order, each with its evidence.

A rule looks at one pointer and either says what it is, with the places that show it, or passes. The
first that speaks is believed. What no rule decides is asked. A rule may be too careful (a question
more) but not too bold: a length that is guessed too long copies what is not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ring3_split.annotate.case import Case, Evidence, Inferred, inferred
from ring3_split.annotate.declared import pointee
from ring3_split.annotate.flow import Seen
from ring3_split.annotate.interface import caller
from ring3_split.annotate.lengths import allocated, bounded, few
from ring3_split.annotate.vocabulary import Annotation, read

Rule = Callable[[Case], Inferred | None]


def infer(case: Case) -> Inferred | None:
    """The first rule that knows what the pointer is."""
    return next(
        (found for rule in (UNION if case.item.union else RULES) if (found := rule(case))), None
    )


def function(case: Case) -> Inferred | None:
    """A pointer to a function, or to a table of functions, is translated by the symbol table."""
    item = case.item
    if item.pointee == "function":
        return inferred(
            Annotation("function"),
            Evidence(item.where, f"declared as a pointer to a function: {item.type}"),
        )
    if (
        item.pointee == "struct"
        and item.struct in case.known.tables
        and not case.trace.of("index", "arithmetic")
    ):
        return inferred(
            Annotation("operations"),
            Evidence(item.where, f"struct {item.struct} is initialised with functions"),
        )
    return None


def table(case: Case) -> Inferred | None:
    """A table of the kernel's functions: a call through it is a downcall, which names the field."""
    item = case.item
    if item.pointee != "struct" or item.side != "user" or not case.known.foreign(item.struct):
        return None
    members = case.known.layouts.structs[item.struct].members
    used = (
        case.known.border.types[item.struct].members
        if item.struct in case.known.border.types
        else {}
    )
    if used and all(member.pointee == "fn" for member in members if member.name in used):
        says = f"only functions are taken out of struct {item.struct}, and called in the kernel"
        return inferred(Annotation("handle"), Evidence(item.where, says))
    return None


def contract(case: Case) -> Inferred | None:
    """What the kernel's own struct says of its member, in api.toml."""
    note = case.known.apis.members.get(case.item.key)
    return (
        inferred(read(note).annotation, Evidence("api.toml", f"member {case.item.key}: {note}"))
        if note
        else None
    )


def callback(case: Case) -> Inferred | None:
    """The kernel's contract for an operation says what its parameters are."""
    item, graph = case.item, case.known.halves.graph
    for stored in graph.entries.get(item.function, ()) if item.kind == "parameter" else ():
        note = case.known.apis.callbacks.get(caller(stored), {}).get(item.index)
        if note:
            text = _own_names(note, case, stored.object)
            return (
                None
                if text is None
                else Inferred(
                    read(text).annotation, (Evidence("api.toml", f"{stored.field}: {note}"),)
                )
            )
    return None


def user(case: Case) -> Inferred | None:
    """Only copies between the kernel and a process look at it."""
    seen = case.trace.of("user")
    notes = [seen for seen, _, note in case.notes() if note.split()[-1:] == ["user"]]
    if seen or notes:
        first = (seen or notes)[0]
        return inferred(
            Annotation("user"),
            case.evidence(first, f"copied to or from the process by {first.detail}"),
        )
    return None


def registers(case: Case) -> Inferred | None:
    """It is handed to a register access."""
    for seen, symbol, note in case.notes():
        api = case.known.apis.of(symbol)
        if note == "io" or (api and api.way == "mmio" and not note):
            return inferred(Annotation("io"), case.evidence(seen, f"handed to {symbol}"))
    for origin, allocation in case.known.allocations.get(case.item.place, ()):
        api = case.known.apis.of(allocation.api)
        if api and api.result == "io":
            seen = Seen(origin, allocation.line, "flow")
            return inferred(Annotation("io"), case.evidence(seen, f"mapped by {allocation.api}"))
    return None


def handle(case: Case) -> Inferred | None:
    """Nothing in this half looks behind it.

    By the trace, or because the half touches no object of its type.
    """
    item = case.item
    if case.followed() or item.pointee not in ("struct", "void", "pointer"):
        return None
    if item.pointee == "struct" and item.struct not in _touched(case):
        says = f"the {item.side} half touches no member of struct {item.struct}"
        return inferred(Annotation("handle"), Evidence(item.where, says))
    if (
        case.unknown()
        or case.given()
        or (item.pointee == "struct" and not case.known.foreign(item.struct))
    ):
        return None
    notes = [note.split()[-1:] == ["handle"] for _, _, note in case.notes()]
    if item.pointee == "struct":
        return inferred(
            Annotation("handle"), Evidence(item.where, f"never followed in the {item.side} half")
        )
    if notes and all(notes):
        seen, symbol, _ = case.sinks()[0]
        return inferred(
            Annotation("handle"),
            case.evidence(seen, f"only handed to {symbol}, which keeps it as a cookie"),
        )
    return None


def unwalked(case: Case) -> Inferred | None:
    """The links of a list that nobody walks in this half."""
    if case.item.pointee != "list" or case.trace.of("list"):
        return None
    return inferred(
        Annotation("handle"),
        Evidence(case.item.where, f"never walked in the {case.item.side} half"),
    )


def text(case: Case) -> Inferred | None:
    """Characters that are used as a string."""
    if case.item.pointee != "char" and case.item.type.strip() not in ("const u8 *", "u8 *"):
        return None
    notes = [
        (seen, symbol, note)
        for seen, symbol, note in case.notes()
        if note.split()[-1:] == ["string"]
    ]
    # A string that is only written need not be sent first.
    for seen, symbol, note in sorted(notes, key=lambda one: one[2].startswith("out")):
        return inferred(
            read(note).annotation, case.evidence(seen, f"handed to {symbol}, which takes a string")
        )
    for seen in case.trace.of("string"):
        return inferred(
            Annotation("string"),
            case.evidence(seen, f"used as a string by {seen.detail or 'the code'}"),
        )
    return None


def members(case: Case) -> Inferred | None:
    """The element type of a list, from the place that walks it."""
    for seen in case.trace.of("list") if case.item.pointee == "list" else ():
        match = re.match(r"(?:struct )?(\w+)\.(\w[\w.]*)$", seen.detail)
        if match:
            says = f"walked as a list of struct {match[1]}"
            return inferred(
                Annotation("list", type=match[1], member=match[2]), case.evidence(seen, says)
            )
    return None


def converted(case: Case) -> Inferred | None:
    """A pointer without a type that is used as one struct."""
    if case.item.pointee != "void" or case.measured():
        return None
    casts = [(one, one.detail.removeprefix("struct ")) for one in case.trace.of("cast")]
    # A struct without a name is called after the struct around it: that is the one that the pointer
    # leads to.
    reached = [(one, one.detail.partition(".")[0]) for one in case.touched()]
    uses = [(one, struct) for one, struct in casts or reached if struct in case.known.layouts]
    if len({struct for _, struct in uses}) == 1:
        seen, struct = uses[0]
        return inferred(
            Annotation("single", type=struct), case.evidence(seen, f"used as struct {struct}")
        )
    return None


def filled(case: Case) -> Inferred | None:
    """A pointer without a type into which only pointers to one struct are put."""
    item, graph = case.item, case.known.halves.graph
    if item.pointee != "void" or item.kind != "field" or case.followed():
        return None
    found: dict[str, Seen] = {}
    for seen in case.known.flows[item.side].sources(item.place):
        function, _, index = seen.detail.rpartition("#")
        target = (
            pointee(graph.functions[function].parameters[int(index)].type)
            if index.isdigit()
            else None
        )
        if seen.detail.startswith("field "):
            member = case.known.layouts.member(seen.detail.removeprefix("field "))
            target = pointee(member.type) if member else None
        found[target[1] if target else ""] = seen
    for struct, place in found.items() if len(found) == 1 else ():
        if struct in case.known.layouts:
            return inferred(
                Annotation("single", type=struct),
                case.evidence(place, f"a pointer to struct {struct} is put there"),
            )
    return None


def part(case: Case) -> Inferred | None:
    """A part of another object, from which the code finds the whole."""
    for seen in case.trace.of("container") if not case.measured() else ():
        return inferred(
            Annotation("single"), case.evidence(seen, f"it is {seen.detail}, by container_of")
        )
    return None


def single(case: Case) -> Inferred | None:
    """One object: reached only at constant offsets, never indexed and never moved."""
    item = case.item
    if item.pointee != "struct" or case.measured() or case.known.tailed(item.struct):
        return None
    touched = case.touched()
    if touched:
        says = f"{len(touched)} places reach its members, none a neighbour"
        return inferred(Annotation("single"), case.evidence(touched[0], says))
    return inferred(
        Annotation("single"),
        Evidence(item.where, f"never indexed or moved in the {item.side} half"),
    )


def number(case: Case) -> Inferred | None:
    """One number: never indexed or moved, and handed only to what takes one."""
    item, notes = case.item, case.notes()
    if item.pointee != "number" or item.kind == "field" or case.measured() or case.unknown():
        return None
    if all(note.split()[-1:] == ["single"] for _, _, note in notes):
        return inferred(
            Annotation("single"),
            Evidence(item.where, "never indexed or moved, nor handed to what takes more than one"),
        )
    return None


RULES: tuple[Rule, ...] = (
    function,
    table,
    contract,
    callback,
    user,
    registers,
    allocated,
    handle,
    text,
    members,
    unwalked,
    converted,
    filled,
    part,
    single,
    bounded,
    few,
    number,
)
# What a member of a union is, the use of one member does not tell: only what holds whichever it is.
UNION: tuple[Rule, ...] = (contract, user, handle)


def _touched(case: Case) -> set[str]:
    """Structs of which the receiving half touches members."""
    if case.item.side == "user":
        return set(case.known.border.types)
    return {
        seen.detail.rpartition(".")[0]
        for all_seen in case.known.flows["kernel"].seen.values()
        for seen in all_seen
    }


def _own_names(note: str, case: Case, table: str) -> str | None:
    """A note of api.toml in the names of this function.

    `arg1`, and `ops.FIELD(...)` for a function of the same table.
    """
    graph = case.known.halves.graph
    parameters = graph.functions[case.item.function].parameters
    if any(int(index) >= len(parameters) for index in re.findall(r"\barg(\d+)", note)):
        return None
    note = re.sub(r"\barg(\d+)", lambda match: parameters[int(match[1])].name, note)
    for operation in re.findall(r"\bops\.(\w+)\(", note):
        sisters = [
            graph.functions[function].name
            for function, places in graph.stored.items()
            if any(
                place.object == table and place.field.endswith(f".{operation}") for place in places
            )
        ]
        if len(sisters) != 1:
            return None
        note = note.replace(f"ops.{operation}(", f"{sisters[0]}(")
    return note
