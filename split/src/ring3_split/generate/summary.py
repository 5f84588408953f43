"""What was generated and built, in numbers."""

from __future__ import annotations

import msgspec

from ring3_split.generate.build import Built
from ring3_split.generate.halves import Generated
from ring3_split.graph import lines


class Summary(msgspec.Struct, omit_defaults=True):
    """Of one driver."""

    driver: str  # its module
    kernel: str  # the kernel whose source was read
    folder: str  # where the halves are
    lines: int  # of the driver's functions
    kernel_lines: int  # of those that are compiled into its module
    kernel_functions: int  # the same in functions
    user_functions: int  # of the driver, in the user half
    entries: int  # functions of the user half that are called up
    calls: int  # functions that are called down
    symbols: int  # functions and variables that both halves have, each at its own address
    fields: int  # members that cross, counted for each entry that has them
    refused: dict[str, str]  # what the user half cannot have, and why
    believed: list[str]  # numbers that the user half may set to anything
    modules: list[str] = []  # the run time's and the driver's
    module_bytes: int = 0  # of the driver's module, with debug information
    program: str = ""  # the user half
    stops: list[str] = []  # what the user half refers to, and would stop at


def summary(generated: Generated, built: Built | None) -> Summary:
    """Counts."""
    table, survey = generated.border.table, generated.border.survey
    graph = survey.halves.graph
    own = dict(graph.owned())
    removed = set(generated.removed.get("kernel", ()))
    found = Summary(
        driver=survey.border.driver,
        kernel=survey.border.kernel,
        folder=str(generated.folder),
        lines=sum(lines(one) for one in own.values()),
        kernel_lines=sum(lines(one) for key, one in own.items() if key not in removed),
        kernel_functions=sum(key not in removed for key in own),
        user_functions=len(survey.halves.user),
        entries=len(table.entries),
        calls=len(table.calls),
        symbols=len(table.symbols),
        fields=sum(len(fields) for views in table.views.values() for fields in views.values()),
        refused=dict(sorted(table.refused.items())),
        believed=sorted(_believed(generated)),
    )
    if built:
        found.modules, found.program = [str(built.runtime), str(built.driver)], str(built.program)
        found.module_bytes, found.stops = built.driver.stat().st_size, list(built.stops)
    return found


def _believed(generated: Generated) -> set[str]:
    """Numbers of which nothing says what they may be, neither the code nor the plan."""
    return {
        f"{kind}.{one.path}"
        for views in generated.border.table.views.values()
        for kind, fields in views.items()
        for one in fields
        if one.written
        and one.kind in ("DATA", "BITS")
        and not (one.bounds or one.requires or one.once)
    }
