"""The modules of a kernel, with sources and flags, out of its evaluated kbuild files.

[kbuild: Documentation/kbuild/makefiles.rst]
"""

from __future__ import annotations

import posixpath
import re
import shlex
from pathlib import Path

import msgspec

from ring3_split.files import write
from ring3_split.kbuild import generated
from ring3_split.kbuild.makefiles import EVALUATE, Directory, Evaluation, Setting, evaluate
from ring3_split.model import Module
from ring3_split.stamps import digest, digest_of_files

# Where drivers are, and what calls them. Core libraries of drivers (scsi_mod, snd, usbcore) are in
# there, too.
TOPS = ("drivers", "sound", "net", "block")
# What can stand for an object that has no C source, by the ending of its source.
NOT_C = {".S": "assembly", ".rs": "Rust", ".asn1": "generated from ASN.1", ".dts": "device tree"}
# Flags that change what the compiler reads. The rest of what kbuild files add are warnings, tuning
# and instrumentation.
READS = re.compile(
    r"-(D|U|I|std=|include|iquote|isystem|idirafter"
    r"|m(no-)?(sse|mmx|avx|80387|hard-float|soft-float)|f(un)?signed|fshort|fms-)"
)
SEPARATE = ("-I", "-D", "-U", "-include", "-iquote", "-isystem", "-idirafter")
# A rule by which objects come from sources of another folder:
# "$(obj)/shared/%.o: $(srctree)/drivers/other/%.c".
ELSEWHERE = re.compile(r"^\$\(obj\)/(\S*)%\.o\s*:\s*\$\((src|srctree)\)/(\S*)%\.c", re.MULTILINE)


class Target(msgspec.Struct, frozen=True, omit_defaults=True):
    """A module, or a driver that is built into the kernel, and how its units are compiled."""

    module: Module
    flags: tuple[str, ...] = ()  # of its directory
    own: dict[str, tuple[str, ...]] = {}  # source -> flags that only it has

    def unit_flags(self, source: str) -> tuple[str, ...]:
        """The flags of the kbuild files for one of its sources."""
        return self.flags + self.own.get(source, ())


class Catalogue(msgspec.Struct, frozen=True):
    """All targets of a kernel."""

    targets: tuple[Target, ...]
    kbuild: tuple[str, ...] = ()  # files that it was made from, relative to the source folder
    broken: dict[str, str] = {}  # directories that make could not evaluate -> its message


def read(setting: Setting, folder: Path) -> Catalogue:
    """Evaluates the kbuild files and lists what they build.

    `folder` is where files may be put that units include.
    """
    found = evaluate(setting, TOPS)
    inherited = _inherited(found)
    for path in found.directories:
        inherited[path] += generated.includes(setting, path, folder)
    targets: dict[tuple[str, str], Target] = {}
    for path, directory in found.directories.items():
        builtin = _objects(directory, "y") if path in found.builtin else []
        for kind, objects in (("y", builtin), ("m", _objects(directory, "m"))):
            for name in objects:
                if kind == "y" or (path, name) not in targets:
                    targets[path, name] = _target(
                        setting.root, directory, name, kind, inherited[path]
                    )
    kbuild = {file: None for d in found.directories.values() for file in d.words("MAKEFILE_LIST")}
    return Catalogue(tuple(targets.values()), tuple(kbuild), found.broken)


def _objects(directory: Directory, kind: str) -> list[str]:
    return [
        w.removesuffix(".o")
        for w in dict.fromkeys(directory.words(f"obj-{kind}"))
        if w.endswith(".o")
    ]


def _inherited(found: Evaluation) -> dict[str, list[str]]:
    """For each directory the subdir-ccflags of itself and of all above it, outermost first."""
    flags: dict[str, list[str]] = {}
    for path in found.directories:  # parents stand before what they lead to
        above = flags[found.parents[path]] if path in found.parents else []
        flags[path] = above + _split(found.directories[path].variables.get("subdir-ccflags-y", ""))
    return flags


