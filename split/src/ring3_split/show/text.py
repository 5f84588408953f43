"""Findings for a person to read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.markup import escape

from ring3_split.graph import Edge, Graph, lines
from ring3_split.model import Region
from ring3_split.show.findings import Count, Findings, Shown, Step

INDENT = "    "
MANY = 8  # lines of calls of one kind
KINDS = {
    "critical": "called by a critical function that has it run where it must not sleep",
    "entry": "entered where it must not sleep, or called from there",
    "unknown": "entered, and whether it may sleep is not known, or called from there",
    "region": "called where the caller must not sleep",
    "fixed": "no process can run it",
    "lock": "shares a spinlock with what stays",
    "section": "holds a spinlock while it calls what stays",
    "inline": "an inline that what stays uses",
}


def driver(found: Findings, graph: Graph, console: Console) -> None:
    """Prints a driver."""
    by = "field" if found.precision == "field" else "signature"
    _head(found, console)
    console.print(
        f"Critical functions (roots by {escape(found.rule)}, calls through pointers by {by})",
        style="bold",
    )
    critical = [one for one in found.functions if one.side == "critical"]
    for one in sorted(critical, key=lambda one: (not one.roots, len(one.chain), one.id)):
        _line(one, console)
        for text in _because(one, graph):
            console.print(f"{INDENT}{escape(text)}", style="dim", soft_wrap=True)
    if not critical:
        console.print(f"  none: no function of {found.driver} is a root by this rule")
    groups: dict[str, list[Shown]] = defaultdict(list)
    for one in found.functions:
        if one.reasons:
            groups[one.reasons[0].kind].append(one)
    for kind, title in KINDS.items():
        if groups[kind]:
            console.print(f"\nStays: {title}", style="bold")
        for one in groups[kind]:
            _line(one, console)
            for why in one.reasons:
                console.print(f"{INDENT}{escape(why.text)}", style="dim", soft_wrap=True)


def _head(found: Findings, console: Console) -> None:
    console.print(f"[bold]{found.driver}[/bold]  {found.kernel}, family {found.family}")
    for part in found.parts:
        what = "library " if part.library else ""
        size = (
            f"{_some(part.units, 'unit')}, {_some(part.functions, 'function')}, {part.lines:,} "
            "lines"
        )
        console.print(f"  {what}{part.name}  {part.directory}: {size}", soft_wrap=True)
        for failure in part.failures:
            console.print(
                f"{INDENT}not read: {escape(failure.source)}: {escape(failure.reason)}",
                style="red",
                soft_wrap=True,
            )
        for name, reason in part.skipped.items():
            console.print(
                f"{INDENT}not C: {escape(name)}: {escape(reason)}", style="dim", soft_wrap=True
            )
    free = Count(
        found.all.functions - found.critical.functions - found.stays.functions,
        found.all.lines - found.critical.lines - found.stays.lines,
    )
    for name, count in (
        ("critical", found.critical),
        ("stays for another reason", found.stays),
        ("may move", free),
    ):
        functions = _percent(count.functions, found.all.functions)
        share = f"{functions} of functions, {_percent(count.lines, found.all.lines)} of lines"
        console.print(
            f"  {name:24} {count.functions:5} functions {count.lines:7,} lines   {share}",
            soft_wrap=True,
        )
    console.print()


def _line(one: Shown, console: Console) -> None:
    place_ = f"{one.file.rpartition('/')[2]}:{one.line}"
    console.print(
        f"  [bold]{one.name}[/bold]  {place_}, {_some(one.lines, 'line')}", soft_wrap=True
    )


def _because(one: Shown, graph: Graph) -> Iterator[str]:
    """Why a function is critical."""
    for root in one.roots:
        yield f"root: {root.why} ({root.where})"
    if one.chain:
        yield _chain(one.chain, graph)


def _chain(chain: Iterable[Step], graph: Graph) -> str:
    """Calls in a row: "e1000_clean > 3817 > e1000_update_itr".

    Numbers are the lines of the calls.
    """
    text = ""
    for step in chain:
        text = text or graph.functions[step.caller].name
        by = (
            ""
            if step.how == "direct"
            else f", by {step.field or 'its type'}"
            if step.how == "field"
            else ", by its type"
        )
        text += f" > {graph.functions[step.callee].name} (line {step.line}{by})"
    return text


def function(one: Shown | None, key: str, graph: Graph, console: Console) -> None:
    """Prints one function, which is the driver's own (`one`) or an inline of a header."""
    facts = graph.functions[key]
    side = (
        {"critical": "critical", "stays": "stays in the kernel", "free": "may move"}[one.side]
        if one
        else "inline of a header"
    )
    console.print(
        f"[bold]{facts.name}[/bold]  {facts.file}:{facts.line}-{facts.end}, {lines(facts)} lines, "
        f"{side}",
        soft_wrap=True,
    )
    parameters = (
        ", ".join(f"{parameter.type} {parameter.name}" for parameter in facts.parameters) or "void"
    )
    console.print(f"  {escape(f'{facts.returns} {facts.name}({parameters})')}", soft_wrap=True)
    if one:
        for text in (*_because(one, graph), *(why.text for why in one.reasons)):
            console.print(f"  {escape(text)}", soft_wrap=True)
        for entry in one.entries:
            lock = ", with rtnl held" if entry.rtnl else ""
            console.print(
                f"  entered by {entry.by}, {entry.context} context{lock} "
                f"[dim]{escape(entry.source)}[/dim]",
                soft_wrap=True,
            )
    for region in facts.regions:
        console.print(
            f"  from line {region.line} it {escape(_holds(region).rpartition(' (')[0])}",
            soft_wrap=True,
        )
    _callers(graph.callers().get(key, {}), graph, console)
    callees = graph.calls.get(key, {})
    _callees(
        "calls",
        {other: edges for other, edges in callees.items() if graph.own(other)},
        graph,
        console,
    )
    _callees(
        "calls inlines of the kernel's headers",
        {o: edges for o, edges in callees.items() if not graph.own(o)},
        graph,
        console,
    )
    outside = graph.external.get(key, {})
    if outside:
        console.print("calls of the kernel", style="bold")
        for name, calls in sorted(outside.items()):
            console.print(f"  {name}  {_lines(call.line for call in calls)}", soft_wrap=True)
    for call in graph.leaving.get(key, ()):
        console.print(
            f"  line {call.line}: a call through {call.field or 'a pointer'}, which leaves the "
            "driver",
            soft_wrap=True,
        )


