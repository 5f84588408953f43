"""Which code may run while a lock is held.

A forward dataflow over the basic blocks of each function that touches a lock, its own or through a function of the unit that
returns with one held. The state is the set of paths.py; what a call does is a list of outcomes, from locks.toml or from the
summary of the function called. Summaries are made bottom-up until nothing changes, so a driver's `foo_lock()`, the inline
functions of the kernel's headers and the constructors behind `guard()` need no entry in a table.

# What it promises
May-hold: a region holds every line that can run while the lock is held, by some way through the function. A lock that is given
back on one way only is still held after the ways meet. It may hold more: two tests of the same field are not known to agree.

# What it does not see
Locks taken behind a pointer, and by functions of another unit; those are for the linked graph.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from ring3_split.ir.module import Body, IrModule
from ring3_split.ir.instruction import Instruction
from ring3_split.ir.origin import Origin, Origins
from ring3_split.model import Kind, Region
from ring3_split.reader.conditions import Fact, Value, signs
from ring3_split.reader.flow import Flow
from ring3_split.reader.locks import Entry, table
from ring3_split.reader.paths import Hold, Outcome, Path

_GUARD = re.compile(r"class_(\w+)_(constructor|destructor)")
_SUCCESS = {"nonzero": (frozenset((1,)), 0), "zero": (0, frozenset((-1, 1)))}  # results on success and on failure
_ROUNDS = 6  # a summary that has not settled by then is recursion, and stays as it is
_IDENTITIES = ("spinlock_check",)  # return their argument


@dataclass(frozen=True)
class Held:
    """What one function holds where."""

    regions: tuple[Region, ...] = ()
    # Instruction index -> indexes into `regions`: what may be held while the instruction runs.
    at: dict[int, tuple[int, ...]] = field(default_factory=dict)


def regions(module: IrModule) -> dict[str, Held]:
    """The lock regions of each function of a unit that has any, by the function's name."""
    analysis = _Analysis(module)
    analysis.run()
    return {name: held for name, body in module.functions.items() if (held := analysis.held(body)).regions}


class _Analysis:
    """The unit: which functions touch locks, and what calling them does."""

    def __init__(self, module: IrModule) -> None:
        self._module = module
        self._entries = {name: entry for name in _called(module) if (entry := table().find(name))}
        self._outcomes: dict[str, tuple[Outcome, ...]] = {}
        self._flows: dict[str, Flow] = {}

    def run(self) -> None:
        """Makes summaries until nothing changes."""
        callers = _callers(self._module)
        waiting = [name for name in callers if name in self._entries or _GUARD.fullmatch(name)]
        rounds: dict[str, int] = {}
        pending = dict.fromkeys(caller for name in waiting for caller in callers[name])
        while pending:
            name = next(iter(pending))
            del pending[name]
            rounds[name] = rounds.get(name, 0) + 1
            if self._summarise(name) and rounds[name] < _ROUNDS and name not in self._entries:
                pending.update(dict.fromkeys(callers.get(name, ())))
