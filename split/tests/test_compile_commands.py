from __future__ import annotations

import json
from pathlib import Path

import pytest

from ring3_split import compile_commands
from ring3_split.errors import Refusal
from small_tree import error, plant, put


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    return plant(tmp_path / "linux")


def commands(planted: Path, file: Path, *sources: str) -> Path:
    flags = (
        "-nostdinc -I./arch/x86/include -I./include -include ./include/linux/kconfig.h "
        "-D__KERNEL__ -std=gnu11 -O2 -Wall"
    )
    own = {
        "drivers/net/card_main.c": "-I drivers/net/common",
        "drivers/net/card_hw.c": "-I drivers/net/common -DHARDWARE=7",
    }
    entries = [
        {
            "directory": str(planted),
            "file": source,
            "command": f"gcc {flags} {own.get(source, '')} -DKBUILD_MODNAME='\"x\"' -c -o x.o "
            f"{source}",
        }
        for source in sources
    ]
    put(file, json.dumps(entries))
    return file


CARD = ("drivers/net/card_main.c", "drivers/net/card_hw.c")


def test_flags_are_those_of_the_build(planted: Path, clang: Path, tmp_path: Path) -> None:
    kernel = compile_commands.open_kernel(
        commands(planted, tmp_path / "c.json", *CARD), tmp_path / "cache", str(clang)
    )
    card = kernel.module("card")
    assert card.sources == CARD
    assert kernel.own_flags(card, CARD[1]) == ("-DHARDWARE=7",)
    assert [error(kernel, "card", s, tmp_path) for s in CARD] == ["", ""]


def test_units_that_the_build_left_out_are_said(planted: Path, clang: Path, tmp_path: Path) -> None:
    kernel = compile_commands.open_kernel(
        commands(planted, tmp_path / "c.json", *CARD), tmp_path / "cache", str(clang)
    )
    assert kernel.module("card").skipped["drivers/net/card_wol.c"] == "not in compile_commands.json"


def test_modules_are_those_of_the_mod_files_where_there_are_any(
    planted: Path, clang: Path, tmp_path: Path
) -> None:
    put(planted / "drivers/net/built.mod", "drivers/net/card_main.o\ndrivers/net/card_hw.o\n\n")
    kernel = compile_commands.open_kernel(
        commands(planted, tmp_path / "c.json", *CARD), tmp_path / "cache", str(clang)
    )
    assert [(m.name, m.sources) for m in kernel.modules()] == [("built", CARD)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("{", "is not a compile_commands.json"),
        ("[]", "has no entry"),
        ('[{"directory": "/nowhere", "file": "drivers/a.c"}]', "no kernel's source is there"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    clang: Path, tmp_path: Path, text: str | None, says: str
) -> None:
    if text is not None:
        put(tmp_path / "c.json", text)
    with pytest.raises(Refusal, match=says):
        compile_commands.open_kernel(tmp_path / "c.json", tmp_path / "cache", str(clang))


def test_a_build_folder_without_its_configuration_is_refused(
    planted: Path, clang: Path, tmp_path: Path
) -> None:
    (planted / ".config").unlink()
    with pytest.raises(
        Refusal,
        match=r"\.config: No such file or directory; a kernel's configuration is to be there",
    ):
        compile_commands.open_kernel(
            commands(planted, tmp_path / "c.json", *CARD), tmp_path / "cache", str(clang)
        )
