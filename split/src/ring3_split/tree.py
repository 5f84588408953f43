"""A kernel out of a source tree: configured, with its build folder, or a bare one of 2.6."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from ring3_split import clang
from ring3_split.errors import Refusal
from ring3_split.kbuild import absent, catalogue, config, flags, prepare
from ring3_split.kbuild.makefiles import Setting
from ring3_split.kernel import Kernel
from ring3_split.stamps import digest, digest_of_folders, stamp

AUTOCONF = ("include/generated/autoconf.h", "include/linux/autoconf.h")
# The last of the headers that a build generates and drivers include; made from kernel/bounds.c.
BOUNDS = ("include/generated/bounds.h", "include/linux/bounds.h")


def open_kernel(
    tree: Path, given: Path | None, name: str | None, cache: Path, compiler: str | None = None
) -> Kernel:
    """The kernel of a tree.

    `given` is its configuration, if not the one in it; `name` its architecture.

    Raises:
        Refusal: it is no tree, or not configured and too new to be configured here; no clang.
    """
    tree = tree.absolute()
    if not tree.is_dir():
        raise Refusal(f"--tree {tree}: no such folder")
    root = _source(tree)
    version = flags.version(root)
    if given and not given.is_file():
        raise Refusal(f"--config {given}: no such file")
    folder = (
        cache / "split" / f"tree-{version}-{digest(root, tree, given and given.read_bytes())[:8]}"
    )
    build, machine = _build(root, tree, given, name, folder)
    options = config.read(build / ".config")
    base = flags.base(root, build, machine, options)
    auto = build / "include/config/auto.conf"
    setting = Setting(
        root,
        build,
        auto if auto.is_file() else build / ".config",
        machine.directory,
        machine.directory,
    )
    headers = dict.fromkeys(
        d / f"{place}"
        for d in (root, build)
        for place in ("include", f"arch/{machine.directory}/include")
    )
    key = digest(root, build, stamp(setting.config), digest_of_folders(headers), *base)
    return Kernel(
        name=version,
        root=root,
        key=key,
        folder=folder,
        compiler=clang.find(compiler, cache),
        base=base,
        load=partial(catalogue.load, setting, folder, key),
        absent=partial(absent.reason, root, options),
    )


def _source(tree: Path) -> Path:
    """The source folder of a tree, which may be a build folder (O=) that points to it."""
    if (tree / "drivers").is_dir() and (tree / "Kbuild").is_file():
        return tree
    if (tree / "source").is_dir():
        return (tree / "source").resolve()
    makefile = tree / "Makefile"
    found = (
        re.search(r"^include (/.*)/Makefile$", makefile.read_text(errors="replace"), re.MULTILINE)
        if makefile.is_file()
        else None
    )
    return Path(found.group(1)) if found else tree


def _build(
    root: Path, tree: Path, given: Path | None, name: str | None, folder: Path
) -> tuple[Path, flags.Architecture]:
    """The folder of configuration and generated headers, and the architecture they are for."""
    if (tree / ".config").is_file() and any((tree / header).is_file() for header in AUTOCONF):
        if given and config.read(given) != config.read(tree / ".config"):
            raise Refusal(
                f"{tree} is configured otherwise than {given}: its generated headers are of its "
                "own .config; "
                f"make -C {root} O=BUILD with {given} as BUILD/.config, then --tree BUILD"
            )
        machine = flags.architecture(
            root, name or flags.architecture_of(config.read(tree / ".config"), tree / ".config")
        )
        if (root / "kernel/bounds.c").is_file() and not any(
            (tree / header).is_file() for header in BOUNDS
        ):
            raise Refusal(
                f"{tree} is configured, but headers that a build generates are not there "
                "(generated/bounds.h): "
                f"make -C {tree} ARCH={machine.directory} modules_prepare; if a new compiler "
                "fails in that, prepare0 is enough"
            )
        return tree, machine
    own = given or (tree / ".config" if (tree / ".config").is_file() else None)
    machine = flags.architecture(
        root, name or (flags.architecture_of(config.read(own), own) if own else _bare(root))
    )
    return prepare.configure(
        root, machine.directory, folder / "build", flags.version(root), own
    ), machine


def _bare(root: Path) -> str:
    """The architecture of a tree about which nothing was said: a PC's, as of its time."""
    return "i386" if (root / "arch/i386").is_dir() else "x86_64"
