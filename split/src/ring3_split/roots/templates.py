"""Templates of root functions.

What the kernel calls on a driver's data path, one TOML file a family.

A template names fields and API arguments. Functions that are stored or passed there are found by
*binding*. By *signature* a root is any function of the type that such a field has in the headers of
this kernel: no prototype is written down, so none can be out of date, and a field that a kernel
does not have drops out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, reduce
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


class Head(msgspec.Struct, frozen=True, rename={"calls": "class", "within": "with"}):
    """What a family's file says besides its templates."""

    directories: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    calls: frozenset[str] = frozenset()
    apart: dict[str, str] = {}
    others: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """Drivers of one kind."""

    name: str
    directories: tuple[str, ...]
    calls: frozenset[
        str
    ]  # fields by which the kernel hands work to its drivers: who calls one is the class itself
    apart: frozenset[str]  # modules that are no library of those who use them
    others: tuple[str, ...]  # entry points that are not critical: a type of theirs tells nothing
    headers: tuple[str, ...]  # that declare the structs of its templates, in some kernel
    templates: tuple[Template, ...]

    def taking(self, other: Family) -> Family:
        """This family, with another's templates as well."""
        return replace(
            self,
            calls=self.calls | other.calls,
            others=self.others + other.others,
            headers=self.headers + other.headers,
            templates=self.templates + other.templates,
        )


@cache
def families() -> dict[str, Family]:
    """All families by name; "common" has the templates of all."""
    files = {
        file.name.removesuffix(".toml"): file for file in resources.files(__package__).iterdir()
    }
    tables = {
        name: msgspec.toml.decode(file.read_text())
        for name, file in sorted(files.items())
        if file.name.endswith(".toml")
    }
    heads = {name: msgspec.convert(table, Head) for name, table in tables.items()}
    own = {name: _family(name, heads[name], table) for name, table in tables.items()}
    return {
        name: reduce(Family.taking, (own[other] for other in heads[name].within), family)
        for name, family in own.items()
    }


def _family(name: str, head: Head, table: dict[str, object]) -> Family:
    fields = {field.encode_name for field in msgspec.structs.fields(Head)}
    entries = msgspec.convert(
        {key: value for key, value in table.items() if key not in fields}, dict[str, Entry]
    )
    templates = tuple(
        Template(f"{name}/{key}", e.kind, e.why, e.fields, e.arguments)
        for key, e in entries.items()
    )
    return Family(
        name,
        head.directories,
        head.calls,
        frozenset(head.apart),
        head.others,
        head.headers,
        templates,
    )


def family_of(directory: str) -> str:
    """The family of a driver, by where its source lies.

    Of directories in one another the inner counts.
    """
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
