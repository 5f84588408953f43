"""A kernel out of what its build has written down: compile_commands.json.

Flags are those of the build. Modules are what the `.mod` files of the build folder say; where there
are none, what the kbuild files say with the build folder's configuration.
"""

from __future__ import annotations

import posixpath
import shlex
from functools import partial
from pathlib import Path

import msgspec

from ring3_split import clang
from ring3_split.errors import Refusal
from ring3_split.kbuild import absent, catalogue, config, flags
from ring3_split.kbuild.catalogue import TOPS, Catalogue, Target
from ring3_split.kbuild.makefiles import Setting
from ring3_split.kernel import Kernel
from ring3_split.model import Module
from ring3_split.stamps import digest, digest_of_folders, stamp

PART = ("-DKBUILD_", "-D__KBUILD_", "-DMODULE", "-D__KERNEL__")
FOLDERS = ("-include", "-iquote", "-idirafter", "-I")


class Command(msgspec.Struct, frozen=True):
    """An entry of the file. [clang: JSON Compilation Database Format Specification]."""

    directory: str
    file: str
    command: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def source(self) -> Path:
        """The unit, as an absolute path."""
        return Path(posixpath.normpath(posixpath.join(self.directory, self.file)))

    def flags(self, root: Path) -> list[str]:
        """Its flags that change what is read, folders as seen from `root`."""
        kept: list[str] = []
        for word in catalogue.clean(list(self.arguments) or shlex.split(self.command)):
            option = next((o for o in FOLDERS if word.startswith(o)), "")
            if option:
                kept.append(option + self._place(word.removeprefix(option), root))
            # gcc's own headers: clang has its own. Macros that say what the unit is part of: we
            # give the same.
            elif not word.startswith(("-isystem", *PART)):
                kept.append(word)
        return kept

    def _place(self, path: str, root: Path) -> str:
        """A path of the command as seen from `root`; a header that is looked for stays as it is."""
        place = posixpath.normpath(posixpath.join(self.directory, path))
        if not Path(place).exists():
            return path
        return posixpath.relpath(place, root) if Path(place).is_relative_to(root) else place


def open_kernel(file: Path, cache: Path, compiler: str | None = None) -> Kernel:
    """The kernel whose build wrote `file`.

    Raises:
        Refusal: the file is not there or is no such file; it is not a kernel's; its sources are
            gone; no clang.
    """
    commands = _commands(file)
    root, build = _root(commands, file), Path(next(iter(commands)).directory)
    units = {
        posixpath.relpath(c.source, root): c for c in commands if c.source.is_relative_to(root)
    }
    units = {source: c for source, c in units.items() if source.split("/")[0] in TOPS}
    if not units:
        raise Refusal(
            f"{file} has no unit of {' or '.join(TOPS)}: was the kernel built without drivers?"
        )
    options = config.read(build / ".config")
    machine = flags.architecture(root, flags.architecture_of(options, build / ".config"))
    own = {source: c.flags(root) for source, c in units.items()}
    common = _common(list(own.values()))
    base = (*machine.flags, *flags.LENIENT, "-nostdlibinc", "-D__KERNEL__", *common)
    own = {source: [f for f in given if f not in set(common)] for source, given in own.items()}
    version = flags.version(root)
    folder = cache / "split" / f"build-{version}-{digest(file.absolute())[:8]}"
    headers = dict.fromkeys(
        d / place
        for d in (root, build)
        for place in ("include", f"arch/{machine.directory}/include")
    )
    key = digest(root, build, stamp(file), digest_of_folders(headers), *base)
    setting = Setting(root, build, build / ".config", machine.directory, machine.directory)
    return Kernel(
        name=version,
        root=root,
        key=key,
        folder=folder,
        compiler=clang.find(compiler, cache),
        base=base,
        load=partial(_catalogue, setting, folder, key, own),
        absent=partial(absent.reason, root, options),
    )


def _commands(file: Path) -> list[Command]:
    try:
        commands = msgspec.json.decode(file.read_bytes(), type=list[Command])
    except OSError as error:
        raise Refusal(
            f"--compile-commands {file}: {error.strerror}; in a kernel's build folder, make "
            "compile_commands.json writes it"
        ) from None
    except msgspec.DecodeError as error:
        raise Refusal(f"{file} is not a compile_commands.json: {error}") from None
    if not commands:
        raise Refusal(
            f"{file} has no entry: build the kernel or its modules, then make compile_commands.json"
        )
    return commands


def _root(commands: list[Command], file: Path) -> Path:
    """The source folder: the nearest above a unit that has drivers."""
    for command in commands:
        for folder in command.source.parents:
            if (folder / "drivers").is_dir() and (folder / "Makefile").is_file():
                return folder
    raise Refusal(
        f"{file} speaks of {commands[0].source}, and no kernel's source is there; it is to be "
        "used where it was made"
    )


def _common(lists: list[list[str]]) -> list[str]:
    """The flags that all units have, in the order of the first."""
    shared = set(lists[0]).intersection(*map(set, lists[1:]))
    return [flag for flag in lists[0] if flag in shared]


def _catalogue(setting: Setting, folder: Path, key: str, own: dict[str, list[str]]) -> Catalogue:
    listed = _from_mod_files(setting.objects, setting.root)
    modules = listed or [t.module for t in catalogue.load(setting, folder, key).targets]
    targets = [_target(module, own) for module in modules]
    return Catalogue(tuple(t for t in targets if t.module.sources))


def _target(module: Module, own: dict[str, list[str]]) -> Target:
    """The module as the build has it: units that were not compiled are skipped."""
    there = tuple(source for source in module.sources if source in own)
    missing = {
        source: "not in compile_commands.json" for source in module.sources if source not in own
    }
    plain = Module(
        module.name, module.directory, there, {**module.skipped, **missing}, module.builtin
    )
    return Target(plain, own={source: tuple(own[source]) for source in there})


def _from_mod_files(build: Path, root: Path) -> list[Module]:
    """The modules that the build's .mod files list: the first line, or each line, names objects."""
    modules: list[Module] = []
    for file in sorted(f for top in TOPS for f in (build / top).rglob("*.mod")):
        sources: list[str] = []
        skipped: dict[str, str] = {}
        for word in (w for w in file.read_text(errors="replace").split() if w.endswith(".o")):
            stem = posixpath.relpath(posixpath.normpath(build / word), build).removesuffix(".o")
            source, reason = catalogue.source_of(root, stem)
            if reason:
                skipped[f"{stem}.o"] = reason
            elif source not in sources:
                sources.append(source)
        directory = file.parent.relative_to(build).as_posix()
        modules.append(Module(file.stem, directory, tuple(sources), skipped))
    return modules
