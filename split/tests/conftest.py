"""What the tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


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
