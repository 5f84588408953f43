"""Templates of root functions: what the kernel calls on a driver's data path, one TOML file a family.

A template names fields and API arguments. Functions that are stored or passed there are found by *binding*. By *signature* a
root is any function of the type that such a field has in the headers of this kernel: no prototype is written down, so none
can be out of date, and a field that a kernel does not have drops out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

Kind = Literal["interrupt", "poll", "data", "tasklet", "timer", "urb"]
OTHER = "other"  # family of a driver whose directory is in no file


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A template as its file has it."""

    kind: Kind
    why: str
    fields: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Template:
    """A kind of root function."""

    name: str  # "net/transmit"
    kind: Kind
    why: str
    fields: tuple[str, ...]  # "net_device_ops.ndo_start_xmit"
    arguments: tuple[str, ...]  # "request_irq:1"


@dataclass(frozen=True)
class Family:
    """Drivers of one kind."""

    name: str
    directories: tuple[str, ...]
    calls: frozenset[str]  # fields by which the kernel hands work to its drivers: who calls one is the class itself
    apart: frozenset[str]  # modules that are no library of those who use them
    others: tuple[str, ...]  # entry points that are not critical: a type of theirs tells nothing
    headers: tuple[str, ...]  # that declare the structs of its templates, in some kernel
    templates: tuple[Template, ...]


@cache
def families() -> dict[str, Family]:
    """All families by name; "common" has the templates of all."""
    found = {}
    for file in sorted(resources.files(__package__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            name = file.name.removesuffix(".toml")
            found[name] = _family(name, msgspec.toml.decode(file.read_text()))
    return found


def _family(name: str, table: dict[str, object]) -> Family:
    directories = msgspec.convert(table.pop("directories", ()), tuple[str, ...])
    calls = msgspec.convert(table.pop("class", ()), frozenset[str])
    apart = frozenset(msgspec.convert(table.pop("apart", {}), dict[str, str]))
    others = msgspec.convert(table.pop("others", ()), tuple[str, ...])
    headers = msgspec.convert(table.pop("headers", ()), tuple[str, ...])
    entries = msgspec.convert(table, dict[str, Entry])
    templates = tuple(Template(f"{name}/{key}", e.kind, e.why, e.fields, e.arguments) for key, e in entries.items())
    return Family(name, directories, calls, apart, others, headers, templates)


def family_of(directory: str) -> str:
    """The family of a driver, by where its source lies; of directories in one another the inner counts."""
    found = [
        (len(top), name)
        for name, family in families().items()
        for top in family.directories
        if directory == top or directory.startswith(f"{top}/")
    ]
    return max(found)[1] if found else OTHER


def templates(family: str) -> tuple[Template, ...]:
    """The templates of a family, and those of all."""
    own = families()[family].templates if family in families() else ()
    return (*own, *families()["common"].templates)
