"""Which modules are a part of a driver.

Libraries of device code, as 8390 is of ne2k-pci and libahci of ahci.

# The rule
A module from which the driver takes symbols, itself or by another library, is a part of it if
1. it is of the same family,
2. it does not call the drivers of the family: who hands them work is the class itself (libata,
   scsi_mod, snd-pcm), and
3. it has functions by which the kernel enters the driver with data or interrupts (8390, libahci,
   usbnet), or it lives in the directory of one of the driver's modules or in one above, though not
   in that of the whole family (ath9k_hw, rtlwifi). All else is the kernel's: helpers without a
   device (mii, snd-ac97-codec) as well as the class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ring3_split.model import ModuleFacts, Stored
from ring3_split.roots import ALWAYS, OTHER, families, family_of, templates


def libraries(
    module: ModuleFacts,
    exporters: Mapping[str, str],
    facts: Callable[[Iterable[str]], Iterable[ModuleFacts]],
) -> tuple[ModuleFacts, ...]:
    """The libraries of a module, nearest first.

    `exporters` names the module that exports a symbol; `facts` gives the facts of modules by their
    names.
    """
    family = family_of(module.module.directory)
    if family == OTHER:
        return ()
    parts = [module]
    seen = {module.module.name}
    for part in parts:  # grows while it is walked
        names = (
            {exporters[symbol] for symbol in imports(part) if symbol in exporters}
            - seen
            - families()[family].apart
        )
        seen |= names
        parts += [found for found in facts(sorted(names)) if _belongs(found, parts, family)]
    return tuple(parts[1:])


def imports(module: ModuleFacts) -> set[str]:
    """The functions that a module uses and does not define."""
    defined = {function.name for unit in module.units for function in unit.functions}
    used = {
        call.callee
        for unit in module.units
        for function in unit.functions
        for call in function.calls
    }
    return (used | {stored.function for stored in _stored(module)}) - defined


def _belongs(library: ModuleFacts, parts: list[ModuleFacts], family: str) -> bool:
    if family_of(library.module.directory) != family or _calls_drivers(library, family):
        return False
    return _near(library, parts, family) or _entered(library, parts, family)


def _calls_drivers(library: ModuleFacts, family: str) -> bool:
    called = {
        call.field
        for unit in library.units
        for function in unit.functions
        for call in function.indirect
    }
    return not families()[family].calls.isdisjoint(called)


def _near(library: ModuleFacts, parts: list[ModuleFacts], family: str) -> bool:
    directory = library.module.directory
    own = (part.module.directory for part in parts)
    return directory not in families()[family].directories and any(
        f"{other}/".startswith(f"{directory}/") for other in own
    )


def _entered(library: ModuleFacts, parts: list[ModuleFacts], family: str) -> bool:
    """Whether the library or its user binds one of the library's functions as a root."""
    places: dict[str, None] = {}
    for template in templates(family):
        if template.kind in ALWAYS:
            places |= dict.fromkeys((*template.fields, *template.arguments))
    defined = {function.name for unit in library.units for function in unit.functions}
    exported = {symbol for unit in library.units for symbol in unit.exports}
    return any(
        (stored.field in places or f"{stored.api}:{stored.argument}" in places)
        and stored.function in names
        for module, names in ((library, defined), *((part, exported) for part in parts))
        for stored in _stored(module)
    )


def _stored(module: ModuleFacts) -> Iterator[Stored]:
    for unit in module.units:
        yield from unit.stored
        for function in unit.functions:
            yield from function.stored
