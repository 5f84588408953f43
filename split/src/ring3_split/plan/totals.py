"""What a placement amounts to: lines, and calls that change sides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ring3_split.graph import lines
from ring3_split.plan.file import Side, Totals
from ring3_split.plan.subject import Subject
from ring3_split.plan.weights import Weights


def goes_up(caller: Side, callee: Side) -> bool:
    """Whether a call is an upcall.

    The kernel half's copy of a function calls as the kernel half does.
    """
    return caller is not Side.USER and callee is Side.USER


def goes_down(caller: Side, callee: Side) -> bool:
    """Whether a call is a downcall."""
    return caller is not Side.KERNEL and callee is Side.KERNEL


def upcalled(subject: Subject, sides: Mapping[str, Side]) -> dict[str, list[str]]:
    """The functions of the user half that are called from outside it, each with its callers.

    The stubs of the kernel half.
    """
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for key in subject.placed:
        if sides[key] is Side.USER and (by := subject.entered(key)):
            found[key] |= dict.fromkeys(by)
    for step in subject.steps:
        if goes_up(sides[step.caller], sides[step.callee]):
            found[step.callee][
                f"{subject.name(step.caller)}, {subject.at(step.caller, step.line)}"
            ] = None
    return {key: list(by) for key, by in found.items()}


def totals(subject: Subject, weights: Weights, sides: Mapping[str, Side]) -> Totals:
    """The totals of a placement.

    A function that a person put on both sides counts its calls as if each copy made all of them.
    """
    sizes = {key: lines(subject.graph.functions[key]) for key in sides}
    kernel = [key for key, side in sides.items() if side is not Side.USER]
    kept, whole = sum(sizes[key] for key in kernel), sum(sizes.values())
    ups = sum(count for key, count in weights.entries.items() if sides[key] is Side.USER)
    ups += sum(
        count for (one, other), count in weights.calls.items() if goes_up(sides[one], sides[other])
    )
    downs = sum(
        count
        for (one, other), count in weights.calls.items()
        if goes_down(sides[one], sides[other])
    )
    inside, registers = (
        sum(count for key, count in counts.items() if sides.get(key) is Side.USER)
        for counts in (weights.downcalls, weights.registers)
    )
    return Totals(
        functions=len(sizes),
        lines=whole,
        kernel_functions=len(kernel),
        kernel_lines=kept,
        kernel_percent=round(100 * kept / whole, 1) if whole else 0.0,
        upcalled=len(upcalled(subject, sides)),
        downcalled=len(
            {
                step.callee
                for step in subject.steps
                if goes_down(sides[step.caller], sides[step.callee])
            }
        ),
        upcalls=ups,
        downcalls=downs,
        crossings=ups + downs + (inside + registers if weights.whole else 0),
        kernel_downcalls=inside,
        register_accesses=registers,
    )
