"""What a number from the user half may be, by the checks derived of its uses and assignments."""

from __future__ import annotations

import re

from ring3_split.annotate.border import Check
from ring3_split.generate.table import Bound
from ring3_split.model import Member

SIZES = (1, 2, 4, 8)
SIGNED = re.compile(r"(signed |__)?(int|s8|s16|s32|s64|long|short|char|ssize_t)\b")
MOST = 2**63 - 1  # that the run time compares


def bounds(check: Check | None, member: Member) -> tuple[Bound, ...]:
    """The bounds of a member that is a number or an array of numbers.

    None if every value of its type is good.
    """
    count = member.count or 1
    size = member.size // count
    if check is None or size not in SIZES or member.bits or member.struct or member.pointee:
        return ()
    signed = bool(SIGNED.match(member.type))
    least, most = (
        (-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1)
        if signed
        else (0, min(2 ** (8 * size) - 1, MOST))
    )
    nonzero = "nonzero" in check.check
    low, high = least, most
    if check.low is not None and check.high is not None:
        low, high = max(low, check.low), min(high, check.high)
    if member.type in ("bool", "_Bool"):
        low, high = 0, 1
    # A whole 64-bit number has no bound that could be compared.
    if (low, high) == (least, most) and not nonzero:
        return ()
    if not signed and size == 8 and high == MOST and low == 0:
        return ()
    return (Bound(0, size, count, low, high, signed, nonzero),)
