"""Which module of a family exports a symbol.

The sources are read once, and again when one of them has changed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ring3_split import tree
from ring3_split.driver import exporters
from ring3_split.kernel import Kernel
from small_tree import plant, put


@pytest.fixture
def kernel(clang: Path, tmp_path: Path) -> Kernel:
    return tree.open_kernel(plant(tmp_path / "linux"), None, None, tmp_path / "cache", str(clang))


def export(kernel: Kernel, symbol: str, time: int) -> dict[str, str]:
    file = kernel.root / "drivers/net/card_hw.c"
    put(file, f"int {symbol}(void);\nEXPORT_SYMBOL_GPL({symbol});\n")
    os.utime(file, (time, time))
    return exporters(kernel, kernel.modules())


def test_a_symbol_has_the_module_whose_source_exports_it(kernel: Kernel) -> None:
    assert export(kernel, "first", 1000) == {"first": "card"}


def test_sources_that_have_not_changed_are_not_read_again(kernel: Kernel) -> None:
    assert export(kernel, "first", 1000) == export(kernel, "third", 1000)


def test_a_source_that_has_changed_is_read_again(kernel: Kernel) -> None:
    export(kernel, "first", 1000)
    assert export(kernel, "third", 2000) == {"third": "card"}
