"""Functions that no process can run, whatever a cut would save by moving them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ring3_split.graph import Graph
from ring3_split.indirect import is_header
from ring3_split.model import Function, Given, Kind, Region

LIFE = {"module.init": "loads the module", "module.exit": "unloads the module"}

# Sections that say when, or how guarded, a function runs.
SECTIONS = {
    ".init": "runs while the module is loaded, and is freed then",
    ".exit": "runs while the module is unloaded",
    ".noinstr": "may not be traced or interrupted by instrumentation",
    ".entry": "is entry code of the kernel",
    ".sched": "belongs to the scheduler",
    ".kprobes": "may not be probed",
    ".cpuidle": "runs while the processor is idle",
}

# Regions without a lock: what they do to the processor cannot be done from a process.
BARE = {
    Kind.IRQ_OFF: "turns interrupts off",
    Kind.BH_OFF: "turns bottom halves off",
    Kind.PREEMPT_OFF: "turns preemption off",
    Kind.RCU: "reads under RCU",
}

# The same, where a function ends what its caller began.
ENDS = {
    Kind.IRQ_OFF: "turns interrupts on",
    Kind.BH_OFF: "turns bottom halves on",
    Kind.PREEMPT_OFF: "turns preemption on",
    Kind.RCU: "ends a reader's section of RCU",
}


def fixed(graph: Graph, structs: Mapping[str, str]) -> dict[str, str]:
    """Function id -> why it stays. `structs` says which file declares a struct."""
    reasons = {
        key: next(_reasons(graph, key, function, structs), "") for key, function in graph.owned()
    }
    return {key: reason for key, reason in reasons.items() if reason}


def _reasons(
    graph: Graph, key: str, function: Function, structs: Mapping[str, str]
) -> Iterator[str]:
    """Why a function stays, the plainest reason first."""
    file = function.file.rsplit("/", 1)[-1]
    for place in graph.entries.get(key, ()):
        if place.field in LIFE:
            yield f"{LIFE[place.field]}, {file}:{function.line}"
    for section, what in SECTIONS.items():
        if function.section.startswith(section):
            yield f"{what} (section {function.section}), {file}:{function.line}"
    if function.percpu:
        yield f"uses per-CPU data, {file}:{function.percpu[0]}"
    if function.assembly:
        yield f"has inline assembly, {file}:{function.assembly[0]}"
    yield from _locked(function, structs, file)


def _locked(function: Function, structs: Mapping[str, str], file: str) -> Iterator[str]:
    """Why the atomic sections that a function begins or ends keep it."""
    for region in function.regions:
        if region.kind in BARE:
            yield f"{BARE[region.kind]}, {file}:{region.line}"
        elif region.kind.atomic and region.kept:
            yield f"returns with {held(region)} held, {file}:{region.line}"
        elif region.kind.atomic and (why := _foreign(function, region, structs)):
            yield f"takes {why}, {file}:{region.line}"
    for one in function.given:
        if one.kind.atomic:
            yield (
                "ends a section of its caller: "
                f"{ENDS.get(one.kind) or f'gives back {held(one)}'}, {file}:{one.line}"
            )


def held(lock: Region | Given) -> str:
    """A spinlock, in words."""
    return lock.lock if lock.lock not in ("", "?") else "a spinlock"


def _foreign(function: Function, region: Region, structs: Mapping[str, str]) -> str:
    """Why a spinlock cannot be the user half's alone.

    It has no name here, or the kernel's own code may take it too.
    """
    if region.lock == "?":
        return "a spinlock that cannot be named"
    if any(region.lock == parameter.name for parameter in function.parameters):
        return f"the spinlock that its caller passes as {region.lock}"
    struct = region.lock.rpartition(".")[0]
    if struct and is_header(structs.get(struct.split(".")[0], "include/")):
        return f"{region.lock}, which the kernel may take too"
    return ""
