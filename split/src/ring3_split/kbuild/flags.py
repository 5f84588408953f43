"""What every unit of a kernel is compiled with.

Architecture, language, include folders, as its top Makefile would say.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from ring3_split.errors import Refusal

TABLE = Path(__file__).with_name("architectures.toml")
# clang makes errors of what the gcc of an old kernel's time let pass, and warnings are not our
# business.
LENIENT = (
    "-w",
    "-Wno-int-conversion",
    "-Wno-incompatible-pointer-types",
    "-Wno-incompatible-function-pointer-types",
    "-Wno-implicit-function-declaration",
    "-Wno-implicit-int",
    "-Wno-return-mismatch",
    "-Wno-unknown-warning-option",
)
# Language flags that one kernel has and another has not: they are taken over when the top Makefile
# names them.
LANGUAGE = (
    "-fshort-wchar",
    "-funsigned-char",
    "-fms-extensions",
    "-fms-anonymous-structs",
    "-fno-common",
)
# Headers that come before all others, in this order, each since some version.
BEFORE = (
    "include/linux/compiler-version.h",
    "include/linux/kconfig.h",
    "include/linux/compiler_types.h",
)


@dataclass(frozen=True)
class Architecture:
    """An architecture as a tree has it."""

    name: str  # ARCH
    directory: str  # folder in arch/
    flags: tuple[str, ...]
    machines: tuple[tuple[str, str], ...] = ()


def architecture(root: Path, name: str) -> Architecture:
    """The architecture `name` of a tree."""
    table = tomllib.loads(TABLE.read_text())
    entry = table.get("x86_64" if name in ("x86", "amd64") else name)
    if entry is None:
        raise Refusal(f"--arch {name} is not known; known are {', '.join(table)}")
    for directory in entry["directory"]:
        if (root / "arch" / directory).is_dir():
            machines = tuple((option, folder) for option, folder in entry.get("machines", ()))
            return Architecture(name, directory, tuple(entry["flags"]), machines)
    there = sorted(
        known
        for known, other in table.items()
        if any((root / "arch" / d).is_dir() for d in other["directory"])
    )
    raise Refusal(
        f"{root} has no arch/{entry['directory'][0]}; --arch can be "
        f"{', '.join(there) or 'none of those that are known'}"
    )


def architecture_of(config: dict[str, str], where: Path) -> str:
    """The name of the architecture that a configuration is for."""
    table = tomllib.loads(TABLE.read_text())
    for name, entry in table.items():
        if config.get(entry["config"]) == "y":
            return str(name)
    if config.get("X86") == "y":  # i386 alone, before the two were one
        return "i386"
    raise Refusal(
        f"{where} is for an architecture that is not known; known are {', '.join(table)}; name it "
        "with --arch"
    )


def version(root: Path) -> str:
    """The version that a source tree says it is: "2.6.18", "6.12.117"."""
    try:
        text = (root / "Makefile").read_text(errors="replace")
    except OSError:
        raise Refusal(f"{root} is not a kernel's source folder: it has no Makefile") from None
    fields: dict[str, str] = dict(
        re.findall(
            r"^(VERSION|PATCHLEVEL|SUBLEVEL|EXTRAVERSION)[ \t]*=[ \t]*(\S*)", text, re.MULTILINE
        )
    )
    if "PATCHLEVEL" not in fields or not (root / "drivers").is_dir():
        raise Refusal(
            f"{root} is not a kernel's source folder: its Makefile has no PATCHLEVEL, or drivers/ "
            "is missing"
        )
    numbers = [fields.get(name, "") for name in ("VERSION", "PATCHLEVEL", "SUBLEVEL")]
    return ".".join(n for n in numbers if n) + fields.get("EXTRAVERSION", "")


def base(
    root: Path, generated: Path, machine: Architecture, config: dict[str, str]
) -> tuple[str, ...]:
    """The flags of every unit. Relative folders are seen from `root`, where the compiler runs.

    `generated` is the folder of generated headers, laid out as an O= folder is; it may be `root`
    itself.
    """
    makefile = (root / "Makefile").read_text(errors="replace")
    # Since 6.19 the configuration says how the compiler is told that a struct may be a member by
    # its tag alone.
    language = [*_language(makefile), *config.get("CC_MS_EXTENSIONS", "").split()]
    always = [*LENIENT, "-D__KERNEL__", "-DKBUILD_STR(s)=#s"]
    return (*machine.flags, *language, *always, *_includes(root, generated, machine, config))


def _language(makefile: str) -> list[str]:
    """The dialect of C, out of the top Makefile's lines for the kernel, not for host programs."""
    lines = [line for line in makefile.splitlines() if "HOST" not in line and "USER" not in line]
    words = re.findall(r"-[\w=-]+", "\n".join(lines))
    standards = [w for w in words if w.startswith("-std=")]
    # No word of it: the gcc of that time meant gnu89.
    flags = [standards[0] if standards else "-std=gnu89"] + [w for w in LANGUAGE if w in words]
    # Its own <stdarg.h> came with 5.16; before that, the compiler's is included.
    return flags + (
        ["-nostdinc"] if "-nostdinc" in words and "-isystem" not in words else ["-nostdlibinc"]
    )


def _includes(
    root: Path, generated: Path, machine: Architecture, config: dict[str, str]
) -> list[str]:
    arch = f"arch/{machine.directory}/include"
    places = [root / arch, generated / arch / "generated", root / "include", generated / "include"]
    places += [
        root / arch / "uapi",
        generated / arch / "generated/uapi",
        root / "include/uapi",
        generated / "include/generated/uapi",
    ]
    option_folder = next(
        (mach for option, mach in machine.machines if config.get(option) == "y"), ""
    )
    if option_folder:
        for asm in (f"include/asm-{machine.directory}", f"{arch}/asm"):
            places += [root / asm / mach for mach in dict.fromkeys((option_folder, "mach-default"))]
    folders = dict.fromkeys(_seen_from(root, place) for place in places if place.is_dir())
    flags = [f"-I{folder}" for folder in folders]
    before = [f for f in BEFORE if (root / f).is_file()]
    if "include/linux/kconfig.h" not in before:
        headers = (
            generated / "include/generated/autoconf.h",
            generated / "include/linux/autoconf.h",
            root / "include/linux/autoconf.h",
        )
        before.insert(
            0, next((_seen_from(root, h) for h in headers if h.is_file()), "linux/autoconf.h")
        )
    return flags + [word for header in before for word in ("-include", header)]


def _seen_from(root: Path, place: Path) -> str:
    return str(place.relative_to(root)) if place.is_relative_to(root) else str(place)
