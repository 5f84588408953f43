"""Combolocks of a plan in the kernel half.

Its takers, and what is kept from taking them while the user half has one.

Each spinlock of the kernel half is taken by a macro of `runtime/kernel/combolock.h` then. What
takes a combolock in atomic context is sent away by its first statement, to come later, in such a
way that nothing must be remembered of it: a poll stays scheduled, a packet in its queue, a timer is
set anew. An interrupt is requested through the run time, which disables it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from ring3_split import context
from ring3_split.errors import Refusal
from ring3_split.generate.border import Border
from ring3_split.model import Function, Region
from ring3_split.plan import locks

# How the takers that a macro can stand for are written.
TAKEN = re.compile(r"\bspin_lock(_bh|_irq|_irqsave)?\s*\(")
INTERRUPT = "request_irq:1"
XMIT, TIMEOUT = "net_device_ops.ndo_start_xmit", "net_device_ops.ndo_tx_timeout"


class Combolocks:
    """Those of a border."""

    def __init__(self, border: Border) -> None:
        self.border, self.graph = border, border.survey.halves.graph
        self.names = border.wishes.combolocks

    def check(self) -> None:
        """Whether the run time can have these locks.

        Raises:
            Refusal: a lock is in nothing that crosses, or something takes it in a way that nobody
                stands for.
        """
        for name in sorted(self.names):
            facts = self.facts.get(name)
            if facts is None or facts.obstacle:
                why = facts.obstacle if facts else "no function takes it"
                raise Refusal(
                    f"combolocks: {name} can be none, because {why}: take it out of the plan's "
                    "combolocks"
                )
            struct, _, member = name.partition(".")
            found = self.border.layouts.member(name) if member else None
            if found is None or ("combolock", found.offset) not in self.border.table.inside.get(
                struct, []
            ):
                raise Refusal(
                    f"combolocks: {name} is no spinlock in a struct that crosses: take it out of "
                    "the plan's combolocks"
                )
        for one, region in self._takers():
            if not TAKEN.search(self._line(one, region)):
                raise Refusal(
                    f"combolocks: {one.name} takes {region.lock} at {one.file}:{region.line} by "
                    "something else than spin_lock, "
                    "spin_lock_bh, spin_lock_irq or spin_lock_irqsave in one of the driver's .c "
                    "files: take it out of the plan's "
                    "combolocks"
                )

    def _takers(self) -> Iterator[tuple[Function, Region]]:
        for key in sorted(self.border.survey.halves.kernel):
            for region in self.graph.functions[key].regions:
                if region.lock in self.names and region.kind in locks.SPINNING:
                    yield self.graph.functions[key], region

    def _line(self, one: Function, region: Region) -> str:
        unit = next((unit for unit in self.border.units if unit.source == one.file), None)
        lines = (
            (unit.kernel.root / unit.source).read_text(errors="replace").split("\n") if unit else []
        )
        return lines[region.line - 1] if region.line <= len(lines) else ""

    @cached_property
    def _contexts(self) -> dict[str, tuple[context.Entry, ...]]:
        return context.of(self.graph, self.border.wishes.contexts)

    @cached_property
    def facts(self) -> dict[str, locks.Facts]:
        """What is known of the driver's spinlocks."""
        unknown = dict.fromkeys(
            context.unknown(self.graph, self.border.wishes.contexts), "an entry"
        )
        return locks.facts(self.graph, self._contexts, unknown)

    @cached_property
    def header(self) -> str:
        """What the files of the kernel half include, too."""
        if not self.names:
            return ""
        interrupts = any(INTERRUPT in self.facts[name].hold_off for name in self.names)
        return ("#define SPLIT_HOLDS_IRQS\n" if interrupts else "") + '#include "combolock.h"\n'

    @cached_property
    def doors(self) -> dict[str, str]:
        """Function that takes a combolock in atomic context -> the statement that sends it away.

        Raises:
            Refusal: the run time does not know how.
        """
        if not self.names:
            return {}
        known = [self.facts[name] for name in sorted(self.names) if name in self.facts]
        behind = self._behind({key for one in known for key in one.takers})
        ways = {by: how for one in known for by, how in one.hold_off.items()}
        found = {}
        for key in sorted(behind & self._contexts.keys()):
            for by in [entry.by for entry in self._contexts[key] if entry.by in ways]:
                statement = self._door(self.graph.functions[key], by, ways[by])
                if statement:
                    found[key] = statement
        return found

    def _behind(self, takers: set[str]) -> set[str]:
        """All that leads to the takers, these included."""
        callers = self.graph.callers()
        found, todo = set(takers), list(takers)
        while todo:
            more = callers.get(todo.pop(), {}).keys() - found
            found |= more
            todo += more
        return found

    def _door(self, one: Function, by: str, way: str) -> str:
        """The first statement of a function; "" where it is kept from running altogether."""
        parameters = one.parameters
        first = parameters[0] if parameters else None
        if by == INTERRUPT:
            return ""
        if any(one.id in callees for callees in self.graph.calls.values()):
            raise Refusal(
                f"combolocks: {one.name} is to be sent away when {by} comes to it, and the "
                "driver's own code calls it, too"
            )
        then = before = ""
        if way == "napi_disable" and len(parameters) == 2:
            then = f"return {parameters[1].name};"
        elif by == XMIT:
            then = "return NETDEV_TX_BUSY;"
        elif by == TIMEOUT:
            then = "return;"
        elif first and first.type == "struct timer_list *":
            then, before = "return;", f"mod_timer({first.name}, jiffies + 1);"
        elif first and first.type == "struct tasklet_struct *":
            then, before = "return;", f"tasklet_schedule({first.name});"
        if not then:
            raise Refusal(
                f"combolocks: {one.name} would have to wait until the user half gives its lock "
                "back, and the run time has no "
                f"{way} for {by}: take the lock out of the plan's combolocks"
            )
        if before:
            return f"\tif (split_is_held_off(split_host)) {{\n\t\t{before}\n\t\t{then}\n\t}}"
        return f"\tif (split_is_held_off(split_host))\n\t\t{then}"
