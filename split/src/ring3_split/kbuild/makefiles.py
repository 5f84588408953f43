"""What a tree's kbuild files say, by directory, as GNU make evaluates them for a configuration."""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from ring3_split import programs
from ring3_split.errors import Refusal

# A level of the tree's folders takes make less than a second; a $(shell ...) that waits for
# something must not hang us.
TIME_LIMIT = 120  # seconds
EVALUATE = Path(__file__).with_name("evaluate.mk")


@dataclass(frozen=True)
class Setting:
    """What an evaluation needs to know of a kernel."""

    root: Path  # source folder
    objects: Path  # where generated files are: `root`, or another folder
    config: Path  # configuration in make's syntax
    architecture: str  # ARCH
    directory: str  # SRCARCH: folder in arch/


@dataclass
class Directory:
    """One kbuild file, evaluated."""

    path: str  # "drivers/net"
    variables: dict[str, str] = field(default_factory=dict)

    def words(self, name: str) -> list[str]:
        """The words of a variable; none when it is not set."""
        return self.variables.get(name, "").split()

    def below(self, kind: str) -> list[str]:
        """Folders that it descends into for `kind`, which is "y" or "m"."""
        listed = [w for w in self.words(f"obj-{kind}") if w.endswith("/")] + self.words(
            f"subdir-{kind}"
        )
        return [posixpath.normpath(posixpath.join(self.path, d)) for d in listed]


@dataclass
class Evaluation:
    """All directories reached, how they were reached, and those that make could not evaluate."""

    directories: dict[str, Directory] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    builtin: set[str] = field(default_factory=set)  # reached by obj-y all the way
    broken: dict[str, str] = field(default_factory=dict)  # directory -> make's message


def evaluate(setting: Setting, tops: tuple[str, ...]) -> Evaluation:
    """Evaluates the kbuild files of `tops` and of all folders they lead to, level by level."""
    if shutil.which("make") is None:
        raise Refusal(
            "GNU make is missing: it evaluates the kernel's build description; as root: apt-get "
            "install make"
        )
    found = Evaluation()
    level = [top for top in tops if _has_kbuild(setting.root / top)]
    found.builtin.update(level)
    while level:
        found.directories.update(_evaluate(setting, level, found.broken))
        following: dict[str, None] = {}
        for path in level:
            for directory, builtin in _children(found, path):
                if builtin:
                    found.builtin.add(directory)
                if directory not in found.directories and _has_kbuild(setting.root / directory):
                    found.parents.setdefault(directory, path)
                    following[directory] = None
        level = [d for d in following if d not in found.broken]
    return found


def _children(found: Evaluation, path: str) -> list[tuple[str, bool]]:
    directory = found.directories.get(path)
    if directory is None:
        return []
    in_y = [(d, path in found.builtin) for d in directory.below("y")]
    return in_y + [(d, False) for d in directory.below("m")]


def _has_kbuild(folder: Path) -> bool:
    return (folder / "Kbuild").is_file() or (folder / "Makefile").is_file()


def _evaluate(setting: Setting, paths: list[str], broken: dict[str, str]) -> dict[str, Directory]:
    """Evaluates some directories in one make.

    One that stops it is noted in `broken`, and make goes on after it.
    """
    read: dict[str, Directory] = {}
    while paths:
        output, errors, message = _make(setting, paths)
        _collect(output, read)
        # A file that is included and is not there does not stop make until it has read all others.
        for line, folder in re.findall(
            r"^((\S+)/[^/\s:]+:\d+: \S+: No such file or directory)$", errors, re.MULTILINE
        ):
            broken.setdefault(folder, line)
        rest = [p for p in paths if p not in read]
        if message and rest:
            broken[rest.pop(0)] = message
        elif rest:
            raise Refusal(
                f"make said nothing about {rest[0]} in {setting.root}; is it GNU make 4 or later?"
            )
        paths = rest
    return read


def _make(setting: Setting, paths: list[str]) -> tuple[str, str, str]:
    """One run of make: its output, its error messages, and the one that stopped it, if any."""
    command = [
        "make",
        "--no-print-directory",
        "-s",
        "-f",
        str(EVALUATE),
        "nothing",
        f"CONFIG={setting.config}",
        "srctree=.",
    ]
    command += [
        f"objtree={setting.objects}",
        f"ARCH={setting.architecture}",
        f"SRCARCH={setting.directory}",
    ]
    command.append("DIRS=" + " ".join(paths))
    try:
        done = programs.run(command, setting.root, TIME_LIMIT)
    except subprocess.TimeoutExpired:
        raise Refusal(
            f"make did not come to an end with the kbuild files of {setting.root} in {TIME_LIMIT} s"
        ) from None
    stop = re.search(r"^(.*\*\*\*.*)$", done.stderr, re.MULTILINE)
    return (
        done.stdout,
        done.stderr,
        stop.group(1) if stop else done.stderr.strip() if done.returncode else "",
    )


def _collect(output: str, read: dict[str, Directory]) -> None:
    current: Directory | None = None
    for line in output.splitlines():
        if line.startswith("@ "):
            current = read.setdefault(line[2:], Directory(line[2:]))
        elif current is not None and "\t" in line:
            name, value = line.split("\t", 1)
            current.variables[name] = value
