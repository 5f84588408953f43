"""What is kept of a build."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ring3_split.generate import build
from ring3_split.kernel import Kernel


@pytest.mark.kernel
def test_what_was_made_of_the_same_parts_is_copied_and_of_others_is_made(
    kernel: Kernel, tmp_path: Path
) -> None:
    file, made = tmp_path / "half.o", [0]

    def make() -> None:
        made.append(len(made))
        file.write_text(str(made[-1]))

    empty = replace(kernel, folder=tmp_path / "cache")
    for part, number in (("one", 1), ("another", 2), ("one", 1)):
        assert build.kept(empty, file, ["flags", part], make).read_text() == str(number)
    other = replace(empty, key="of another state")
    assert build.kept(other, file, ["flags", "one"], make).read_text() == "3"
