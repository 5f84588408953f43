"""Structs of the driver that are variables, of which the user half sets members.

Tables that the kernel is given.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from ring3_split.annotate.survey import Survey
from ring3_split.model import Access

STRUCT = re.compile(r"struct (\w+)$")


def statics(survey: Survey, accesses: Mapping[str, Collection[Access]]) -> dict[str, str]:
    """Variable -> its struct."""
    found = {}
    for name, shared in survey.border.variables.items():
        struct = STRUCT.match(shared.type)
        code = survey.halves.user_code
        if (
            struct
            and shared.where
            and "." not in name
            and any("w" in one.way for one in through(name, code, accesses))
        ):
            found[name] = struct[1]
    return found


def through(
    name: str, code: Iterable[str], accesses: Mapping[str, Collection[Access]]
) -> list[Access]:
    """What these functions touch of a variable's members."""
    return [
        one
        for function in code
        for one in accesses.get(function, ())
        if one.base == f"global {name}"
    ]
