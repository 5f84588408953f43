"""What requires.toml says of the kernel's functions and members, whatever the driver."""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec


class Condition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of requires.toml."""

    holds: str = ""
    nullable: list[str] = []
    text: bool | None = None  # of a member: whether its bytes are a text; default those of `char`
    does: bool = (
        False  # the condition does what the function would, where that would wait without an end
    )


@cache
def required() -> dict[str, Condition]:
    """What must be so before a function of the kernel is called, or a member is set."""
    text = resources.files(__package__).joinpath("requires.toml").read_bytes()
    lines = msgspec.toml.decode(text, type=dict[str, str | Condition])
    return {
        name: Condition(line) if isinstance(line, str) else line for name, line in lines.items()
    }
