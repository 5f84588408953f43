"""A kernel whose drivers are read.

Its source, its modules, and how each of their units is compiled.

Where it comes from: `distribution.py` (a package's source and headers), `tree.py` (a source tree
with its configuration), `compile_commands.py` (what a build has written down).
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ring3_split.clang import Clang
from ring3_split.errors import Refusal
from ring3_split.kbuild.catalogue import Catalogue, Target
from ring3_split.model import Module

NAMED = 12  # names in a list that is given instead of a driver


@dataclass(frozen=True)
class Kernel:
    """A kernel.

    `key` names its state: source, configuration and flags; facts of another state do not count.
    """

    name: str  # "6.12.117+deb12-amd64"
    root: Path  # source folder; the compiler runs in it, and all stored paths are relative to it
    key: str
    folder: Path  # its place in the cache
    compiler: Clang
    base: tuple[str, ...]  # flags of every unit
    load: Callable[[], Catalogue]
    # What to say of a driver that is not there: "not in the config: ...", or "" when nothing is
    # known of it.
    absent: Callable[[str], str]

    @cached_property
    def catalogue(self) -> Catalogue:
        """All that the kernel's build description lists."""
        return self.load()

    @cached_property
    def _targets(self) -> dict[str, list[Target]]:
        targets: dict[str, list[Target]] = {}
        for target in self.catalogue.targets:
            targets.setdefault(plain(target.module.name), []).append(target)
        return targets

    def modules(self, *, builtin: bool = False) -> list[Module]:
        """All loadable modules, and with `builtin` also the drivers linked into the kernel."""
        return [t.module for t in self.catalogue.targets if builtin or not t.module.builtin]

    def module(self, name: str) -> Module:
        """The module `name`, or the driver of that name in the kernel.

        "_" and "-" are the same, as modprobe has it.

        Where two modules have one name, "directory/name" tells them apart.

        Raises:
            Refusal: it is not there: because of the configuration, or it has another name.
        """
        directory, _, last = name.removesuffix(".ko").rpartition("/")
        found = [
            t.module
            for t in self._targets.get(plain(last), ())
            if directory in ("", t.module.directory)
        ]
        modules = [m for m in found if not m.builtin] or found
        if len(modules) == 1:
            return modules[0]
        if modules:
            places = ", ".join(f"{m.directory}/{m.name}" for m in modules)
            raise Refusal(
                f"{name} is the name of {len(modules)} drivers in {self.name}; take one of {places}"
            )
        self._no_path(name)
        raise Refusal(self.absent(last) or f"{self.name} has no driver {name}{self._near(last)}")

    def _no_path(self, name: str) -> None:
        """Refuses a folder or a source file with the names of the drivers that are made of it."""
        path = posixpath.normpath(name)
        inside = [
            t.module
            for t in self.catalogue.targets
            if f"{t.module.directory}/".startswith(f"{path}/")
        ]
        made = [t.module for t in self.catalogue.targets if path in t.module.sources]
        for what, modules in (("a folder", inside if "/" in path else []), ("a source file", made)):
            if modules:
                names = sorted({module.name for module in modules})
                more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
                raise Refusal(
                    f"{name} is {what}, not a driver; of it are made: "
                    f"{', '.join(names[:NAMED])}{more}"
                )

    def _near(self, name: str) -> str:
        near = difflib.get_close_matches(plain(name), self._targets, n=4, cutoff=0.7)
        names = [self._targets[n][0].module.name for n in near]
        return (
            f"; near names: {', '.join(names)}"
            if names
            else "; name one as its module is named (e1000), or a folder (drivers/net/ethernet) "
            "for a list"
        )

    def flags(self, module: Module, source: str) -> tuple[str, ...]:
        """The flags that clang gets for a unit of a module, all but where the output goes."""
        return (*self.base, *self.own_flags(module, source), *macros(module, source))

    def covers(self, file: str) -> bool:
        """Whether `key` speaks for a file that a unit includes.

        It does for the kernel's headers, the generated ones included.
        """
        pattern = (
            r".*/include/|.*\.pch$" if posixpath.isabs(file) else r"include/|arch/\w+/include/"
        )
        return re.match(pattern, file) is not None

    def own_flags(self, module: Module, source: str) -> tuple[str, ...]:
        """The flags that the module's kbuild file adds for a unit."""
        for target in self._targets.get(plain(module.name), ()):
            if (
                target.module.directory == module.directory
                and target.module.builtin == module.builtin
            ):
                return target.unit_flags(source)
        return ()


def plain(name: str) -> str:
    """A module's name as modprobe compares it."""
    return name.replace("-", "_")


def macros(module: Module, source: str) -> tuple[str, ...]:
    """The macros by which a unit knows what it is part of [kbuild: scripts/Makefile.lib]."""
    base = plain(posixpath.basename(source).split(".")[0])
    name = plain(module.name)
    kind = () if module.builtin else ("-DMODULE",)
    file = f'-DKBUILD_MODFILE="{module.directory}/{module.name}"'
    return (
        *kind,
        f'-DKBUILD_BASENAME="{base}"',
        f'-DKBUILD_MODNAME="{name}"',
        f"-D__KBUILD_MODNAME=kmod_{name}",
        file,
    )
