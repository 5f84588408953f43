"""Devices of the tests, and the environment's options."""

import os
from collections.abc import Iterator

import pytest

import ring3


def devices() -> list[str]:
    """The NVMe controllers to test on: a model, QEMU's, and one behind VFIO if it is named."""
    found = ["sim:nvme", "qtest:nvme"]
    if device := os.environ.get("RING3_VFIO_DISK"):
        found.append(device)
    return found


@pytest.fixture(params=devices())
def any_disk(request: pytest.FixtureRequest) -> Iterator[ring3.Disk]:
    with ring3.Disk(request.param) as disk:
        yield disk


@pytest.fixture
def disk() -> Iterator[ring3.Disk]:
    with ring3.Disk("sim:nvme") as disk:
        yield disk
