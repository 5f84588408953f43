"""The kernel's formats, as a user half prints them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ring3_split.generate.build import RUN_TIME
from ring3_split.generate.halves import RUNTIME

PROGRAM = r"""
#include <stdarg.h>
#include <stdio.h>
#include "split.h"
static const unsigned char address[] = { 0x52, 0x54, 0x00, 0x12, 0x34, 0xff };
static void say(const char *format, ...)
{
	char text[64];
	va_list list;

	va_start(list, format);
	printf("%d ", split_format(text, sizeof(text), format, list));
	va_end(list);
	puts(text);
}
int main(void)
{
	say(FORMAT ARGUMENTS);
	return 0;
}
"""


@pytest.fixture
def said(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    form, arguments = request.param
    source = tmp_path / "say.c"
    source.write_text(
        PROGRAM.replace("FORMAT", f'"{form}"').replace(
            "ARGUMENTS", "".join(f", {one}" for one in arguments)
        )
    )
    program = tmp_path / "say"
    flags = [
        *RUN_TIME,
        "-Wno-format",
        "-Wno-unused",
        "-static",
        "-no-pie",
        f"-I{RUNTIME / 'user'}",
        "-o",
        str(program),
    ]
    subprocess.run(["gcc", *flags, str(source), str(RUNTIME / "user/format.c")], check=True)
    return (
        subprocess.run([program], capture_output=True, text=True, check=True)
        .stdout.rstrip("\n")
        .partition(" ")[2]
    )


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (("%s:%d %pM!", ['"eth"', "3", "address"]), "eth:3 52:54:00:12:34:ff!"),
        (("%pm", ["address"]), "5254001234ff"),
        (("%*ph", ["3", "address"]), "52 54 00"),
        (("%4phC", ["address"]), "52:54:00:12"),
    ],
    indirect=["said"],
)
def test_bytes_at_a_pointer_are_printed_as_the_kernel_prints_them(said: str, wanted: str) -> None:
    assert said == wanted


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (
            ("%5d|%-4u|%04x|%lx|%llu", ["-7", "9", "255", "0x123456789aL", "1ULL << 40"]),
            "   -7|9   |00ff|123456789a|1099511627776",
        ),
        (("100%% %c %.*s %zu", ["'x'", "2", '"abc"', "sizeof(address)"]), "100% x ab 6"),
    ],
    indirect=["said"],
)
def test_all_else_is_printed_as_the_c_library_prints_it(said: str, wanted: str) -> None:
    assert said == wanted


@pytest.mark.parametrize(
    "said", [("%s%s", ['"0123456789012345678901234567890123456789"'] * 2)], indirect=True
)
def test_a_text_that_is_too_long_is_cut(said: str) -> None:
    assert said == ("0123456789" * 8)[:63]
