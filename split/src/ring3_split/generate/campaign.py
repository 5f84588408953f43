"""Faults into a user half that works, and messages to the kernel that none would send.

`ring3 split campaign`.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import tomlkit

from ring3_split import files
from ring3_split.errors import Refusal
from ring3_split.generate import bench
from ring3_split.generate import run as running
from ring3_split.generate.build import Built
from ring3_split.generate.run import GUEST
from ring3_split.generate.tally import KINDS, Guest, Kept, Report, report, take
from ring3_split.kernel import Kernel
from ring3_split.profile import lab
from ring3_split.profile.scenario import Run
from ring3_split.progress import Progress

# What the user half is asked for meanwhile, `act` of guest/campaign.sh, each with its share: what
# takes long is done seldom.
WORK = {
    "dumps": 4,
    "parameters": 4,
    "settings": 4,
    "phy": 4,
    "blink": 2,
    "test": 1,
    "mtu": 6,
    "open": 6,
    "watchdog": 3,
    "probe": 6,
}
FAULTS_A_GUEST = 50  # so that a guest that is lost costs little
SECONDS_A_FAULT = 30  # at most, on a busy host
# The debugging that the distribution's kernel has: poisoned slabs with red zones, and guard pages
# around some allocations, show the use of freed memory and writing beyond an end; and any place of
# the kernel can lose the processor.
KERNEL_ARGUMENTS = ("slub_debug=FZPU", "kfence.sample_interval=20", "preempt=full")
STRANGERS = 10  # they are told off at once, mostly
QUICK: dict[str, Any] = {"faults": len(KINDS), "messages": 1000, "minutes": 0.1}


@dataclass(frozen=True)
class Request(running.Request):
    """What is asked for."""

    faults: int = 1000
    messages: int = (
        100_000  # of a user half that lies, and STRANGERS times as many of strangers at the device
    )
    seed: int = 1
    minutes: float = 0  # of TCP both ways at once, while the user half is killed every two seconds
    resume: Path | None = None  # keeps what guests have shown
    entries: tuple[str, ...] = ()  # of the user half, by their number in the tables


class Share(NamedTuple):
    """What one guest is to do."""

    number: int
    faults: list[tuple[int, str, str, int]]  # number, kind, work, seed
    messages: int
    seed: int
    seconds: float = 0  # of TCP while it dies


def kernel_arguments(run: Run) -> tuple[str, ...]:
    """Those of the guests' kernel.

    One with its checks on needs none: KASAN sees what poison shows, at the access itself, and
    such a kernel can lose the processor anywhere.
    """
    return () if run.checks else KERNEL_ARGUMENTS


def shares(request: Request) -> Iterator[Share]:
    """The campaign, cut into guests. The same seed gives the same ones."""
    chosen = random.Random(request.seed)  # noqa: S311
    listed = [
        (
            number,
            KINDS[number % len(KINDS)],
            chosen.choices(list(WORK), list(WORK.values()))[0],
            chosen.randrange(1 << 31),
        )
        for number in range(request.faults)
    ]
    count = -(-request.faults // FAULTS_A_GUEST) or int(request.messages > 0)
    for number in range(count):
        part = listed[number * FAULTS_A_GUEST : (number + 1) * FAULTS_A_GUEST]
        messages = request.messages * (number + 1) // count - request.messages * number // count
        yield Share(number, part, messages, chosen.randrange(1 << 31))
    if request.minutes:
        yield Share(count, [], 0, chosen.randrange(1 << 31), 60 * request.minutes)


def campaign(
    kernel: Kernel, driver: str, built: Built, request: Request, show: Callable[[str, bool], None]
) -> Report:
    """Runs it, one guest after the other; one that fails is counted, and the next one begins.

    Raises:
        Refusal: no load is known for the driver, or the file of `--resume` is of another campaign.
    """
    bench.check(driver)
    size = (request.seed, request.faults, request.messages, request.minutes)
    one = running.guest_run(kernel, driver, built, request.seconds)
    arguments = kernel_arguments(one)
    kept = _begin(
        Kept(driver, kernel.name, arguments, built.layout, request.entries, *size, []),
        request.resume,
    )
    done = {guest.number for guest in kept.guests}
    left = [share for share in shares(request) if share.number not in done]
    with Progress(
        f"faults into {driver}", sum(len(share.faults) for share in left), "faults"
    ) as bar:

        def hear(guest: Guest, line: str, step: bool) -> None:
            if take(guest, line):
                bar.did(guest.faults[-1].kind)
            show(line, step)

        for share in left:
            kept.guests.append(_guest(one, built.layout, share, request, hear))
            if request.resume:
                files.write(request.resume, msgspec.json.encode(kept))
    return report(kept)


def _begin(wanted: Kept, file: Path | None) -> Kept:
    if not file or not file.exists():
        return wanted
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=Kept)
    except (OSError, msgspec.DecodeError) as error:
        raise Refusal(
            f"{file}: is none of a campaign's: {error}; name another one with --resume"
        ) from None
    wanted.guests = kept.guests
    if kept != wanted:
        raise Refusal(
            f"{file}: is of another driver, kernel, build, seed or size of campaign: name another "
            "one with --resume"
        )
    return kept


def _guest(
    run: Run, layout: str, share: Share, request: Request, hear: Callable[[Guest, str, bool], None]
) -> Guest:
    found = Guest(share.number)
    log = request.log.with_suffix(f".{share.number}.log")
    with tempfile.TemporaryDirectory(prefix="ring3-split-") as name:
        folder = Path(name)
        (folder / "faults").write_text(
            "".join(f"{' '.join(map(str, fault))}\n" for fault in share.faults)
        )
        (folder / "scenario.toml").write_text(text(run, layout, share, folder / "faults"))
        start = time.monotonic()
        try:
            lab.run(
                folder / "scenario.toml", request.cache, folder / "out", log, partial(hear, found)
            )
        except Refusal as refusal:
            found.failed = str(refusal)
        found.host_seconds = round(time.monotonic() - start, 1)
    if not found.failed and len(found.faults) != len(share.faults):
        found.failed = (
            f"{len(found.faults)} of {len(share.faults)} faults were reported; all "
            f"output is in {log}"
        )
    return found


def text(run: Run, layout: str, share: Share, faults: Path) -> str:
    """The scenario's file: the one of a split driver's run with other steps."""
    document: dict[str, Any] = tomlkit.parse(
        running.text(run, "network", layout, running.Wanted(share.messages))
    ).unwrap()
    document["about"] = f"{run.driver} as a split driver, whose user half has faults"
    document["kernel_arguments"] = list(kernel_arguments(run))
    document["files"] |= {"/lib/ring3/faults": str(faults)}
    document["files"] |= {
        f"/lib/ring3/{name}.sh": str(GUEST / f"{name}.sh") for name in ("bench", "campaign")
    }
    document["variables"] |= {"SEED": str(share.seed), "STRANGERS": str(STRANGERS * share.messages)}
    document["variables"] |= {"ENDURED": f"{share.seconds:g}"}
    more = len(share.faults) * SECONDS_A_FAULT + share.messages / running.LIES_A_SECOND
    document["time_limit"] += int((more + share.seconds) * run.slowness)
    shell = "".join(
        f". /lib/ring3/{name}.sh; "
        for name in ("split", "network", "network-split", "bench", "campaign")
    )
    steps = [("the driver works by its user half", "campaign_begins")]
    if share.faults:
        steps += [("faults", "faults")]
    if share.messages:
        steps += [
            ("messages that no user half would send", "lying"),
            ("strangers at the device", "strangers"),
        ]
    if share.seconds:
        steps += [("TCP both ways while the user half is killed every two seconds", "endures")]
    steps += [("it is unloaded", "campaign_ends")]
    document["step"] = [{"name": name, "run": f"{shell}{command}"} for name, command in steps]
    return tomlkit.dumps(document)
