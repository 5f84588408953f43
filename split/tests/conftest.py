"""What the tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ring3_split import driver, source_options
from ring3_split.distribution import open_kernel
from ring3_split.driver import Driver
from ring3_split.kernel import Kernel


@pytest.fixture(scope="session")
def cache() -> Path:
    """The cache folder that lab/setup.sh fills."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("RING3_CACHE") or f"{home}/ring3")


@pytest.fixture(scope="session")
def clang(cache: Path) -> Path:
    """The clang that lab/setup.sh fetched."""
    program = cache / "clang/bin/clang"
    if not program.exists():
        pytest.fail("clang is missing: run lab/setup.sh split")
    return program


@pytest.fixture(scope="session")
def kernel(cache: Path) -> Kernel:
    """The distribution's kernel, or the one that RING3_SPLIT_KERNEL names: "debug"."""
    return open_kernel(named_kernel(), cache)


def named_kernel() -> str:
    """Under which name the lab knows it."""
    return os.environ.get("RING3_SPLIT_KERNEL") or source_options.DEFAULT_KERNEL


@pytest.fixture(scope="session")
def e1000(kernel: Kernel) -> Driver:
    """Its e1000, with data facts."""
    return driver.load(kernel, "e1000", data=True)
