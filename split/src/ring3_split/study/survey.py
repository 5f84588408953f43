"""The whole study: facts of all modules under every rule, on all processors, and the result."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ring3_split import workers
from ring3_split.driver import Driver, load
from ring3_split.errors import Refusal
from ring3_split.gather import gather
from ring3_split.kernel import Kernel
from ring3_split.libraries import libraries
from ring3_split.model import Module, ModuleFacts
from ring3_split.progress import Progress
from ring3_split.roots import family_of
from ring3_split.roots.signatures import signatures
from ring3_split.study import assemble
from ring3_split.study.assemble import Looked
from ring3_split.study.evaluate import Evaluated, Work, evaluate, failed
from ring3_split.study.families import Family
from ring3_split.study.result import Study

QUICK = 3  # drivers of a family
QUICK_SOURCES = 3  # files that each of them may have at most


@dataclass(frozen=True)
class Drivers:
    """Makes a driver of a module.

    Finds its libraries among the others, and the types of its family's roots.
    """

    facts: Mapping[str, ModuleFacts]  # by the module's name, as symbols name their exporters
    exporters: Mapping[str, Mapping[str, str]]  # family -> symbol -> name of the module
    signatures: Mapping[str, Mapping[str, int]]  # family -> field -> hash

    @classmethod
    def of(cls, kernel: Kernel, facts: Sequence[ModuleFacts]) -> Drivers:
        """Drivers among these modules."""
        exporters: dict[str, dict[str, str]] = {}
        for module in facts:
            known = exporters.setdefault(family_of(module.module.directory), {})
            known |= {
                symbol: module.module.name for unit in module.units for symbol in unit.exports
            }
        hashes = {family: signatures(kernel, family).hashes for family in exporters}
        return cls({module.module.name: module for module in facts}, exporters, hashes)

    def work(self, own: ModuleFacts) -> Work:
        """A module by itself and with its libraries."""

        def facts(names: Iterable[str]) -> list[ModuleFacts]:
            return [self.facts[name] for name in names]

        family = family_of(own.module.directory)
        name, hashes = own.module.name, self.signatures[family]
        parts = libraries(own, self.exporters[family], facts)
        together = Driver(name, (own, *parts), family, signatures=hashes) if parts else None
        return Work(Driver(name, (own,), family, signatures=hashes), together)


def survey(
    kernel: Kernel, families: Sequence[Family], *, quick: bool = False, jobs: int | None = None
) -> tuple[Study, dict[str, str]]:
    """Studies some families; also gives the packed details of each driver, by `Row.path`.

    Raises:
        Refusal: the kernel has no module in any of the families; no room in the cache.
    """
    modules = chosen(kernel, families, quick=quick)
    gc.disable()  # facts are many, and none of them is garbage
    try:
        facts = gather(kernel, modules, jobs)
        drivers = Drivers.of(kernel, _with_libraries(kernel, facts, jobs) if quick else facts)
        found = _evaluate(drivers, facts, jobs)
    finally:
        gc.enable()
    used = {(part.directory, part.name) for one in found for part in one.libraries}
    looked = [
        Looked(own, one, (own.module.directory, own.module.name) in used)
        for own, one in zip(facts, found, strict=True)
    ]
    details = {
        f"{one.facts.module.directory}/{one.facts.module.name}": one.found.detail
        for one in looked
        if one.found.detail
    }
    return assemble.study(
        kernel.name, families, looked, kernel.catalogue.broken, quick=quick
    ), details


def chosen(kernel: Kernel, families: Sequence[Family], *, quick: bool = False) -> list[Module]:
    """The modules of some families.

    Raises:
        Refusal: there are none.
    """
    modules = kernel.modules()
    some: dict[tuple[str, str], Module] = {}
    for family in _outermost(families) if quick else families:
        own = [module for module in modules if family.has(module.directory)]
        some |= {
            (module.directory, module.name): module for module in (_sample(own) if quick else own)
        }
    if not some:
        raise Refusal(
            f"{kernel.name} builds no module of {', '.join(family.name for family in families)}"
        )
    return list(some.values())


def _outermost(families: Sequence[Family]) -> list[Family]:
    """The families that no other of them contains."""

    def inside(family: Family) -> bool:
        return any(other is not family and all(map(other.has, family.under)) for other in families)

    return [family for family in families if not inside(family)]


def _sample(modules: Sequence[Module]) -> list[Module]:
    """A few small ones, from all over the list, the same each time."""
    small = sorted(
        (m for m in modules if len(m.sources) <= QUICK_SOURCES),
        key=lambda module: (module.directory, module.name),
    )
    return (
        [small[(2 * place + 1) * len(small) // (2 * QUICK)] for place in range(QUICK)]
        if small
        else []
    )


def _with_libraries(
    kernel: Kernel, facts: Sequence[ModuleFacts], jobs: int | None
) -> list[ModuleFacts]:
    """These modules, and those with parts of them, which are looked for driver by driver."""
    found = {facts.module.name: facts for facts in facts}
    for own in facts:
        if own.units:
            driver = load(kernel, f"{own.module.directory}/{own.module.name}", jobs=jobs)
            found |= {part.module.name: part for part in driver.modules}
    return list(found.values())


def _evaluate(drivers: Drivers, facts: Sequence[ModuleFacts], jobs: int | None) -> list[Evaluated]:
    """Looks at each module, the largest first so that no processor is left with it at the end."""
    order = sorted(
        range(len(facts)),
        key=lambda place: -sum(len(unit.functions) for unit in facts[place].units),
    )
    found: dict[int, Evaluated] = {}

    def one(place: int) -> Evaluated:
        return evaluate(drivers.work(facts[place]))

    results = workers.run(one, order, jobs, start="fork")
    with Progress("looking at drivers", len(order), "drivers") as progress:
        for place, result in results:
            # A failure of ours is an answer too: a study of a thousand drivers does not end at one.
            found[place] = failed(result) if isinstance(result, Exception) else result
            progress.did(facts[place].module.name)
    return [found[place] for place in range(len(facts))]
