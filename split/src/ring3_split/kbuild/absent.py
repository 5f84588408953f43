"""Why a driver is not in a kernel: the option that would build it, and where that option is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ring3_split.kbuild.catalogue import TOPS

ENTRY = re.compile(r"^\s*(?:obj|subdir)-\$\(CONFIG_(\w+)\)\s*[:+]?=([^\n#]*)", re.MULTILINE)


def reason(root: Path, config: dict[str, str], name: str) -> str:
    """What the configuration lacks for the driver `name`; "" when no kbuild file speaks of it."""
    wanted = name.replace("_", "-")
    for file, text in _kbuild_files(root):
        for option, words in ENTRY.findall(text):
            if any(
                w.removesuffix(".o").replace("_", "-") == wanted
                for w in words.split()
                if w.endswith(".o")
            ):
                return _reason(root, config, name, option, file.parent)
    return ""


def _reason(
    root: Path, config: dict[str, str], name: str, option: str, directory: PurePosixPath
) -> str:
    missing = option if option not in config else _missing_above(root, config, directory)
    if missing:
        where = _kconfig(root, directory, missing)
        return (
            f"{name} is not in the config: CONFIG_{missing} is not set ({where}); it is built "
            f"from {directory}"
        )
    return (
        f"{name} is not built, though CONFIG_{option} is set: see {directory}/Makefile for "
        "what else it depends on"
    )


def _missing_above(root: Path, config: dict[str, str], directory: PurePosixPath) -> str:
    """The first option that is not set of those that lead to a directory."""
    for parent in directory.parents:
        below = directory.relative_to(parent).as_posix()
        for option, words in ENTRY.findall(_text(root / parent)):
            if option not in config and any(
                w.endswith("/") and f"{below}/".startswith(w) for w in words.split()
            ):
                return str(option)
    return ""


def _text(folder: Path) -> str:
    """The kbuild file of a folder, its continued lines joined."""
    for name in ("Kbuild", "Makefile"):
        file = folder / name
        if file.is_file():
            return file.read_text(errors="replace").replace("\\\n", " ")
    return ""


def _kbuild_files(root: Path) -> Iterator[tuple[PurePosixPath, str]]:
    for top in TOPS:
        for name in ("Makefile", "Kbuild"):
            for file in sorted((root / top).rglob(name)):
                yield (
                    PurePosixPath(file.relative_to(root).as_posix()),
                    file.read_text(errors="replace").replace("\\\n", " "),
                )


def _kconfig(root: Path, directory: PurePosixPath, option: str) -> str:
    """The Kconfig file that has the option, looked for from the driver's folder upwards."""
    wanted = re.compile(rf"^\s*(menu)?config\s+{option}\s*$", re.MULTILINE)
    for folder in (directory, *directory.parents):
        for file in sorted((root / folder).glob("Kconfig*")):
            if file.is_file() and wanted.search(file.read_text(errors="replace")):
                return file.relative_to(root).as_posix()
    return "no Kconfig file of its folder has it"
