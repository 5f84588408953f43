"""The parts of the kernel that call drivers, read as a driver is: one graph of all of them."""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec

from ring3_split.driver import Driver
from ring3_split.gather import gather
from ring3_split.graph import Graph, link_each
from ring3_split.kernel import Kernel
from ring3_split.model import Failure, Module, ModuleFacts


class Core(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a part of the kernel is."""

    folders: tuple[
        str, ...
    ] = ()  # what is linked into the kernel out of these, folders in them left out
    modules: tuple[str, ...] = ()  # loadable modules


@cache
def known() -> dict[str, Core]:
    """The parts, by name."""
    return msgspec.toml.decode(
        resources.files(__package__).joinpath("cores.toml").read_bytes(), type=dict[str, Core]
    )


def modules(kernel: Kernel) -> list[Module]:
    """All of them that the kernel has."""
    folders = {folder for core in known().values() for folder in core.folders}
    names = {name for core in known().values() for name in core.modules}
    found = kernel.modules(builtin=True)
    return [
        one for one in found if (one.directory in folders if one.builtin else one.name in names)
    ]


def read(kernel: Kernel, jobs: int | None = None) -> tuple[Graph, tuple[Failure, ...]]:
    """The graph of all parts, calls through pointers by the field that they come from.

    And what could not be read.

    Raises:
        Refusal: no room in the cache.
    """
    facts = gather(kernel, modules(kernel), jobs)
    whole = ModuleFacts(
        Module("kernel", "", ()), tuple(unit for one in facts for unit in one.units)
    )
    # A lock that is taken under a condition and given back under the same may look kept; what so
    # begins here would not end.
    (graph,) = link_each(Driver("kernel", (whole,)), ("field",), carry=False)
    return graph, tuple(failure for one in facts for failure in one.failures)
