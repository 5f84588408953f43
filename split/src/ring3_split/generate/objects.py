"""Objects that a call makes or frees: how large one is, and what must be over before it goes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources

import msgspec

from ring3_split.generate.border import Border
from ring3_split.generate.table import Call

# What runs by itself must not lie in memory that is freed: a struct, and what is true of one that
# rests.
RESTS = {"work_struct": "!work_busy({})", "timer_list": "!timer_pending({})"}
ARGUMENT = re.compile(r"arg(\d+)")


class Ends(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file ends.toml."""

    class Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Some of them."""

        names: list[str]

    ends: dict[str, int]
    along: Names  # functions of `ends` that take with the object what calls have given since
    keeps: Names  # patterns of what sounds so and frees nothing


@cache
def ends() -> Ends:
    """Functions of the kernel that free an object, and which argument that is."""
    return msgspec.toml.decode(
        resources.files(__package__).joinpath("ends.toml").read_bytes(), type=Ends
    )


def conditions(border: Border, call: Call) -> Iterator[str]:
    """What must be so before a function makes or frees an object, in C, of its parameters."""
    yield from _room(border, call)
    if call.ends is not None and call.arguments[call.ends].type in border.table.types:
        name = call.declared.parameters[call.ends].name
        for struct, offset in sorted(set(_within(border, call.arguments[call.ends].type, 0))):
            yield RESTS[struct].format(f"(struct {struct} *)((char *){name} + {offset})")


def _room(border: Border, call: Call) -> Iterator[str]:
    """What the driver has behind an object is as large as it was asked for.

    The tables have all of it.
    """
    api = border.survey.halves.apis.of(call.name)
    asked = ARGUMENT.fullmatch(api.allocates.get("size", "")) if api else None
    if api is None or asked is None or int(asked[1]) >= len(call.declared.parameters):
        return
    size = call.declared.parameters[int(asked[1])].name
    struct = api.allocates.get("struct", "")
    behind = border.behind.get(struct)
    if behind is not None:
        yield f"{size} >= {border.layouts.structs[behind[0]].size}"
    private = api.allocates.get("private", "")
    if private.startswith(f"{struct}."):
        # Without room for it the member stays NULL.
        for inner in sorted(border.pointed(private)):
            yield f"(!{size} || {size} >= {border.layouts.structs[inner].size})"


def _within(border: Border, name: str, base: int) -> Iterator[tuple[str, int]]:
    for inner, offset in border.table.inside.get(name, ()):
        if inner in RESTS:
            yield inner, base + offset
        yield from _within(border, inner, base + offset)
