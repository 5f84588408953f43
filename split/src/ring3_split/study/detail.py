"""What the page shows of one driver when it is opened.

Its functions, roots and critical calls, in as few bytes as will do.
"""

from __future__ import annotations

import base64
import zlib

import msgspec

DIRECT, SIGNATURE, FIELD = 1, 2, 4
"""Kinds of call, as bits.

A direct one is followed under every rule, the others at their precision.
"""


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """A function."""

    name: str
    file: int  # index into `Detail.files`
    line: int
    lines: int  # 0: an inline of a kernel header, shown in chains and not counted
    bits: int  # a bit for each rule under which it is critical
    module: int = 0  # index into `Detail.modules`


class RootListed(msgspec.Struct, frozen=True, array_like=True):
    """Why a function is a root."""

    function: int
    finder: str
    reach: str
    template: str
    where: str


class CallListed(msgspec.Struct, frozen=True, array_like=True):
    """A call between two functions that are critical under some rule."""

    caller: int
    callee: int
    kinds: int
    line: int


class Detail(msgspec.Struct, frozen=True):
    """A driver, opened.

    A library module's functions are here only if they are critical under some rule.
    """

    modules: tuple[str, ...]
    files: tuple[str, ...]
    functions: tuple[Listed, ...]
    roots: tuple[RootListed, ...]
    calls: tuple[CallListed, ...]


def pack(detail: Detail) -> str:
    """A driver as text that a browser can unpack by itself: zlib, base64."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(detail), 9)).decode("ascii")


def unpack(text: str) -> Detail:
    """The same, turned round."""
    return msgspec.json.decode(zlib.decompress(base64.b64decode(text)), type=Detail)
