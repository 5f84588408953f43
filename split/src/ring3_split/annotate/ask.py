"""What cannot be inferred, put as questions to a person."""

from __future__ import annotations

from dataclasses import dataclass

from ring3_split.annotate.border import Shared
from ring3_split.annotate.case import Case
from ring3_split.annotate.declared import Pointee
from ring3_split.annotate.halves import Halves, Site
from ring3_split.annotate.interface import place
from ring3_split.annotate.vocabulary import VARIABLE_WAYS, WAYS, usage

SHOWN = 4  # places of a kind that a question names; the rest is counted


@dataclass(frozen=True)
class Question:
    """Something that only a person knows."""

    key: str
    where: str
    type: str
    question: str
    known: tuple[str, ...]
    allowed: tuple[str, ...]


WORDS_FOR: dict[Pointee, tuple[str, ...]] = {
    "struct": ("single", "array", "bytes", "handle", "omit"),
    "number": ("single", "array", "bytes", "string", "io", "user", "handle", "omit"),
    "char": ("string", "bytes", "user", "handle", "omit"),
    "void": ("single", "array", "bytes", "dma", "io", "user", "handle", "omit"),
    "pointer": ("array", "handle", "omit"),
    "list": ("list", "omit"),
    "function": ("function", "omit"),
}


def pointer(case: Case) -> Question:
    """The question about a pointer that no rule decided."""
    item = case.item
    if item.union:
        text = "It shares its place with other members: what is it, whenever the user half looks?"
    elif item.pointee == "list":
        text = "Which struct is linked in this list, by which member?"
    elif item.pointee in ("void", "char"):
        text = "What does it point to, and how long is it?"
    elif case.known.tailed(item.struct):
        text = "It ends in an array without a length: how many bytes are there in all?"
    elif case.measured():
        text = "How many elements does it point to?"
    else:
        text = "Does it point to one element or to more, and if so to how many?"
    allowed = tuple(usage(word, typed=item.pointee != "void") for word in WORDS_FOR[item.pointee])
    return Question(item.key, item.where, item.type, text, _known(case), allowed)


def kernel_function(symbol: str, sites: list[Site], halves: Halves) -> Question:
    """The question about a function of the kernel that api.toml does not know."""
    known = tuple(_site(halves, site) for site in sites[:SHOWN])
    where = place(halves.graph, sites[0].function, sites[0].line)
    text = "How does the user half meet this function of the kernel?"
    return Question(f"kernel {symbol}", where, "", text, known, WAYS)


def variable(name: str, shared: Shared, halves: Halves) -> Question:
    """The question about a variable of the kernel that api.toml does not know."""
    facts = [halves.graph.functions[function] for function in shared.users]
    known = [f"{one.file}:{one.line}: touched by {one.name}" for one in facts]
    text = "How does the user half meet this variable of the kernel?"
    return Question(
        f"variable {name}",
        f"{facts[0].file}:{facts[0].line}",
        "",
        text,
        _some(known),
        VARIABLE_WAYS,
    )


def half(function: str, needs: list[str], halves: Halves) -> Question:
    """The question about a user function that needs what cannot be had outside the kernel."""
    facts = halves.graph.functions[function]
    text = (
        "It needs what cannot be had outside the kernel. Shall it stay in the kernel half, or "
        "is it never reached?"
    )
    return Question(
        function, f"{facts.file}:{facts.line}", "", text, _some(needs), ("kernel", "refuse")
    )


def _known(case: Case) -> tuple[str, ...]:
    """What the code shows, though not enough."""
    said = {
        "index": "indexed with",
        "arithmetic": "moved by",
        "cast": "used as",
        "string": "a string for",
        "list": "a list of",
    }
    found = [
        f"{case.known.at(seen)}: {said[seen.what]} {seen.detail or '?'}"
        for seen in case.trace.of(*said)
        if seen.detail != "0"
    ]
    found += [
        f"{case.known.at(seen)}: handed to {symbol}, argument {index}"
        for seen, symbol, index in case.sinks()
    ]
    found += [
        f"{case.known.at(seen)}: handed to a function that is not known" for seen in case.unknown()
    ]
    for function, allocation in case.known.allocations.get(case.item.place, ()):
        at = place(case.known.halves.graph, function, allocation.line)
        found.append(
            f"{at}: allocated by {allocation.api} with "
            f"{allocation.size or 'an unknown number of'} bytes"
        )
    return _some(list(dict.fromkeys(found)))


def _some(found: list[str]) -> tuple[str, ...]:
    return (*found[:SHOWN], *([f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []))


def _site(halves: Halves, site: Site) -> str:
    through = f" through {site.through}" if site.through else ""
    return (
        f"{place(halves.graph, site.function, site.line)}: called by "
        f"{halves.graph.functions[site.function].name}{through}"
    )
