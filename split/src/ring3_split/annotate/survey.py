"""Everything that is known about the border of a plan, and everything that must be asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from ring3_split.annotate import ask
from ring3_split.annotate.api import Apis, known
from ring3_split.annotate.ask import Question
from ring3_split.annotate.border import Interface
from ring3_split.annotate.case import Inferred, Knowledge, case
from ring3_split.annotate.flow import flows, parameter
from ring3_split.annotate.halves import Halves, halves
from ring3_split.annotate.infer import infer
from ring3_split.annotate.interface import interface
from ring3_split.annotate.items import Item, items
from ring3_split.annotate.kernel_only import kernel_only
from ring3_split.annotate.layouts import Layouts
from ring3_split.graph import Graph, lines
from ring3_split.model import Allocation, Data
from ring3_split.prototypes import Prototype


@dataclass
class Survey:
    """The border with what was inferred and what is asked."""

    halves: Halves
    layouts: Layouts
    border: Interface
    items: dict[str, Item] = field(default_factory=dict)
    inferred: dict[str, Inferred] = field(default_factory=dict)
    questions: dict[str, Question] = field(default_factory=dict)

    def concerns(self, key: str) -> bool:
        """Whether an answer to this key changes something.

        It is asked, inferred, or a function of the driver.
        """
        graph = self.halves.graph
        return (
            key in self.questions
            or key in self.items
            or (key in graph.functions and graph.own(key))
        )

    @property
    def lines(self) -> int:
        """Lines of the driver's own functions, against which annotations are counted."""
        return sum(lines(function) for _, function in self.halves.graph.owned())


def survey(
    graph: Graph,
    sides: Mapping[str, str],
    kernel: str,
    answers: Mapping[str, str] | None = None,
    prototypes: Mapping[str, Prototype] | None = None,
) -> Survey:
    """Looks at the border of a plan.

    `answers` are those that were given before: a function that a person keeps in the kernel half is
    moved there, and a function of the kernel whose way was said is known.
    """
    answers = answers or {}
    apis = known().told(answers)
    planned = halves(graph, apis, sides)
    asked = {
        key: ask.half(key, needs, planned)
        for key, needs in kernel_only(planned, graph.driver.data).items()
    }
    kept = [key for key, answer in answers.items() if answer == "kernel"]
    split = halves(graph, apis, sides, kept, prototypes)
    layouts = Layouts(graph.driver.data, apis.omitted)
    border = interface(split, graph.driver.data, layouts, graph.driver.name, kernel)
    result = Survey(split, layouts, border, questions=asked)
    _pointers(result, _knowledge(split, apis, layouts, border))
    _kernel(result)
    return result


def _kernel(result: Survey) -> None:
    """Asks for what the table lacks, whether a person has answered it or not."""
    table = known()
    for symbol, sites in result.halves.kernel_calls().items():
        if table.of(symbol) is None:
            question = ask.kernel_function(symbol, sites, result.halves)
            result.questions[question.key] = question
    for name, shared in result.border.variables.items():
        if shared.users and not table.variable(name):
            question = ask.variable(name, shared, result.halves)
            result.questions[question.key] = question


def _pointers(result: Survey, knowledge: Knowledge) -> None:
    for item in items(result.halves, result.layouts, result.border):
        one = case(item, knowledge)
        result.items[item.key] = item
        found = infer(one)
        if found:
            result.inferred[item.key] = found
        else:
            result.questions[item.key] = ask.pointer(one)


def _knowledge(split: Halves, apis: Apis, layouts: Layouts, border: Interface) -> Knowledge:
    graph, data = split.graph, split.graph.driver.data
    code = {"user": split.user_code, "kernel": split.kernel_code}
    return Knowledge(
        halves=split,
        apis=apis,
        layouts=layouts,
        border=border,
        flows={side: flows(split, data, functions) for side, functions in code.items()},
        allocations=_allocations(data),
        tables={
            place.field.rpartition(".")[0]
            for places in graph.stored.values()
            for place in places
            if place.object and place.field
        },
    )


def _allocations(data: tuple[Data, ...]) -> dict[str, list[tuple[str, Allocation]]]:
    """Allocations by the place that receives them."""
    found: dict[str, dict[tuple[str, Allocation], None]] = defaultdict(dict)
    for unit in data:
        for function, allocations in unit.allocations.items():
            for allocation in allocations:
                kind, _, name = allocation.into.partition(" ")
                place = parameter(function, int(name)) if kind == "param" else allocation.into
                found[place if " " in place or "#" in place else f"field {place}"][
                    function, allocation
                ] = None
    return {place: list(which) for place, which in found.items()}
