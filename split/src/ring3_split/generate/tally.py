"""What the guests of a campaign say, counted."""

from __future__ import annotations

from collections import Counter
from typing import Literal, TypeVar

import msgspec

from ring3_split.errors import Refusal
from ring3_split.generate.measured import Spread, spread
from ring3_split.profile import lab

KINDS = (
    "null",
    "jump",
    "illegal",
    "flip",
    "write",
    "loop",
    "stop",
    "kill",
    "call",
)  # as guest/inject.c has them
Read = TypeVar("Read", bound=msgspec.Struct)


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


class Endured(msgspec.Struct, frozen=True):
    """TCP both ways at once, while the user half was killed again and again."""

    seconds: float  # by the guest's clock, as the rates are
    sent_mbit_s: float
    received_mbit_s: float
    deaths: int


class Guest(msgspec.Struct):
    """What one guest has shown."""

    number: int
    faults: list[Fault] = []
    told: Told = Told()
    endured: Endured | None = None
    atomic: int = 0  # upcalls from where nothing may sleep, which were refused
    complaints: list[str] = []  # of the kernel
    failed: str = ""  # why it did not come to its end
    # a guest's own clock may run at another speed than the host's, if that is busy when it boots
    host_seconds: float = 0.0


class Kept(msgspec.Struct):
    """The file of `--resume`."""

    driver: str
    kernel: str
    kernel_arguments: tuple[str, ...]
    layout: str
    entries: tuple[str, ...]
    seed: int
    faults: int
    messages: int
    minutes: float
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

    driver: str  # its module
    kernel: str  # that the guests ran
    kernel_arguments: tuple[str, ...]  # of these guests
    seed: int  # of faults and messages
    guests: int  # how many there were
    host_seconds: float  # all of them took
    faults: int  # that the guests have reported
    rows: list[Row]  # by the kind of the fault
    entries: dict[str, int]  # entry -> faults while it ran
    told: Told  # messages that no honest user half sends
    endured: Endured | None  # null without --minutes
    atomic: int  # upcalls from where nothing may sleep, which were refused
    complaints: list[str]  # of the kernels
    failed: list[str]  # guests that did not come to their end

    @property
    def well(self) -> bool:
        """Nothing was lost, and the kernel has not complained."""
        return not (
            self.complaints
            or self.failed
            or self.atomic
            or any(row.lost or row.reloaded for row in self.rows)
        )


def take(guest: Guest, line: str) -> bool:
    """Notes what a line of the guest says; whether it is a fault.

    Raises:
        Refusal: it begins as one, and is none.
    """
    words = line.split()
    if line.endswith(lab.AGAIN):
        _forget(guest)
    match words:
        case ["fault", *fields]:
            guest.faults.append(_read(Fault, fields, line))
            return True
        case [count, "messages,", taken, "calls", "taken"]:
            guest.told = msgspec.structs.replace(guest.told, lies=int(count), lies_taken=int(taken))
        case [count, "messages,", taken, "taken,", _, "attached"]:
            guest.told = msgspec.structs.replace(
                guest.told, ioctls=int(count), ioctls_taken=int(taken)
            )
        case ["endured", *fields]:
            guest.endured = _read(Endured, fields, line)
        case ["atomic", count]:
            guest.atomic = int(count)
        case ["complaint", *_]:
            guest.complaints.append(line.removeprefix("complaint "))
    return False


def _forget(guest: Guest) -> None:
    guest.faults, guest.told, guest.endured, guest.atomic, guest.complaints = (
        [],
        Told(),
        None,
        0,
        [],
    )


def _read(kind: type[Read], words: list[str], line: str) -> Read:
    try:
        return msgspec.convert(
            dict(zip(kind.__struct_fields__, words, strict=True)), kind, strict=False
        )
    except ValueError:
        raise Refusal(f"the guest says {line!r}, which is none of its reports") from None


def report(kept: Kept) -> Report:
    """Counts."""
    faults = [fault for guest in kept.guests for fault in guest.faults]
    told = [guest.told for guest in kept.guests]
    ran = Counter(
        kept.entries[fault.entry] for fault in faults if 0 <= fault.entry < len(kept.entries)
    )
    return Report(
        kept.driver,
        kept.kernel,
        kept.kernel_arguments,
        kept.seed,
        len(kept.guests),
        round(sum(guest.host_seconds for guest in kept.guests), 1),
        len(faults),
        [_row(kind, [fault for fault in faults if fault.kind == kind]) for kind in KINDS],
        dict(ran.most_common()),
        Told(*(sum(getattr(one, name) for one in told) for name in Told.__struct_fields__)),
        next((guest.endured for guest in kept.guests if guest.endured), None),
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
        f"{report.driver}, {report.kernel}: {report.faults:,} faults, {report.guests} guests in "
        f"{report.host_seconds:.0f} s, "
        f"seed {report.seed}",
        f"  {'':9}{''.join(f'{name:>11}' for name in columns)}{'back after ms':>24}",
    ]
    for row in report.rows if report.faults else []:
        numbers = (
            row.injected,
            row.upcall,
            row.effect,
            row.died,
            row.failed,
            row.back,
            row.reloaded,
            row.lost,
        )
        time = (
            f"{row.back_ms.median:.0f} ({row.back_ms.min:.0f}-{row.back_ms.max:.0f})"
            if row.back_ms
            else ""
        )
        lines.append(f"  {row.kind:9}{''.join(f'{number:11}' for number in numbers)}{time:>24}")
    lines += [
        f"  messages   {report.told.lies:,} of a user half that lies ({report.told.lies_taken:,} "
        "calls taken), "
        f"{report.told.ioctls:,} of strangers at the device ({report.told.ioctls_taken:,} taken)",
        *_endured(report.endured),
        f"  entries    {len(report.entries)}: "
        f"{', '.join(f'{name} {count}' for name, count in report.entries.items())}",
        f"  the kernel {len(report.complaints)} complaints, {report.atomic} upcalls from where "
        "nothing may sleep",
        *(f"    {line}" for line in report.complaints[:20]),
        *(f"  {line}" for line in report.failed),
    ]
    return "\n".join(lines)


def _endured(found: Endured | None) -> list[str]:
    if not found:
        return []
    return [
        f"  TCP        {found.seconds:.0f} s by the guest's clock both ways at once, "
        f"{found.sent_mbit_s:.1f} Mbit/s sent and "
        f"{found.received_mbit_s:.1f} received, while the user half died {found.deaths} times"
    ]
