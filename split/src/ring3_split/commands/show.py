"""`ring3 split show`.

A driver's critical functions, and what else has to stay in the kernel, each with the reason.
"""

from __future__ import annotations

import argparse
import difflib
import sys

import msgspec
from rich.console import Console

from ring3_split import driver, roots, source_options
from ring3_split.errors import Refusal
from ring3_split.graph import Graph
from ring3_split.show import text
from ring3_split.show.findings import Findings, find

WIDE = 10_000  # columns of what is not a terminal: nothing is folded


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "show",
        help="a driver's critical functions, and what else has to stay in the kernel, with the "
        "reasons",
        description="Shows which functions of a driver are critical, each with the calls that "
        "make it so, and what else stays.",
    )
    parser.add_argument("driver", metavar="DRIVER", help="module, as `modinfo` names it")
    parser.add_argument(
        "--function",
        metavar="NAME",
        help="only this one: who calls it, what it calls, which locks it holds",
    )
    parser.add_argument(
        "--precision",
        choices=("signature", "field"),
        default="field",
        help="of calls through pointers (default field, as plan has it)",
    )
    parser.add_argument(
        "--rule",
        default="signature",
        metavar="RULE",
        help="how roots are found: signature (default), binding, or both joined by +; then "
        "+tasklets, +timers, +urbs",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable")
    source_options.add(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Looks at the driver and prints it."""
    roots.Rule.parse(arguments.rule)
    kernel = source_options.kernel(arguments)
    loaded = driver.load(kernel, arguments.driver, data=True, jobs=arguments.jobs)
    found, graph = find(kernel.name, loaded, arguments.rule, arguments.precision)
    if arguments.json:
        whole = found if not arguments.function else _only(found, _named(graph, arguments.function))
        sys.stdout.buffer.write(msgspec.json.encode(whole) + b"\n")
        return 0
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    if arguments.function:
        shown = {one.id: one for one in found.functions}
        for key in _named(graph, arguments.function):
            text.function(shown.get(key), key, graph, console)
    else:
        text.driver(found, graph, console)
    return 0


def _only(found: Findings, keys: list[str]) -> Findings:
    return msgspec.structs.replace(
        found, functions=tuple(one for one in found.functions if one.id in keys)
    )


def _named(graph: Graph, name: str) -> list[str]:
    keys = graph.find(name)
    if not keys:
        near = difflib.get_close_matches(
            name, {function.name for function in graph.functions.values()}, n=4
        )
        raise Refusal(
            f"{graph.driver.name} has no function "
            f"{name}{'; near names: ' + ', '.join(near) if near else ''}"
        )
    return keys
