"""Whether halves can be built of what is known.

What nobody has answered, or nobody would set, stops the kernel at run time.
"""

from __future__ import annotations

from collections.abc import Iterable

from ring3_split.errors import Refusal
from ring3_split.generate.border import Border
from ring3_split.model import Access

SHOWN = 6


def check(border: Border) -> None:
    """Refuses to build what is not known to be whole.

    Raises:
        Refusal: a question is open; the user half sets a member that does not cross, and the
            kernel half uses it.
    """
    name = border.survey.border.driver
    # A pointer that leads each entry to a struct of its own needs no answer.
    told = border.told - border.table.refused.keys()
    asked = sorted(border.survey.questions.keys() - border.wishes.answers.keys() - told)
    if asked:
        raise Refusal(
            f"{name}: open questions, and what is not known is not built: {_some(asked)}. Next: "
            f"`ring3 split annotate {name} "
            "--out FILE`, with the same --plan, writes them; answer them, and build with "
            "--annotations FILE"
        )
    unset = unset_by_anybody(border)
    if unset:
        raise Refusal(
            f"{name}: the user half sets what does not cross, and the kernel half would use it as "
            "it was: "
            f"{_some([f'{one} ({by})' for one, by in unset.items()])}. Next: place what sets it "
            "in the kernel half, in a plan"
        )


def unset_by_anybody(border: Border) -> dict[str, str]:
    """Members that do not cross, though the user half sets and the kernel half uses them.

    Each maps to the functions that set it.
    """
    graph, halves = border.survey.halves.graph, border.survey.halves
    used = {access.field for key in halves.kernel for access in border.accesses.get(key, ())}
    found: dict[str, set[str]] = {}
    for key in halves.user - halves.kernel:
        whole = _whole(border, border.accesses.get(key, ()))
        for access in border.accesses.get(key, ()):
            alone = any(
                (access.field.partition(".")[0], line) not in whole for line in access.lines
            )
            if (
                "w" in access.way
                and alone
                and access.field in border.table.refused
                and access.field in used
            ):
                found.setdefault(access.field, set()).add(graph.functions[key].name)
    return {name: ", ".join(sorted(by)) for name, by in sorted(found.items())}


def _whole(border: Border, accesses: Iterable[Access]) -> set[tuple[str, int]]:
    """Structs, with lines at which most of their members are written at once.

    Zeroed or copied, and none of them set.
    """
    written: dict[tuple[str, int], set[str]] = {}
    for access in accesses:
        for line in access.lines if access.way == "w" else ():
            written.setdefault((access.field.partition(".")[0], line), set()).add(access.field)
    return {
        place
        for place, fields in written.items()
        if 2 * len(fields) > max(_members(border, place[0]), SHOWN)
    }


def _members(border: Border, struct: str) -> int:
    return border.layouts.count(struct) if struct in border.layouts else 0


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (
        f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    )
