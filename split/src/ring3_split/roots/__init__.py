"""Critical root functions: where the kernel enters a driver to move data or to handle an interrupt.

[Microdrivers 2].
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ring3_split.errors import Refusal
from ring3_split.graph import Graph
from ring3_split.model import Stored
from ring3_split.roots.templates import OTHER, Kind, Template, families, family_of, templates

if TYPE_CHECKING:
    from ring3_split.driver import Driver

__all__ = [
    "ALWAYS",
    "OTHER",
    "Finder",
    "Kind",
    "Root",
    "Rule",
    "Template",
    "families",
    "family_of",
    "of",
    "select",
    "templates",
]

Finder = Literal["signature", "binding"]
ALWAYS: frozenset[Kind] = frozenset({"interrupt", "poll", "data"})
OPTIONS: Mapping[str, Kind] = {"tasklets": "tasklet", "timers": "timer", "urbs": "urb"}
U32 = 0xFFFFFFFF  # clang writes a hash as signed in one place and unsigned in another


@dataclass(frozen=True)
class Root:
    """Why a function is a root."""

    rule: Finder
    template: str  # "net/transmit"
    kind: Kind
    where: str  # "stored to net_device_ops.ndo_start_xmit, line 810 (e1000_netdev_ops)"
    why: str = ""  # "takes a packet to the device"


@dataclass(frozen=True)
class Rule:
    """Which roots count: how they were found, and whether what runs later in a softirq does."""

    finders: frozenset[Finder]
    kinds: frozenset[Kind] = ALWAYS

    @classmethod
    def parse(cls, text: str) -> Rule:
        """A rule as a person writes it: "signature", as the paper has it; "binding".

        "signature+tasklets+timers+urbs".

        Raises:
            Refusal: a word that is none of these, or no finder.
        """
        words = text.split("+")
        finders: frozenset[Finder] = frozenset(f for f in ("signature", "binding") if f in words)
        wrong = [word for word in words if word not in ("signature", "binding", *OPTIONS)]
        if wrong or not finders:
            known = ", ".join(f"+{option}" for option in OPTIONS)
            raise Refusal(
                f"no rule {text!r}: a rule is signature, binding or signature+binding, and then "
                f"any of {known}"
            )
        return cls(finders, ALWAYS | {OPTIONS[word] for word in words if word in OPTIONS})

    def has(self, root: Root) -> bool:
        """Whether a root counts."""
        return root.rule in self.finders and root.kind in self.kinds


def of(graph: Graph, driver: Driver, rule: Rule | str | None = None) -> dict[str, tuple[Root, ...]]:
    """The root functions of a driver, with all reasons; without a rule those of any."""
    found: dict[str, dict[Root, None]] = defaultdict(dict)
    known = templates(driver.family)
    fields = {name: template for template in reversed(known) for name in template.fields}
    arguments = {name: template for template in reversed(known) for name in template.arguments}
    types: dict[int, dict[Template, str]] = defaultdict(
        dict
    )  # the first field of a template stands for all of its type
    for template in known:
        for name in template.fields:
            if name in driver.signatures:
                types[driver.signatures[name] & U32].setdefault(template, name)
    for function, places in graph.stored.items():
        if not graph.own(function):
            continue
        for place in places:
            bound = fields.get(place.field) or arguments.get(f"{place.api}:{place.argument}")
            if bound:
                found[function][
                    Root("binding", bound.name, bound.kind, where(place), bound.why)
                ] = None
        signature = graph.functions[function].signature
        for template, name in (
            types.get(signature & U32, {}).items() if signature is not None else ()
        ):
            found[function][
                Root(
                    "signature",
                    template.name,
                    template.kind,
                    f"has the type of {name}",
                    template.why,
                )
            ] = None
    return (
        select({function: tuple(roots) for function, roots in found.items()}, rule)
        if rule
        else {f: tuple(r) for f, r in found.items()}
    )


def select(found: Mapping[str, tuple[Root, ...]], rule: Rule | str) -> dict[str, tuple[Root, ...]]:
    """The roots that count by a rule."""
    chosen = Rule.parse(rule) if isinstance(rule, str) else rule
    kept = {
        function: tuple(root for root in roots if chosen.has(root))
        for function, roots in found.items()
    }
    return {function: roots for function, roots in kept.items() if roots}


def where(place: Stored) -> str:
    """A place that takes a function's address, in words."""
    line = f"line {place.line}" + (f" ({place.object})" if place.object else "")
    if place.field:
        return f"stored to {place.field}, {line}"
    if place.api:
        return (
            f"passed to {place.api}, argument {place.argument + 1}, {line}"
            if place.argument >= 0
            else f"{place.api}, {line}"
        )
    return f"its address is taken, {line}"
