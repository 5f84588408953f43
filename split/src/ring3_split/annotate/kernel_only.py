"""User functions that need what cannot be had outside the kernel.

Packets, pages, memory of each processor.
"""

from __future__ import annotations

from collections.abc import Iterator

from ring3_split.annotate.halves import Halves
from ring3_split.annotate.interface import place
from ring3_split.model import Data


def kernel_only(halves: Halves, data: tuple[Data, ...]) -> dict[str, list[str]]:
    """Function -> what it needs, each with its place."""
    found: dict[str, dict[str, None]] = {}
    for needs in (_calls(halves), _packets(halves, data), _variables(halves, data)):
        for function, need in needs:
            found.setdefault(function, {})[need] = None
    return {function: list(needs) for function, needs in sorted(found.items())}


def _calls(halves: Halves) -> Iterator[tuple[str, str]]:
    for symbol, sites in halves.kernel_calls().items():
        api = halves.apis.of(symbol)
        if api and api.way == "never":
            for site in sites:
                yield (
                    site.function,
                    f"{place(halves.graph, site.function, site.line)}: calls {symbol}: "
                    f"{api.reason}",
                )


def _packets(halves: Halves, data: tuple[Data, ...]) -> Iterator[tuple[str, str]]:
    for unit in data:
        for function in sorted(halves.user & unit.accesses.keys()):
            for access in unit.accesses[function]:
                reason = halves.apis.packets.get(access.field.partition(".")[0])
                if reason:
                    at = place(halves.graph, function, access.lines[0])
                    yield function, f"{at}: looks at {access.field}: {reason}"


def _variables(halves: Halves, data: tuple[Data, ...]) -> Iterator[tuple[str, str]]:
    own = {name for unit in data for name, one in unit.variables.items() if not one.external}
    for function in sorted(halves.user):
        compiled = halves.compiled(function)
        for unit in data:
            for code in sorted(compiled & unit.globals.keys()):
                for name in unit.globals[code]:
                    if name not in own and halves.apis.variable(name) == "never":
                        at = place(halves.graph, code, halves.graph.functions[code].line)
                        yield function, f"{at}: uses {name}"
