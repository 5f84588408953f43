"""A split driver in a guest.

Loaded, put to work, its user half killed and restarted: `ring3 split run`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from ring3_split.errors import Refusal
from ring3_split.generate.build import Built
from ring3_split.generate.halves import RUNTIME
from ring3_split.generate.tools import MARKER, USUAL, Tools
from ring3_split.kernel import Kernel
from ring3_split.profile import lab, scenario
from ring3_split.profile.build import build_own
from ring3_split.profile.devices import device, kinds
from ring3_split.profile.elf import Object
from ring3_split.profile.headers import checks_itself, version
from ring3_split.profile.run import plain
from ring3_split.profile.scenario import Run

GUEST = Path(__file__).parent / "guest"
# (what it is, shell): functions of guest/split.sh and guest/KIND-split.sh.
STEPS = (
    ("the halves meet", "split_load"),
    ("it works by its user half", "works"),
    ("the user half dies while it works", "during"),
    ("what is in the kernel goes on, what is not fails", "alone"),
    ("the user half comes back", "split_restart"),
    ("it works again", "works"),
)
# What needs the user half as everyone runs it, and many deaths.
CONFINED = (("the user half can do nothing but answer", "confined"),)
# The same of one kind only.
MORE = {
    "network": (("the user half dies in the middle of resets, opening and probing", "often"),),
    "disk": (("the user half dies in the middle of probing", "often"),),
}
LIES = (
    ("the user half dies again", "split_kill"),
    ("messages that no user half would send", "lies"),
    ("an honest one comes back", "honest"),
    ("it works once more", "works"),
)
KNOWS = (("calls, members and probes of one that knows types and lies", "knows"),)
CHECKED = (("the checker has found nothing", "checked"),)
END = (("it is unloaded", "split_unload"), ("the kernel has nothing to say", "kernel_is_well"))
KINDS = ("sound", "network", "disk")
# Of the guest's kernel, for what is done with a disk.
MODULES = {"disk": ("ext4",)}
IMAGE = "disk.img"
IMAGE_SIZE = 256 << 20
FUNCTIONS = ("works", "during", "alone", "lies", "honest")
PROGRAMS = ("bench.c", "fuzz.c", "inject.c", "ioctls.c", "tries.c")
POISONS = "slub_debug=FZPU"
LIES_A_SECOND = 50  # at least: what is done between them takes its time


@dataclass(frozen=True)
class Wanted:
    """What is done with it."""

    lies: int = 0  # messages of a user half that lies
    # What this driver is put to, if not what its kind is: functions in place of those of
    # guest/KIND-split.sh.
    work: Path | None = None
    tools: Tools = USUAL  # what the user half is looked at with
    upcalls: int = 0  # of a user half that lies and knows types
    # the kernel fills memory that is freed, and looks at it; so it does for one that knows types
    poisoned: bool = False


NOTHING_ELSE = Wanted()


@dataclass(frozen=True)
class Request:
    """What is asked for."""

    cache: Path  # ring3's, with the lab's kernels
    seconds: float = 0.5  # of each kind of transfer
    log: Path = Path("split-run.log")
    wanted: Wanted = NOTHING_ELSE


def check(driver: str, work: Path | None = None) -> str:
    """The kind of a driver's device.

    Raises:
        Refusal: no device of QEMU's is known for it, or nothing is known to be done with it.
    """
    kind = device(driver).kind
    if work is not None and not work.is_file():
        raise Refusal(
            f"{work}: is not there: it is a shell script with the functions {', '.join(FUNCTIONS)}"
        )
    if kind not in KINDS and work is None:
        raise Refusal(
            f"nothing is known to be done with a split driver of kind {kind}: there is "
            f"{', '.join(KINDS)}; "
            "write it as a script and name that with --work (docs/splitting-a-driver.md)"
        )
    return kind


def run(
    kernel: Kernel, driver: str, built: Built, request: Request, show: Callable[[str, bool], None]
) -> None:
    """Runs it.

    Raises:
        Refusal: the lab or a step failed; its output is in the log.
    """
    kind = check(driver, request.wanted.work)
    one = guest_run(kernel, driver, built, request.seconds)
    with tempfile.TemporaryDirectory(prefix="ring3-split-") as name:
        folder = Path(name)
        with (folder / IMAGE).open("wb") as image:
            image.truncate(IMAGE_SIZE)
        (folder / "scenario.toml").write_text(
            text(one, kind, built.layout, request.wanted, folder / IMAGE)
        )
        lab.run(folder / "scenario.toml", request.cache, folder / "out", request.log, show)


def guest_run(kernel: Kernel, driver: str, built: Built, seconds: float) -> Run:
    """What a guest with a split driver is made of.

    Raises:
        Refusal: the guest's programs cannot be built.
    """
    kind, guest = device(driver).kind, kernel.folder.parent / "guest"
    fuzzers = (lab.compiled_file(GUEST / name, guest, RUNTIME, GUEST) for name in PROGRAMS)
    # It has the driver's own tables, of which `layout` is the number.
    liar = lab.compiled_file(
        GUEST / "liar.c",
        guest / f"liar-{built.layout}",
        RUNTIME,
        GUEST,
        built.driver.parent,
    )
    programs = (*lab.compiled(kinds()[kind].programs, guest), *fuzzers, liar, built.program)
    needs = tuple(need for need in Object(built.driver).needs() if plain(need) != "ring3_split")
    revision = (
        build_own(kernel, scenario.GUEST / "revision.c")
        if device(driver).revision is not None
        else None
    )
    return Run(
        driver,
        device(driver),
        "load",
        seconds,
        version(kernel),
        (built.runtime, built.driver),
        needs,
        programs,
        revision,
        checks_itself(kernel),
    )


def steps(kind: str, wanted: Wanted) -> list[tuple[str, str]]:
    """(what it is, shell) of every step.

    One that is looked at is slow and dies seldom, under a debugger of itself alone.
    """
    tools = wanted.tools
    if tools.gdb:
        return [*STEPS[:2], *(CHECKED if tools.asan else ()), *END]
    if tools.debugs:
        return [*STEPS, *CHECKED, *END]
    confined = () if tools.unconfined else CONFINED
    lies = LIES if wanted.lies else (LIES[0], *LIES[2:])
    lies = (*lies[:-2], *(KNOWS if wanted.upcalls else ()), *lies[-2:])
    return [
        *STEPS,
        *confined,
        *MORE.get(kind, ()),
        *(lies if wanted.lies or wanted.upcalls else ()),
        *END,
    ]


def limit(run: Run, usual: float) -> int:
    """The time limit of a guest, in seconds, from the one that the usual kernel needs."""
    return int(usual * run.slowness) + (scenario.CHECKS_BOOT if run.checks else 0)


def text(run: Run, kind: str, layout: str, wanted: Wanted, image: Path | None = None) -> str:
    """The scenario's file: the one of a profile with other steps.

    What a later script has replaces what an earlier one has.

    A disk that the lab does not make is in the file `image`, where it is given.
    """
    document: dict[str, Any] = tomlkit.parse(scenario.text(run)).unwrap()
    tools, work = wanted.tools, wanted.work
    slowness = tools.slowness * run.slowness
    files = [GUEST / "split.sh", scenario.GUEST / f"{kind}.sh"]
    files += [GUEST / f"{kind}-split.sh"] if kind in KINDS else []
    files += [work.absolute()] if work else []
    shell = "".join(f". /lib/ring3/{file.name}; " for file in files)
    document["about"] = f"{run.driver} as a split driver: its user half works, dies and comes back"
    document["files"] |= {f"/lib/ring3/{file.name}": str(file) for file in files}
    document["files"] |= {place: str(file) for place, file in tools.files().items()}
    document["modules"] += MODULES.get(kind, ())
    if run.device.disk and image is not None:
        # What was written must be there when it is read again.
        document["qemu_arguments"][1] = f"file,node-name=disk,filename={image}"
    document["programs"] += [str(program) for program in tools.programs()]
    document["variables"] |= {"DRIVER": run.driver, "LAYOUT": layout, "MESSAGES": str(wanted.lies)}
    document["variables"] |= {
        "UPCALLS": str(wanted.upcalls),
        "TOOL": tools.command(),
        "OPTIONS": tools.options(),
        "SLOWNESS": str(slowness),
        "MARKER": MARKER,
    }
    if tools.debugs:
        document["memory"] = "1G"
        # With its line numbers, of which the lab strips programs; among those it is for its
        # libraries.
        document["files"][f"/usr/local/bin/{run.programs[-1].name}"] = str(run.programs[-1])
    if (wanted.poisoned or wanted.upcalls) and not run.checks:
        document["kernel_arguments"] = [*document.get("kernel_arguments", []), POISONS]
    all_steps = steps(kind, wanted)
    usual = (document["time_limit"] + len(all_steps) * 20) * tools.slowness
    document["time_limit"] = limit(run, usual + wanted.lies / LIES_A_SECOND + wanted.upcalls)
    all_steps = [(all_steps[0][0], f"{scenario.prepare(run)} && {all_steps[0][1]}"), *all_steps[1:]]
    document["step"] = [{"name": name, "run": f"{shell}{command}"} for name, command in all_steps]
    return tomlkit.dumps(document)
