"""A driver: the module that a person names, with the library modules that hold a part of its code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ring3_split.model import Data, ModuleFacts


@dataclass(frozen=True)
class Driver:
    """The facts of a driver's modules, its own first.

    `signatures` holds the kCFI hashes of the fields of the family's root templates, by the headers of this kernel. `data` is
    empty unless it was asked for.
    """

    name: str
    modules: tuple[ModuleFacts, ...]
    family: str = "other"
    data: tuple[Data, ...] = ()
    signatures: Mapping[str, int] = field(default_factory=dict)
