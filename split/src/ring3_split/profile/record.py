"""A profile: what is stored of a driver's run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ring3_split import files
from ring3_split.errors import Refusal
from ring3_split.model import Fact

VERSION = 1


class Pair(Fact, frozen=True):
    """A caller and a callee. Both are function ids; the kernel as a caller is ""."""

    caller: str
    callee: str
    count: int  # calls
    # how many of them where sleeping is forbidden: interrupts or preemption off, or in an interrupt
    atomic: int = 0


class Profile(Fact, frozen=True):
    """The calls of one run of a driver under one workload."""

    version: int  # of this form
    kernel: str  # release: "6.12.117+deb12-amd64"
    driver: str  # its module
    device: str  # QEMU's model of the device
    workload: str  # what it was made to do
    seconds: float  # from the begin of tracing to its end, on the guest's clock
    stock: bool  # the distribution's own binary, in which many functions are inlined
    events: int  # calls recorded, those of `pairs` and others
    lost: int  # calls that the kernel's buffers had no room for
    pairs: tuple[Pair, ...]  # who called whom, and how often
    missing: tuple[
        Pair, ...
    ] = ()  # pairs that the static graph does not have, at precision "signature"
    missing_field: tuple[Pair, ...] = ()  # and at precision "field"
    invisible: tuple[str, ...] = ()  # functions of the driver that the tracer cannot see
    unknown: dict[str, int] = msgspec.field(
        default_factory=dict
    )  # symbols without facts -> calls that they made or took

    def calls(self) -> dict[tuple[str, str], int]:
        """Calls by caller and callee."""
        return {(pair.caller, pair.callee): pair.count for pair in self.pairs}

    def write(self, file: Path) -> None:
        """Stores it as JSON."""
        files.write(file, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def load(file: Path) -> Profile:
    """Reads a stored profile.

    Raises:
        Refusal: it is not there, or is no profile of this version.
    """
    try:
        profile = msgspec.json.decode(file.read_bytes(), type=Profile)
    except OSError as error:
        raise Refusal(f"the profile {file} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise Refusal(
            f"{file} is no profile ({error}): make one with the command profile"
        ) from None
    if profile.version != VERSION:
        raise Refusal(
            f"{file} is a profile of version {profile.version}, and {VERSION} is read: make it "
            "anew with the command profile"
        )
    return profile


def place(folder: Path, driver: str, workload: str, *, stock: bool = False) -> Path:
    """Where a kernel's cache folder keeps the profile of a driver."""
    return (
        folder
        / "profiles"
        / f"{driver.replace('_', '-')}-{workload}{'-stock' if stock else ''}.json"
    )