def _target(root: Path, directory: Directory, name: str, kind: str, inherited: list[str]) -> Target:
    """The target `name` of a directory: its parts, where their sources are, and their flags."""
    sources: list[str] = []
    skipped: dict[str, str] = {}
    own: dict[str, tuple[str, ...]] = {}
    for part in _parts(directory, name, kind):
        stem = posixpath.normpath(posixpath.join(directory.path, part))
        source, reason = source_of(root, stem)
        source = source or _elsewhere(root, directory, stem)
        if not source:
            skipped[f"{stem}.o"] = reason
        elif source not in sources:
            sources.append(source)
            extra = _own_flags(directory, part)
            if extra:
                own[source] = extra
    flags = [
        *inherited,
        *_flags(directory, ("cppflags-y", "ccflags-y", "EXTRA_CPPFLAGS", "EXTRA_CFLAGS")),
    ]
    removed = set(_split(directory.variables.get("ccflags-remove-y", "")))
    kept = tuple(f for f in clean(flags) if f not in removed)
    module = Module(
        posixpath.basename(name),
        posixpath.dirname(posixpath.join(directory.path, name)),
        tuple(sources),
        skipped,
        kind == "y",
    )
    return Target(module, kept, own)


def _parts(directory: Directory, name: str, kind: str) -> list[str]:
    """The objects that `name` is linked from, without ".o"; itself, when it is not composite."""
    suffixes = ("-objs", "-y", "-m") if kind == "m" else ("-objs", "-y")
    words = [w for suffix in suffixes for w in directory.words(name + suffix)]
    return list(dict.fromkeys(w.removesuffix(".o") for w in words if w.endswith(".o"))) or [name]


def source_of(root: Path, stem: str) -> tuple[str, str]:
    """Where the source of an object is, or why it has none that can be read."""
    for ending in (".c", ".c_shipped"):
        if (root / (stem + ending)).is_file():
            return stem + ending, ""
    for ending, reason in NOT_C.items():
        if (root / (stem + ending)).is_file():
            return "", reason
    return "", "generated during the build, or not there"


def _elsewhere(root: Path, directory: Directory, stem: str) -> str:
    """The source of an object that a rule of its kbuild file takes from another folder.

    "" when there is no such rule.
    """
    for file in directory.words("MAKEFILE_LIST"):
        for prefix, top, folder in ELSEWHERE.findall((root / file).read_text(errors="replace")):
            start = f"{directory.path}/{prefix}"
            source = (
                ("" if top == "srctree" else f"{directory.path}/")
                + folder
                + stem.removeprefix(start)
                + ".c"
            )
            if stem.startswith(start) and (root / source).is_file():
                return str(posixpath.normpath(source))
    return ""


def _own_flags(directory: Directory, part: str) -> tuple[str, ...]:
    names = dict.fromkeys((f"CFLAGS_{part}.o", f"CFLAGS_{posixpath.basename(part)}.o"))
    return tuple(clean(_flags(directory, tuple(names))))


def _flags(directory: Directory, names: tuple[str, ...]) -> list[str]:
    return [flag for name in names for flag in _split(directory.variables.get(name, ""))]


def _split(value: str) -> list[str]:
    """Words as the shell that starts the compiler would see them."""
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()


def clean(flags: list[str]) -> list[str]:
    """The flags that change what is read, each one word: "-include" "x.h" becomes "-includex.h"."""
    kept: list[str] = []
    words = iter(flags)
    for word in words:
        if word in SEPARATE:
            kept.append(word + next(words, ""))
        elif READS.match(word):
            kept.append(word)
    return kept


class Stored(msgspec.Struct, frozen=True):
    """A catalogue in the cache, and what it was made for."""

    key: str
    files: str  # state of the kbuild files
    catalogue: Catalogue


def load(setting: Setting, folder: Path, key: str) -> Catalogue:
    """The catalogue from the cache `folder`, if it is of the kernel's present state.

    Else it is read, and kept there.
    """
    version = digest(*(own.read_text() for own in sorted(EVALUATE.parent.glob("*.[pm][yk]"))))
    file = folder / f"modules-{version}.json"
    try:
        stored = msgspec.json.decode(file.read_bytes(), type=Stored)
        if stored.key == key and stored.files == digest_of_files(
            setting.root, stored.catalogue.kbuild
        ):
            return stored.catalogue
    except (OSError, msgspec.DecodeError):
        pass  # not there, or not whole
    catalogue = read(setting, folder / "shipped")
    files = digest_of_files(setting.root, catalogue.kbuild)
    write(file, msgspec.json.encode(Stored(key, files, catalogue)))
    return catalogue
