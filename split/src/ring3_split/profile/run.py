"""A profile from its begin to its end: modules, guest, counts, facts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ring3_split.driver import Driver
from ring3_split.errors import Refusal
from ring3_split.gather import gather
from ring3_split.graph import link
from ring3_split.kernel import Kernel
from ring3_split.profile import build, counts, lab, record, scenario, shipped
from ring3_split.profile.check import missing
from ring3_split.profile.devices import device, kinds, steps
from ring3_split.profile.elf import Object
from ring3_split.profile.headers import headers, version
from ring3_split.profile.headers import shipped as shipped_modules
from ring3_split.profile.image import Image
from ring3_split.profile.mapping import map_calls
from ring3_split.profile.record import Profile


@dataclass(frozen=True)
class Request:
    """What is asked for."""

    cache: Path  # ring3's, with the lab's kernels
    workload: str = "usual"
    seconds: float = 2.0  # of each kind of transfer
    stock: bool = False


def check(kernel: Kernel, driver: str, request: Request) -> None:
    """Refuses what cannot be run before anything is read or built for it.

    Raises:
        Refusal: no device for the driver, no such workload, not the distribution's kernel, or no
            lab.
    """
    version(kernel)
    steps(device(driver).kind, request.workload)
    if kernel.module(driver).builtin:
        raise Refusal(
            f"{driver} is linked into the kernel {kernel.name}; only a module can be loaded under "
            "the tracer"
        )
    lab.program()


def profile(
    kernel: Kernel, driver: Driver, request: Request, show: Callable[[str, bool], None]
) -> Profile:
    """Runs a driver in the lab and counts its calls.

    Raises:
        Refusal: see `check`; or it does not build, or the guest failed.
    """
    parts = gather(kernel, [kernel.module(part) for part in device(driver.name).parts])
    driver = replace(driver, modules=(*driver.modules, *parts))
    log = record.place(
        kernel.folder, driver.name, request.workload, stock=request.stock
    ).with_suffix(".log")
    with tempfile.TemporaryDirectory(prefix="ring3-profile-") as name:
        folder = Path(name)
        objects = _objects(kernel, driver, request, folder)
        run = _run(kernel, driver, request, objects)
        (folder / "scenario.toml").write_text(scenario.text(run))
        lab.run(folder / "scenario.toml", request.cache, folder / "out", log, show)
        counted = counts.read(folder / "out")
    return _profile(kernel, driver, request, objects, counted)


def _run(
    kernel: Kernel, driver: Driver, request: Request, objects: Sequence[Object]
) -> scenario.Run:
    """What goes into the guest, beside the driver's modules."""
    found = device(driver.name)
    own = {plain(item.path.stem) for item in objects}
    ordered = in_order(objects)
    needs = dict.fromkeys(
        need for item in ordered for need in item.needs() if plain(need) not in own
    )
    return scenario.Run(
        driver=driver.name,
        device=found,
        workload=request.workload,
        seconds=request.seconds,
        kernel=version(kernel),
        modules=tuple(item.path for item in ordered),
        needs=tuple(needs),
        programs=lab.compiled(
            ("calls", *kinds()[found.kind].programs), kernel.folder.parent / "guest"
        ),
        revision=build.build_own(kernel, scenario.GUEST / "revision.c")
        if found.revision is not None
        else None,
    )


def plain(name: str) -> str:
    """A module's name as the kernel has it."""
    return name.replace("-", "_")


def in_order(objects: Sequence[Object]) -> list[Object]:
    """The modules, each after those that it needs; the driver's own, given first, comes last."""
    waiting = {plain(item.path.stem): item for item in objects}
    ordered: list[Object] = []

    def visit(name: str) -> None:
        item = waiting.pop(name, None)
        if item is not None:
            for need in item.needs():
                visit(plain(need))
            ordered.append(item)

    for name in reversed(list(waiting)):
        visit(name)
    return ordered


def _objects(kernel: Kernel, driver: Driver, request: Request, folder: Path) -> list[Object]:
    """The driver's modules, its own first."""
    if request.stock:
        modules = shipped_modules(kernel, request.cache)
        return [
            Object(shipped.unpack(modules, facts.module.name, folder)) for facts in driver.modules
        ]
    return [Object(build.build(kernel, facts.module)) for facts in driver.modules]


def _profile(
    kernel: Kernel,
    driver: Driver,
    request: Request,
    objects: Sequence[Object],
    counted: counts.Counts,
) -> Profile:
    images, order = [], list(counted.places)
    for item, facts in zip(objects, driver.modules, strict=True):
        # The folders that the paths in the line information begin with: that of the build, and
        # those of the kernel.
        depth = facts.module.directory.count("/") + 1
        roots = () if request.stock else (item.path.parents[depth], kernel.root, headers(kernel))
        images.append(
            Image(
                facts.module.name,
                item,
                counted.places.get(item.path.stem, {}),
                roots,
                order.index(item.path.stem),
            )
        )
    mapped = map_calls(counted.samples, images, driver.modules)
    return Profile(
        version=record.VERSION,
        kernel=kernel.name,
        driver=driver.name,
        device=device(driver.name).model,
        workload=request.workload,
        seconds=round(counted.seconds, 2),
        stock=request.stock,
        events=counted.events,
        lost=counted.lost,
        pairs=mapped.pairs,
        missing=missing(link(driver, "signature"), mapped.pairs, optimised=request.stock),
        missing_field=missing(link(driver, "field"), mapped.pairs, optimised=request.stock),
        invisible=mapped.invisible,
        unknown=mapped.unknown,
    )
