"""Functions of the kernel that call their arguments before they return, such as `sort`.

To such a callback there is a call from the function that passes it, under the locks that it holds
there; it is no entry.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec

from ring3_split.model import Stored


@cache
def _table() -> frozenset[str]:
    text = resources.files(__package__).joinpath("synchronous.toml").read_bytes()
    sections = msgspec.toml.decode(text, type=dict[str, dict[str, str]])
    return frozenset(key for rows in sections.values() for key in rows)


def argument(place: Stored) -> str:
    """The argument, as "sort:3", if a function is passed there to be called at once; else ""."""
    key = f"{place.api}:{place.argument}"
    return key if key in _table() else ""
