"""Faults into a user half that works, and messages to the kernel that none would send: `ring3 split campaign`."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import tomlkit

from ring3_split import files
from ring3_split.errors import Refusal
from ring3_split.generate import bench
from ring3_split.generate import run as running
from ring3_split.generate.bench import Spread, spread
from ring3_split.generate.build import Built
from ring3_split.generate.run import GUEST
from ring3_split.kernel import Kernel
from ring3_split.profile import lab
from ring3_split.profile.scenario import Run
from ring3_split.progress import Progress

# What guest/inject.c puts into a user half, and what it is asked for meanwhile: `act` of guest/campaign.sh.
KINDS = ("null", "jump", "illegal", "flip", "write", "loop", "stop", "kill", "call")
# Each with its share: what takes long is done seldom.
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
# The debugging that the distribution's kernel has: poisoned slabs with red zones, and guard pages around some allocations, show
# the use of freed memory and writing beyond an end; and any place of the kernel can lose the processor.
KERNEL_ARGUMENTS = ("slub_debug=FZPU", "kfence.sample_interval=20", "preempt=full")
STRANGERS = 10  # they are told off at once, mostly
QUICK = {"faults": len(KINDS), "messages": 1000}


@dataclass(frozen=True)
class Request(running.Request):
    """What is asked for."""

    faults: int = 1000
    messages: int = 100_000  # of a user half that lies, and STRANGERS times as many of strangers at the device
    seed: int = 1
    resume: Path | None = None  # keeps what guests have shown
    entries: tuple[str, ...] = ()  # of the user half, by their number in the tables


class Fault(msgspec.Struct, frozen=True):
    """One, and what came of it."""

    number: int
    kind: str
    work: str  # what the user half was asked for
    place: str  # code, call or idle
    entry: int  # that it ran; -1: none, or one that had begun before it was traced
    died: int
    failed: int  # upcalls that ended with their entry's error
    refused: int  # values and calls, of those that the kernel's log has
    state: Literal["back", "reloaded", "lost"]  # reloaded: only the module loaded anew made it work
    back_ms: float  # from its death until the card and the new user half work


class Told(msgspec.Struct, frozen=True):
    """Messages of one guest, and how many of them the kernel took."""

    lies: int = 0
    lies_taken: int = 0
    ioctls: int = 0
    ioctls_taken: int = 0


class Guest(msgspec.Struct):
    """What one guest has shown."""

    number: int
    faults: list[Fault] = []
    told: Told = Told()
    atomic: int = 0  # upcalls from where nothing may sleep, which were refused
    complaints: list[str] = []  # of the kernel
    failed: str = ""  # why it did not come to its end


class Kept(msgspec.Struct):
    """The file of `--resume`."""

    driver: str
    kernel: str
    layout: str
    entries: tuple[str, ...]
    seed: int
    faults: int
    messages: int
    guests: list[Guest]


class Row(msgspec.Struct, frozen=True):
    """All faults of one kind."""

    kind: str
    injected: int
    upcall: int  # of these, while an upcall ran
    effect: int  # it died, an upcall failed, or something was refused
    died: int
    failed: int  # faults after which an upcall ended with its entry's error
    back: int  # by the next user half alone
    reloaded: int
    lost: int
    back_ms: Spread | None  # of those that are back


class Report(msgspec.Struct, frozen=True):
    """All of it."""

    driver: str
    kernel: str
    kernel_arguments: tuple[str, ...]
    seed: int
    guests: int
    faults: int
    rows: list[Row]
    entries: dict[str, int]  # entry -> faults while it ran
    told: Told
    atomic: int
    complaints: list[str]
    failed: list[str]  # guests that did not come to their end

    @property
    def well(self) -> bool:
        """Nothing was lost, and the kernel has not complained."""
        return not (self.complaints or self.failed or self.atomic or any(row.lost or row.reloaded for row in self.rows))


class Share(NamedTuple):
    """What one guest is to do."""

    number: int
    faults: list[tuple[int, str, str, int]]  # number, kind, work, seed
    messages: int
    seed: int


def shares(request: Request) -> Iterator[Share]:
    """The campaign, cut into guests. The same seed gives the same ones."""
    chosen = random.Random(request.seed)  # noqa: S311
    listed = [
        (number, KINDS[number % len(KINDS)], chosen.choices(list(WORK), list(WORK.values()))[0], chosen.randrange(1 << 31))
        for number in range(request.faults)
    ]
    count = max(1, -(-request.faults // FAULTS_A_GUEST))
    for number in range(count):
        part = listed[number * FAULTS_A_GUEST : (number + 1) * FAULTS_A_GUEST]
        messages = request.messages * (number + 1) // count - request.messages * number // count
        yield Share(number, part, messages, chosen.randrange(1 << 31))


def campaign(kernel: Kernel, driver: str, built: Built, request: Request, show: Callable[[str, bool], None]) -> Report:
    """Runs it, one guest after the other; one that fails is counted, and the next one begins.

    Raises:
        Refusal: no load is known for the driver, or the file of `--resume` is of another campaign.
    """
    bench.check(driver)
    size = (request.seed, request.faults, request.messages)
    kept = _begin(Kept(driver, kernel.name, built.layout, request.entries, *size, []), request.resume)
    done = {guest.number for guest in kept.guests}
    left = [share for share in shares(request) if share.number not in done]
    one = running.guest_run(kernel, driver, built, request.seconds)
    with Progress(f"faults into {driver}", sum(len(share.faults) for share in left), "faults") as bar:

        def hear(guest: Guest, line: str, step: bool) -> None:
            if take(guest, line):
                bar.advance(guest.faults[-1].kind)
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
        raise Refusal(f"{file}: is none of a campaign's: {error}; name another one with --resume") from None
    wanted.guests = kept.guests
    if kept != wanted:
        raise Refusal(f"{file}: is of another driver, kernel, build, seed or size of campaign: name another one with --resume")
    return kept


def _guest(run: Run, layout: str, share: Share, request: Request, hear: Callable[[Guest, str, bool], None]) -> Guest:
    found = Guest(share.number)
    log = request.log.with_suffix(f".{share.number}.log")
    with tempfile.TemporaryDirectory(prefix="ring3-split-") as name:
        folder = Path(name)
        (folder / "faults").write_text("".join(f"{' '.join(map(str, fault))}\n" for fault in share.faults))
        (folder / "scenario.toml").write_text(text(run, layout, share, folder / "faults"))
        try:
            lab.run(folder / "scenario.toml", request.cache, folder / "out", log, partial(hear, found))
        except Refusal as refusal:
            found.failed = str(refusal)
    if not found.failed and len(found.faults) != len(share.faults):
        found.failed = f"{len(found.faults)} of {len(share.faults)} faults were reported; all output is in {log}"
    return found


def text(run: Run, layout: str, share: Share, faults: Path) -> str:
    """The scenario's file: the one of a split driver's run with other steps."""
    document: dict[str, Any] = tomlkit.parse(running.text(run, "network", layout, share.messages)).unwrap()
    document["about"] = f"{run.driver} as a split driver, whose user half has faults"
    document["kernel_arguments"] = list(KERNEL_ARGUMENTS)
    document["files"] |= {"/lib/ring3/campaign.sh": str(GUEST / "campaign.sh"), "/lib/ring3/faults": str(faults)}
    document["variables"] |= {"SEED": str(share.seed), "STRANGERS": str(STRANGERS * share.messages)}
    document["time_limit"] = int(
        document["time_limit"] + len(share.faults) * SECONDS_A_FAULT + share.messages / running.LIES_A_SECOND
    )
    shell = "".join(f". /lib/ring3/{name}.sh; " for name in ("split", "network", "network-split", "campaign"))
    steps = [("the driver works by its user half", "campaign_begins"), ("faults", "faults")]
    if share.messages:
        steps += [("messages that no user half would send", "lying"), ("strangers at the device", "strangers")]
    steps += [("it is unloaded", "campaign_ends")]
    document["step"] = [{"name": name, "run": f"{shell}{command}"} for name, command in steps]
    return tomlkit.dumps(document)


def take(guest: Guest, line: str) -> bool:
    """Notes what a line of the guest says; whether it is a fault.

    Raises:
        Refusal: it begins as one, and is none.
    """
    words = line.split()
    match words:
        case ["fault", *fields]:
            try:
                values = dict(zip(Fault.__struct_fields__, fields, strict=True))
                guest.faults.append(msgspec.convert(values, Fault, strict=False))
            except ValueError:
                raise Refusal(f"the guest says {line!r}, which is no fault") from None
            return True
        case [count, "messages,", taken, "calls", "taken"]:
            guest.told = msgspec.structs.replace(guest.told, lies=int(count), lies_taken=int(taken))
        case [count, "messages,", taken, "taken,", _, "attached"]:
            guest.told = msgspec.structs.replace(guest.told, ioctls=int(count), ioctls_taken=int(taken))
        case ["atomic", count]:
            guest.atomic = int(count)
        case ["complaint", *_]:
            guest.complaints.append(line.removeprefix("complaint "))
    return False


def report(kept: Kept) -> Report:
    """Counts."""
    faults = [fault for guest in kept.guests for fault in guest.faults]
    told = [guest.told for guest in kept.guests]
    ran = Counter(kept.entries[fault.entry] for fault in faults if 0 <= fault.entry < len(kept.entries))
    return Report(
        kept.driver,
        kept.kernel,
        KERNEL_ARGUMENTS,
        kept.seed,
        len(kept.guests),
        len(faults),
        [_row(kind, [fault for fault in faults if fault.kind == kind]) for kind in KINDS],
        dict(ran.most_common()),
        Told(*(sum(getattr(one, name) for one in told) for name in Told.__struct_fields__)),
        sum(guest.atomic for guest in kept.guests),
        [line for guest in kept.guests for line in guest.complaints],
        [f"guest {guest.number}: {guest.failed}" for guest in kept.guests if guest.failed],
    )


def _row(kind: str, faults: list[Fault]) -> Row:
    injected = [fault for fault in faults if fault.place != "none"]
    back = [fault.back_ms for fault in injected if fault.state == "back"]
    return Row(
        kind,
        len(injected),
        sum(fault.place != "idle" for fault in injected),
        sum(bool(fault.died or fault.failed or fault.refused) for fault in injected),
        sum(fault.died for fault in injected),
        sum(bool(fault.failed) for fault in injected),
        len(back),
        sum(fault.state == "reloaded" for fault in injected),
        sum(fault.state == "lost" for fault in injected),
        spread(back) if back else None,
    )


def show(report: Report) -> str:
    """For people."""
    columns = ("injected", "in upcall", "effect", "died", "failed", "back", "reloaded", "lost")
    lines = [
        f"{report.driver}, {report.kernel}: {report.faults:,} faults in {report.guests} guests, seed {report.seed}",
        f"  {'':9}{''.join(f'{name:>11}' for name in columns)}{'back after ms':>24}",
    ]
    for row in report.rows:
        numbers = (row.injected, row.upcall, row.effect, row.died, row.failed, row.back, row.reloaded, row.lost)
        time = f"{row.back_ms.median:.0f} ({row.back_ms.min:.0f}-{row.back_ms.max:.0f})" if row.back_ms else ""
        lines.append(f"  {row.kind:9}{''.join(f'{number:11}' for number in numbers)}{time:>24}")
    lines += [
        f"  messages   {report.told.lies:,} of a user half that lies ({report.told.lies_taken:,} calls taken), "
        f"{report.told.ioctls:,} of strangers at the device ({report.told.ioctls_taken:,} taken)",
        f"  entries    {len(report.entries)}: {', '.join(f'{name} {count}' for name, count in report.entries.items())}",
        f"  the kernel {len(report.complaints)} complaints, {report.atomic} upcalls from where nothing may sleep",
        *(f"    {line}" for line in report.complaints[:20]),
        *(f"  {line}" for line in report.failed),
    ]
    return "\n".join(lines)
