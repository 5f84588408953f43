"""Which device a driver is run with in the guest, and what it is made to do.

`devices.toml`, `workloads.toml`.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import msgspec

from ring3_split.errors import Refusal

HERE = Path(__file__).parent


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device of QEMU's for a driver."""

    model: str
    kind: str
    options: dict[str, Any] = {}
    parts: tuple[str, ...] = ()
    disk: str = ""
    revision: int | None = None
    window: int = 0


class Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a kind of device is made to do."""

    programs: tuple[str, ...]
    modules: tuple[str, ...]
    workloads: dict[str, tuple[str, ...]]


def devices() -> dict[str, Device]:
    """All drivers that can be run, by the names of their modules."""
    return msgspec.toml.decode((HERE / "devices.toml").read_bytes(), type=dict[str, Device])


def kinds() -> dict[str, Kind]:
    """All kinds of devices."""
    return msgspec.toml.decode((HERE / "workloads.toml").read_bytes(), type=dict[str, Kind])


def device(driver: str) -> Device:
    """The device for a driver.

    Raises:
        Refusal: none is known.
    """
    known = {name.replace("_", "-"): found for name, found in devices().items()}
    found = known.get(driver.replace("_", "-"))
    if found is None:
        near = difflib.get_close_matches(driver, known, n=1, cutoff=0.8)
        hint = f"did you mean {near[0]}? " if near else ""
        raise Refusal(
            f"no device of QEMU's is known for {driver}; {hint}there are devices for "
            f"{', '.join(sorted(known))}"
        )
    return found


def steps(kind: str, workload: str) -> tuple[str, ...]:
    """The steps of a workload.

    Raises:
        Refusal: the kind has no such workload.
    """
    workloads = kinds()[kind].workloads
    if workload not in workloads:
        raise Refusal(
            f"there is no workload {workload} for a {kind} driver; there are {', '.join(workloads)}"
        )
    return workloads[workload]
