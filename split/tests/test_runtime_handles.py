"""The numbers by which objects are known."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ring3_split.generate.halves import RUNTIME

PROGRAM = r"""
#include <stdio.h>
#include "tables.h"
int main(void)
{
	unsigned long wrong = 0;

	for (unsigned long id = 1; id < 300000; id++) {
		unsigned long first = SPLIT_HANDLE(SPLIT_FRAME(id), 0, 0);

		wrong += !first || SPLIT_GENERATION(first) == SPLIT_SYMBOLS || first >> 60 ||
			SPLIT_FRAME(id) == SPLIT_FRAME(id + 1);
	}
	printf("%lu\n", wrong);
	return 0;
}
"""


def test_the_first_object_of_no_upcall_is_null_and_none_has_a_name_of_a_symbol(
    tmp_path: Path,
) -> None:
    (tmp_path / "handles.c").write_text(PROGRAM)
    command = [
        "gcc",
        "-Wall",
        "-Werror",
        f"-I{RUNTIME}",
        "-o",
        str(tmp_path / "handles"),
        str(tmp_path / "handles.c"),
    ]
    subprocess.run(command, check=True)
    assert (
        subprocess.run([tmp_path / "handles"], check=True, capture_output=True, text=True).stdout
        == "0\n"
    )


def test_the_kernel_half_and_who_lies_make_the_number_of_an_upcall_by_one_rule() -> None:
    liars = RUNTIME.parent / "src/ring3_split/generate/guest"
    for source in (*(RUNTIME / "kernel").glob("*.c"), *liars.glob("*.c")):
        assert "% SPLIT_SYMBOLS" not in source.read_text(), source.name
        assert "% 0xffff)" not in source.read_text(), source.name
