"""A driver: the module that a person names, and the library modules with parts of its code."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from ring3_split.errors import Refusal
from ring3_split.files import write
from ring3_split.gather import gather, gather_data
from ring3_split.kernel import Kernel
from ring3_split.libraries import libraries
from ring3_split.model import Data, Failure, Module, ModuleFacts
from ring3_split.roots import OTHER, families, family_of
from ring3_split.roots.signatures import signatures
from ring3_split.stamps import digest, digest_of_files

EXPORT = re.compile(rb"^\s*EXPORT_SYMBOL(?:_GPL|_NS|_NS_GPL)?\s*\(\s*(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Driver:
    """The facts of a driver's modules, its own first.

    `signatures` holds the kCFI hashes of the fields of the family's root templates, by the headers
    of this kernel. `data` is empty unless it was asked for.
    """

    name: str
    modules: tuple[ModuleFacts, ...]
    family: str = "other"
    data: tuple[Data, ...] = ()
    signatures: Mapping[str, int] = field(default_factory=dict)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The units that could not be read: what is said of the driver does not count them."""
        return tuple(failure for module in self.modules for failure in module.failures)


def load(kernel: Kernel, name: str, data: bool = False, jobs: int | None = None) -> Driver:
    """A driver by the name of its module, with its libraries.

    Raises:
        Refusal: there is no such module, or none of its units can be read.
    """
    module = kernel.module(name)
    (own,) = gather(kernel, [module], jobs)
    if not own.units:
        why = own.failures[0].reason if own.failures else "it has no C source"
        raise Refusal(f"{name} cannot be read: {why}")
    family = family_of(module.directory)
    near = _family(kernel, module, family)

    def facts(names: Iterable[str]) -> list[ModuleFacts]:
        return gather(kernel, [near[name] for name in names], jobs)

    modules = (own, *libraries(own, exporters(kernel, near.values()), facts))
    hashes = signatures(kernel, family).hashes
    read = (
        tuple(chain.from_iterable(gather_data(kernel, part.module, jobs) for part in modules))
        if data
        else ()
    )
    return Driver(module.name, modules, family, read, hashes)


def _family(kernel: Kernel, module: Module, family: str) -> dict[str, Module]:
    """The modules of a family, by name: only these can be libraries of one of them."""
    if family == OTHER or not families()[family].directories:
        return {}
    others = kernel.modules(builtin=module.builtin)
    return {
        other.name: other
        for other in others
        if other.builtin == module.builtin and family_of(other.directory) == family
    }


def exporters(kernel: Kernel, modules: Iterable[Module]) -> dict[str, str]:
    """The module that exports a symbol, by the text of the sources.

    Reading the facts of a family would take minutes.

    Kept in the cache, under a name that says the state of the sources.
    """
    sources = {source: module.name for module in modules for source in module.sources}
    state = digest(EXPORT.pattern, sources, digest_of_files(kernel.root, sources))
    file = kernel.folder / f"exporters-{state}.json"
    with contextlib.suppress(OSError, msgspec.DecodeError):  # not there, or not whole
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    found: dict[str, str] = {}
    for source, module in sources.items():
        with contextlib.suppress(OSError):  # it is said where the module is read
            text = (kernel.root / source).read_bytes()
            found |= dict.fromkeys(map(bytes.decode, EXPORT.findall(text)), module)
    write(file, msgspec.json.encode(found))
    return found
