"""The scenario for the lab.

A guest with the driver's device, in which the driver is loaded under the tracer and put to work.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from ring3_split.profile.devices import HERE, Device, kinds, steps

GUEST = HERE / "guest"
CHECKS_MEMORY = "1G"  # the checks' own records take 200 MB of the usual 512
CHECKS_BOOT = 600  # seconds, of a kernel with its checks on beside other work
CHECKS_SLOWER = 6  # times the usual kernel, at most
SETUP = 60.0  # seconds of a run beside its workload, on a busy host
DISK = ["-blockdev", "null-co,node-name=disk,size=1073741824,read-zeroes=on", "-device"]


@dataclass(frozen=True)
class Run:
    """One run."""

    driver: str
    device: Device
    workload: str
    seconds: float  # of each kind of transfer
    kernel: str  # as the lab names it
    modules: tuple[Path, ...]  # the driver's own files, in the order in which they are loaded
    needs: tuple[str, ...]  # modules of the kernel that they depend on
    programs: tuple[Path, ...]
    revision: Path | None = None  # the module that changes the revision of a device
    checks: bool = False  # the kernel has its checks on: it is slow and needs memory

    @property
    def slowness(self) -> int:
        """How many times the usual time everything may take."""
        return CHECKS_SLOWER if self.checks else 1


def steps_of(run: Run) -> list[tuple[str, str]]:
    """(what it is, shell) of every step."""
    work = [(name, name) for name in steps(run.device.kind, run.workload)]
    before = [
        ("tracing begins", f"{prepare(run)} && trace_begin"),
        (f"{run.driver} is loaded", "load"),
    ]
    return [*before, *work, (f"{run.driver} is unloaded", "unload && trace_end")]


def prepare(run: Run) -> str:
    """What goes before the driver: its device is shown with the revision that it wants."""
    revision = (
        f"insmod /lib/ring3/revision.ko device=$CARD revision={run.device.revision} && "
        if run.revision
        else ""
    )
    return f"{revision}prepare"


def text(run: Run) -> str:
    """The scenario's file."""
    kind = kinds()[run.device.kind]
    shell = "".join(f". /lib/ring3/{name}; " for name in ("trace.sh", f"{run.device.kind}.sh"))
    steps = steps_of(run)
    scenario: dict[str, Any] = {
        "about": f"{run.driver} under the function tracer, workload {run.workload}",
        "kernel": run.kernel,
        "iommu": "none",
        "time_limit": int(SETUP + len(steps) * (15 + 4 * run.seconds)),
        "modules": [*run.needs, *kind.modules],
        "programs": [str(program) for program in run.programs],
        "files": {f"/lib/ring3/{file.name}": str(file) for file in [*run.modules, *_scripts(run)]},
        "variables": {
            "MODULES": " ".join(file.stem for file in run.modules),
            "SECONDS_EACH": f"{run.seconds:g}",
            "MILLISECONDS_EACH": f"{run.seconds * 1000:.0f}",
            "WINDOW": str(run.device.window),
        },
        "device": _devices(run),
        "step": [{"name": name, "run": f"{shell}{command}"} for name, command in steps],
    }
    if run.checks:
        scenario["memory"] = CHECKS_MEMORY
    if run.device.kind == "network":
        scenario["modules"].append(_peer(run)[1])
    if run.device.disk:
        # In JSON: QEMU makes the devices of the other form first, and the controller is one in
        # JSON.
        disk = {"driver": run.device.disk, "bus": "card.0", "drive": "disk"}
        scenario["qemu_arguments"] = [*DISK, json.dumps(disk)]
    return tomlkit.dumps(scenario)


def _scripts(run: Run) -> Sequence[Path]:
    own = [run.revision] if run.revision else []
    return [GUEST / "trace.sh", GUEST / f"{run.device.kind}.sh", *own]


def _devices(run: Run) -> list[dict[str, Any]]:
    card: dict[str, Any] = {"id": "card", "model": run.device.model}
    if run.device.options:
        card["options"] = run.device.options
    if run.device.kind == "network":
        return [card | {"netdev": "hub"}, {"id": "peer", "model": _peer(run)[0], "netdev": "hub"}]
    if run.device.kind == "sound":
        return [card | {"audio": "none"}]
    return [card if run.device.disk else card | {"size": "1G"}]


def _peer(run: Run) -> tuple[str, str]:
    """Model and module of the card at the other end of the wire.

    Another one, so that its calls are not counted.

    Short frames are not padded on QEMU's wire, and some cards take them for damaged: e1000's driver
    pads them itself. QEMU's virtio-net would wait for a receiver that is full, and some models
    forget to say when they are not any more.
    """
    return ("e1000e", "e1000e") if run.device.model == "e1000" else ("e1000", "e1000")
