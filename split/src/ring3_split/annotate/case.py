"""One pointer at the border, with all that is known of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ring3_split.annotate.api import Apis
from ring3_split.annotate.border import Interface
from ring3_split.annotate.flow import UNKNOWN, Flows, Seen, Trace
from ring3_split.annotate.halves import Halves
from ring3_split.annotate.items import Item
from ring3_split.annotate.layouts import Layouts
from ring3_split.annotate.vocabulary import Annotation
from ring3_split.indirect import is_header
from ring3_split.model import Allocation

BACK = re.compile(r"-\d+")


@dataclass(frozen=True)
class Evidence:
    """A sentence that the code at a place proves."""

    where: str  # path:line, or "api.toml"
    says: str

    def __str__(self) -> str:
        return f"{self.where}: {self.says}"


@dataclass(frozen=True)
class Inferred:
    """What a pointer is, and why."""

    annotation: Annotation
    evidence: tuple[Evidence, ...]


@dataclass
class Knowledge:
    """All that rules may look at."""

    halves: Halves
    apis: Apis
    layouts: Layouts
    border: Interface
    flows: dict[str, Flows]  # of the code of each half: "user", "kernel"
    allocations: dict[str, list[tuple[str, Allocation]]]  # place -> function and allocation
    tables: set[str] = field(default_factory=set)  # structs whose members hold functions

    def foreign(self, struct: str) -> bool:
        """Whether a struct is the kernel's, and not the driver's own."""
        layout = self.layouts.get(struct)
        return layout is not None and is_header(layout.file)

    def tailed(self, struct: str) -> bool:
        """Whether the user half touches the array without a length that a struct ends in."""
        layout, used = self.layouts.get(struct), self.border.types.get(struct)
        last = layout.members[-1] if layout and layout.members else None
        return bool(
            used
            and last
            and not last.size
            and last.type.endswith("[]")
            and last.name in used.members
        )

    def at(self, seen: Seen) -> str:
        """Where something was seen."""
        return f"{self.halves.graph.functions[seen.function].file}:{seen.line}"


@dataclass(frozen=True)
class Case:
    """One pointer with what its flow shows."""

    item: Item
    trace: Trace
    known: Knowledge

    def evidence(self, seen: Seen, says: str) -> Evidence:
        """A sentence about something that was seen."""
        return Evidence(self.known.at(seen), says)

    def sinks(self) -> list[tuple[Seen, str, int]]:
        """Arguments of the kernel that the pointer is handed to: place, symbol, index."""
        found = []
        for seen in self.trace.of("flow"):
            if seen.detail.startswith("kernel "):
                symbol, _, index = seen.detail.removeprefix("kernel ").rpartition("#")
                found.append((seen, symbol, int(index)))
        return found

    def notes(self) -> list[tuple[Seen, str, str]]:
        """The notes of api.toml on those arguments; "" where it has none."""
        apis = self.known.apis
        return [
            (seen, symbol, api.arguments.get(index, "") if (api := apis.of(symbol)) else "")
            for seen, symbol, index in self.sinks()
        ]

    def touched(self) -> list[Seen]:
        """Places where a member is reached through it, the driver's own before those in headers."""
        graph = self.known.halves.graph
        return sorted(self.trace.of("member"), key=lambda seen: not graph.own(seen.function))

    def given(self) -> list[Seen]:
        """Places where it is handed to a function that looks at it in this process."""
        apis = self.known.apis
        return [
            seen
            for seen, symbol, index in self.sinks()
            if (api := apis.of(symbol))
            and api.way == "local"
            and not api.arguments.get(index, "").endswith("handle")
        ]

    def measured(self) -> list[Seen]:
        """Places where it is used as more than one object.

        Element 0 is the object, and back of it is the struct around it.
        """
        return [
            seen
            for seen in self.trace.of("index", "arithmetic")
            if seen.detail != "0" and not BACK.fullmatch(seen.detail)
        ]

    def followed(self) -> list[Seen]:
        """Places where what it points to is looked at."""
        return self.trace.of("member", "index", "arithmetic", "list", "container", "string", "cast")

    def unknown(self) -> list[Seen]:
        """Places where the trace is lost."""
        return [seen for seen in self.trace.of("flow") if seen.detail == UNKNOWN]


def case(item: Item, known: Knowledge) -> Case:
    """A pointer with its trace through the code that receives it."""
    return Case(item, known.flows[item.side].trace(item.place), known)


def inferred(annotation: Annotation, *evidence: Evidence) -> Inferred:
    """What a rule says."""
    return Inferred(annotation, evidence)