def _callers(callers: dict[str, tuple[Edge, ...]], graph: Graph, console: Console) -> None:
    if callers:
        console.print("called by", style="bold")
    for key, edges in sorted(callers.items()):
        caller = graph.functions[key]
        for how, line in _alike(edges).items():
            console.print(
                f"  {caller.name}  {caller.file.rpartition('/')[2]}, {_lines(line)}{escape(how)}",
                soft_wrap=True,
            )


def _callees(
    title: str, callees: dict[str, tuple[Edge, ...]], graph: Graph, console: Console
) -> None:
    if callees:
        console.print(title, style="bold")
    for key, edges in sorted(callees.items()):
        for how, line in _alike(edges).items():
            console.print(
                f"  {graph.functions[key].name}  {_lines(line)}{escape(how)}", soft_wrap=True
            )


def _alike(edges: Iterable[Edge]) -> dict[str, list[int]]:
    """The lines of calls that are of one kind and under the same locks."""
    found: dict[str, list[int]] = defaultdict(list)
    for edge in edges:
        by = "" if edge.how == "direct" else f", through {edge.field or 'a pointer'} ({edge.how})"
        found[by + "".join(f", {_holds(region)}" for region in edge.held)].append(edge.line)
    return found


def _lines(numbers: Iterable[int]) -> str:
    """Line numbers, of many the first."""
    some = sorted(set(numbers))
    more = f" and {len(some) - MANY} more" if len(some) > MANY else ""
    return (
        f"line{'s' if len(some) > 1 else ''} "
        f"{', '.join(str(number) for number in some[:MANY])}{more}"
    )


def _some(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _holds(region: Region) -> str:
    """What a region is, in words."""
    what = {
        "irq-off": "has interrupts off",
        "bh-off": "has softirqs off",
        "preempt-off": "has preemption off",
        "rcu": "reads under RCU",
        "rtnl": "holds rtnl",
    }.get(region.kind, f"holds {region.name if region.lock != '?' else 'a lock'}")
    return f"{what} (since line {region.line})"
