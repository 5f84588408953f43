"""What a run has shown beyond the source.

Calls that the graph lacks, and entries that were called where sleeping is forbidden.

The source is the proof, and a run only one witness; but a witness against the tables of contexts or
against the graph is believed. What it saw goes into the subject, so that planner and judge both
know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ring3_split.context import Entry
from ring3_split.graph import Edge, Graph
from ring3_split.model import Stored
from ring3_split.profile.record import Profile

BY = "the kernel, as the profile saw"


def graph_of(graph: Graph, profile: Profile) -> Graph:
    """The graph with the calls that the profile saw and the source did not show.

    Such an entry has an unknown context.
    """
    calls = {caller: dict(callees) for caller, callees in graph.calls.items()}
    entries = dict(graph.entries)
    for pair in profile.missing:
        if pair.callee not in graph.functions:
            continue
        function = graph.functions[pair.callee]
        if pair.caller in graph.functions:
            edge = Edge(
                graph.functions[pair.caller].line, "field", field="a call that the profile saw"
            )
            known = calls.setdefault(pair.caller, {}).get(pair.callee, ())
            calls[pair.caller][pair.callee] = (*known, edge)
        elif not pair.caller:
            entries[pair.callee] = (
                *entries.get(pair.callee, ()),
                Stored(function.name, function.line, field=BY),
            )
    return replace(graph, calls=calls, entries=entries)


def contexts_of(
    contexts: Mapping[str, tuple[Entry, ...]], profile: Profile
) -> dict[str, tuple[Entry, ...]]:
    """The contexts, with the entries that the profile saw called in atomic context."""
    found = dict(contexts)
    for pair in profile.pairs:
        known = found.get(pair.callee, ())
        if not pair.caller and pair.atomic and all(entry.context != "atomic" for entry in known):
            found[pair.callee] = (*known, Entry("atomic", False, f"{BY} {pair.atomic} times"))
    return found


def atomic_calls(profile: Profile) -> dict[tuple[str, str], int]:
    """Calls between functions of the driver that were made where sleeping is forbidden."""
    return {
        (pair.caller, pair.callee): pair.atomic
        for pair in profile.pairs
        if pair.caller and pair.atomic
    }
