"""In which member of an outer struct a mutex lies.

A region names its lock by the struct that declares it. Six mutexes in six members of one type are
one name so, which is right for spinlocks: who reaches one by a pointer may take any of them, and
must stay with who takes the others. A mutex binds nobody, and a person who reads that both halves
take one wants to know which. The access that takes its address says it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ring3_split.model import Access, Kind, Region


def placed(regions: Iterable[Region], accesses: Iterable[Access]) -> tuple[Region, ...]:
    """A function's regions; mutexes with their outer member, if all accesses of the line agree."""
    members: dict[tuple[str, int], set[str]] = {}
    for access in accesses:
        if access.way == "a":
            for line in access.lines:
                members.setdefault((access.field, line), set()).add(access.within)
    return tuple(
        _placed(region, members.get((region.lock, region.line), set())) for region in regions
    )


def _placed(region: Region, members: set[str]) -> Region:
    if region.kind is not Kind.MUTEX or len(members) != 1:
        return region
    return msgspec.structs.replace(region, within=next(iter(members)))
