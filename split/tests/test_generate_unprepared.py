"""What the generator makes of drivers that nobody prepared: one file, named as the module is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ring3_split.generate.units import Unit
from ring3_split.kernel import Kernel

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize(("driver", "stem"), [("8139cp", "8139cp_main"), ("snd-ens1370", "ens1370")])
def test_no_object_of_a_half_has_the_name_of_its_module(kernel: Kernel, driver: str, stem: str) -> None:
    module = kernel.module(driver)
    assert [
        Unit(kernel, module, source).stem for source in module.sources if Path(source).stem == stem.removesuffix("_main")
    ] == [stem]
