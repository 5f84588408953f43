"""Plans of all drivers of some families, each judged as soon as it is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain

from ring3_split import workers
from ring3_split.driver import Driver
from ring3_split.gather import gather
from ring3_split.indirect import Precision
from ring3_split.kernel import Kernel
from ring3_split.model import Module, ModuleFacts
from ring3_split.plan import planner, subject, weights
from ring3_split.plan.check import check
from ring3_split.plan.file import Plan, Side
from ring3_split.progress import Progress
from ring3_split.store import Store, open_store
from ring3_split.study.families import Family
from ring3_split.study.survey import Drivers, chosen


@dataclass(frozen=True)
class Made:
    """A plan of one driver, and what the judge says of it; or why there is none."""

    driver: str
    directory: str
    plan: Plan | None = None
    faults: int = 0
    assumptions: int = 0
    failure: str = ""
    broken: bool = False  # the failure is ours, and not a file that cannot be read

    def kept(self, rule: str) -> int:
        """Functions that a rule keeps in the kernel."""
        functions = self.plan.functions.values() if self.plan else ()
        return sum(placed.rule == rule for placed in functions if placed.placement is not Side.USER)


@dataclass(frozen=True)
class Method:
    """How plans are made. No cost: propagation."""

    precision: Precision
    cost: Fraction | None


def every(
    kernel: Kernel, families: Sequence[Family], method: Method, jobs: int | None = None
) -> Iterator[Made]:
    """The plans, in the order in which they are done.

    Raises:
        Refusal: the kernel has no module in any of the families; no room in the cache.
    """
    facts = gather(kernel, chosen(kernel, families), jobs)
    drivers, store = Drivers.of(kernel, facts), open_store(kernel)

    def one(place: int) -> Made:
        return _made(kernel.name, drivers, facts[place], store, method)

    order = sorted(
        range(len(facts)),
        key=lambda place: -sum(len(unit.functions) for unit in facts[place].units),
    )
    results = workers.run(one, order, jobs, start="fork")
    with Progress("planning", len(order), "drivers") as progress:
        for place, result in results:
            module = facts[place].module
            # A failure of ours is an answer too: a thousand plans do not end at one.
            yield _broken(module, result) if isinstance(result, Exception) else result
            progress.did(module.name)


def _broken(module: Module, error: Exception) -> Made:
    return Made(
        module.name,
        module.directory,
        failure=f"the planner failed: {type(error).__name__}: {error}",
        broken=True,
    )


def _made(kernel: str, drivers: Drivers, own: ModuleFacts, store: Store, method: Method) -> Made:
    """The plan of a module with its libraries."""
    name, directory = own.module.name, own.module.directory
    work = drivers.work(own)
    driver = work.together or work.alone
    if driver.failures:
        failure = driver.failures[0]
        return Made(name, directory, failure=f"{failure.source} cannot be read: {failure.reason}")
    whole = subject.of(kernel, _with_data(driver, store), method.precision)
    counted = weights.places(whole)
    made = (
        planner.propagate(whole, counted)
        if method.cost is None
        else planner.cut(whole, counted, method.cost)
    )
    verdict = check(whole, made)
    return Made(name, directory, made, len(verdict.faults), len(verdict.assumptions))


def _with_data(driver: Driver, store: Store) -> Driver:
    """A driver with the data facts of all its units."""
    units = chain.from_iterable(
        ((part.module, source) for source in part.module.sources) for part in driver.modules
    )
    read = (store.data(module, source) for module, source in units)
    return replace(driver, data=tuple(data for data in read if data is not None))
