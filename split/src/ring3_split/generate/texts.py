"""Which of the bytes that cross are texts: whoever reads one goes on to its zero.

In the kernel's source numbers of a byte are `u8`, `s8` or `unsigned char`, and a `char` is one of a
text. The few texts of other bytes are in requires.toml, and so are the `char` that are none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import prod

from ring3_split.generate.conditions import Condition, required
from ring3_split.model import Layout, Member

# The compiler leaves `const` out of the type of some arrays.
CHARACTERS = re.compile(r"(?:const )?char ?((?:\[\d+\])+)$")
ARRAY = re.compile(r"[\w ]+ ?((?:\[\d+\])+)$")
DIMENSION = re.compile(r"\d+")


def last_bytes(kind: str, name: str = "") -> tuple[int, ...]:
    """Where the last byte of each text lies in a variable of this type, or in a member."""
    known = required().get(name, Condition()).text
    array = (CHARACTERS if known is None else ARRAY).match(kind)
    if known is False or not array:
        return ()
    *rows, length = (int(one) for one in DIMENSION.findall(array[1]))
    return tuple(length * (number + 1) - 1 for number in range(prod(rows))) if length else ()


def last_bytes_within(
    outer: Member, members: tuple[Member, ...], layout: Callable[[str], Layout | None]
) -> tuple[int, ...]:
    """The same of a struct that is copied as a whole, or of an array of them."""
    each = outer.size // (outer.count or 1)
    found = set(_within(outer.struct, members, layout))
    return tuple(
        number * each + offset for number in range(outer.count or 1) for offset in sorted(found)
    )


def _within(
    struct: str, members: tuple[Member, ...], layout: Callable[[str], Layout | None]
) -> Iterator[int]:
    for member in members:
        # What lies in a union may be something else.
        if member.union:
            continue
        inner = layout(member.struct) if member.struct else None
        if inner is None:
            found = last_bytes(member.type, f"{struct}.{member.name}")
        elif inner.union:
            found = ()
        else:
            found = last_bytes_within(member, inner.members, layout)
        yield from (member.offset + offset for offset in found)
