"""Members by which a wrong user half could harm the kernel.

Written in the user half, read in the kernel half.

Each value is followed through the kernel half's code to all that it becomes there. A pointer goes
through the tracker, a function through the symbol table; for a number the check is the range that
the user half's own code can produce, or the one that its use allows. What is left is listed and not
hidden: it is what a person must look at before a user half may be called harmless.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ring3_split.annotate.border import Check, Type
from ring3_split.annotate.halves import Halves
from ring3_split.annotate.touched import Touched
from ring3_split.model import Assigned, Data, Member, Used

DEEP = 4  # functions, members and results that a value is followed through
SHOWN = 6  # uses that are listed
# What a number does no harm as: it decides, goes to the device, or becomes another member that is
# checked itself.
HARMLESS = ("compared", "device", "returned", "stored", "assembly")
DMA = ("dma_addr_t", "dma64_addr_t")
SIGNED = re.compile(r"(signed |__)?(int|s8|s16|s32|s64|long|short|char|ssize_t)\b")


@dataclass(frozen=True)
class Use:
    """One use of a member in the kernel half."""

    kind: str
    where: str
    used: Used

    def __str__(self) -> str:
        """As it is listed."""
        detail = f": {self.used.detail}" if self.used.detail else ""
        return f"{self.kind} {self.where}{detail}"


def checks(
    halves: Halves, data: Iterable[Data], touched: Touched, types: dict[str, Type]
) -> dict[str, Check]:
    """What is to be checked of each member that the user half writes and the kernel half reads."""
    data = tuple(data)
    values = _Values(halves, data)
    assigned = _assigned(halves, data)
    lost = _lost(halves, touched)
    found = {}
    for struct, kind in sorted(types.items()):
        for name, use in kind.members.items():
            member = touched.layouts.member(f"{struct}.{name}")
            if member is not None and "w" in use.user and "r" in use.kernel:
                key = f"{struct}.{name}"
                ranges = [] if key in lost else assigned.get(key, [])
                found[key] = _check(member, list(values.of(f"field {key}")), ranges)
    return found


def _check(member: Member, uses: list[Use], assigned: list[Assigned]) -> Check:
    kinds = sorted({use.kind for use in uses})
    check = Check([str(use) for use in uses[:SHOWN]], kinds)
    if len(uses) > SHOWN:
        check.uses.append(f"and {len(uses) - SHOWN} more")
    if member.pointee or "*" in member.type:
        check.check = "function" if member.pointee == "fn" else "pointer"
        return check
    if member.type in DMA:
        check.check, check.kinds = "dma", sorted({*kinds, "dma"})
        return check
    if member.struct:
        check.remains = (
            "a whole struct or an array of structs: its members are checked by "
            "themselves where they are known"
        )
        return check
    _bounded(check, member, assigned)
    _allowed(check, uses)
    return check


def _bounded(check: Check, member: Member, assigned: list[Assigned]) -> None:
    """The range that the user half can produce, or that the type has room for.

    Memory begins as zero.
    """
    ranges = [_in_type(one, member) for one in assigned]
    known = [one for one in ranges if one is not None]
    if known and len(known) == len(ranges):
        check.low, check.high = (
            min(0, *(low for low, _ in known)),
            max(0, *(high for _, high in known)),
        )
        check.check, check.source = "range", "assigned"
    elif member.bits and not member.type.startswith(("int", "signed", "s8", "s16", "s32")):
        check.low, check.high, check.source = 0, 2 ** member.bits[1] - 1, "type"
    elif member.type in ("bool", "_Bool"):
        check.low, check.high, check.source = 0, 1, "type"
    elif member.type in ("u8", "unsigned char", "__u8"):
        check.low, check.high, check.source = 0, 255, "type"


def _in_type(one: Assigned, member: Member) -> tuple[int, int] | None:
    """The range of an assignment as its member has it: -1 in a u16 is 65535."""
    if one.low is None or one.high is None:
        return None
    if one.low >= 0 or SIGNED.match(member.type):
        return one.low, one.high
    room = 2 ** (member.bits[1] if member.bits else 8 * member.size)
    return (one.low % room, one.high % room) if one.low == one.high else None


def _allowed(check: Check, uses: list[Use]) -> None:
    """Narrows a check to what the uses allow, and says what they leave open."""
    remains: dict[str, None] = {}
    for use in uses:
        if use.kind == "index":
            _index(check, use, remains)
        elif use.kind == "shift":
            _shift(check, use, remains)
        elif use.kind == "divisor" and not use.used.derived:
            if check.low is None or check.low <= 0:
                check.check = f"{check.check}, nonzero" if check.check else "nonzero"
        elif check.source == "assigned":
            continue  # no more than the driver itself could do
        elif use.kind in ("length", "loop"):
            remains[f"{use.kind} without a limit, {use.where}"] = None
        elif use.kind in ("argument", "pointer"):
            remains[f"{use.kind} {use.used.detail}, {use.where}".replace("  ", " ")] = None
    check.check = ", ".join(dict.fromkeys(check.check.split(", "))) if check.check else ""
    check.remains = "; ".join(remains)


def _index(check: Check, use: Use, remains: dict[str, None]) -> None:
    """An index: below the size of its array, if that is known.

    What it is compared with is only as good as that is.
    """
    used = use.used
    if used.count and 0 <= used.mask < used.count:
        return
    if used.derived:
        if check.source != "assigned":
            remains[f"index that is computed, {use.where}"] = None
    elif used.count:
        _below(check, used.count, "array")
    elif used.detail.startswith("< ") and used.detail[2:].isdigit():
        _below(check, int(used.detail[2:]), "use")
    elif used.detail.startswith("< "):
        check.limit = used.detail[2:]
    elif check.source != "assigned":
        remains[f"index without a limit, {use.where}"] = None


def _shift(check: Check, use: Use, remains: dict[str, None]) -> None:
    """An amount to shift by: below the width of what is shifted."""
    width = int(use.used.detail or 0)
    if 0 <= use.used.mask < width or not width:
        return
    if not use.used.derived:
        _below(check, width, "use")
    elif check.source != "assigned":
        remains[f"shift by a computed amount, {use.where}"] = None


def _below(check: Check, limit: int, source: str) -> None:
    """Makes a range end before a limit."""
    if check.high is None or check.high >= limit:
        check.high, check.source = limit - 1, source
        check.low = max(check.low or 0, 0)
        check.check = "range"


@dataclass
class _Values:
    """The values of the kernel half."""

    halves: Halves
    data: tuple[Data, ...]
    _by_value: dict[str, list[tuple[str, Used]]] = field(default_factory=lambda: defaultdict(list))
    _by_function: dict[tuple[str, str], list[Used]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def __post_init__(self) -> None:
        done: set[str] = set()
        for unit in self.data:
            for function in sorted((unit.used.keys() & self.halves.kernel_code) - done):
                done.add(function)
                for used in unit.used[function]:
                    self._by_value[used.value].append((function, used))
                    self._by_function[function, used.value].append(used)

    def of(self, value: str) -> Iterator[Use]:
        """What becomes of a field in the kernel half, each use once."""
        seen: set[tuple[str, Used]] = set()
        todo = [(function, used, 0) for function, used in self._by_value.get(value, ())]
        while todo:
            function, used, depth = todo.pop(0)
            if (function, used) in seen:
                continue
            seen.add((function, used))
            onward = list(self._onward(function, used)) if depth < DEEP else []
            todo += [(*each, depth + 1) for each in onward]
            kind = self._kind(function, used)
            if not onward or kind not in ("argument", "returned"):
                yield Use(kind, f"{self.halves.graph.functions[function].file}:{used.line}", used)

    def _onward(self, function: str, used: Used) -> Iterator[tuple[str, Used]]:
        """The uses of what a value becomes.

        A parameter of a function of the driver, the result of one.
        """
        graph = self.halves.graph
        if used.what == "argument":
            index = used.detail.rpartition(":")[2]
            for inner in self._targets(function, used):
                yield from (
                    (inner, use) for use in self._by_function.get((inner, f"param {index}"), ())
                )
        elif used.what == "returned":
            name = graph.functions[function].name
            yield from self._by_value.get(f"call {name}", ())

    def _targets(self, function: str, used: Used) -> list[str]:
        """The functions with known code that get an argument, directly or through a pointer."""
        graph, callee = self.halves.graph, used.detail.rpartition(":")[0]
        return [
            inner
            for inner, edges in graph.calls.get(function, {}).items()
            if (graph.own(inner) or self.halves.inlined(inner))
            and (
                graph.functions[inner].name == callee
                if callee
                else any(edge.line == used.line and edge.how != "direct" for edge in edges)
            )
        ]

    def _kind(self, function: str, used: Used) -> str:
        if used.what != "argument":
            return used.what
        callee, _, index = used.detail.rpartition(":")
        api = self.halves.apis.of(callee)
        inside = bool(self._targets(function, used))
        if inside and api is None:
            return "compared"  # its uses there are listed; if there are none, it is not looked at
        if api is not None and api.way == "mmio":
            return "device"
        if api is not None and any(
            f"arg{index}" in note for note in (*api.arguments.values(), api.result)
        ):
            return "length"
        if api is not None and api.way == "local":
            return "compared" if "print" in callee or "dev_" in callee else "argument"
        return "argument"


def _assigned(halves: Halves, data: tuple[Data, ...]) -> dict[str, list[Assigned]]:
    """What user functions set fields to, by field."""
    found: dict[str, list[Assigned]] = defaultdict(list)
    done: set[str] = set()
    for unit in data:
        for function in (unit.assigned.keys() & halves.user_code) - done:
            done.add(function)
            for one in unit.assigned[function]:
                found[one.field].append(one)
    return found


def _lost(halves: Halves, touched: Touched) -> set[str]:
    """Fields that user functions may write by their address: what is put there, nobody sees."""
    return {
        access.field
        for function in halves.user_code
        for access in touched.accesses.get(function, ())
        if access.way == "a" and touched.way(function, access) not in ("", "r")
    }
