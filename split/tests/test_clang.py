from __future__ import annotations

from pathlib import Path

import pytest

from ring3_split import clang as clang_
from ring3_split.clang import Clang
from ring3_split.errors import Refusal
from small_tree import put


def program(tmp_path: Path, says: str) -> str:
    """A program that calls itself some clang."""
    file = tmp_path / "a-clang"
    put(file, f"#!/bin/sh\necho '{says}'\n")
    file.chmod(0o755)
    return str(file)


def test_the_one_of_the_cache_is_taken(clang: Path, cache: Path) -> None:
    assert clang_.find(None, cache).program == clang


def test_without_any_clang_the_command_that_fetches_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refusal, match=r"clang is missing: lab/setup\.sh clang"):
        clang_.find(None, tmp_path)


def test_one_that_was_named_and_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="--clang /no/clang: no such program"):
        clang_.find("/no/clang", tmp_path)


def test_an_old_one_is_refused_with_its_version(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"is clang 14\.0\.6; 17 or later is needed"):
        clang_.find(program(tmp_path, "Debian clang version 14.0.6"), tmp_path)


def test_a_newer_one_is_tried_with_a_note(tmp_path: Path) -> None:
    found = clang_.find(program(tmp_path, "clang version 31.0.0git"), tmp_path)
    assert "31.0.0 is newer than" in found.note


def test_a_program_that_is_another_is_refused_with_what_it_says(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"is not clang \(it says: gcc 12"):
        clang_.find(program(tmp_path, "gcc 12"), tmp_path)


def test_a_unit_gives_ir_with_type_hashes(clang: Path, tmp_path: Path) -> None:
    put(tmp_path / "a.c", "int f(int n) { return n; }\nint (*taken)(int) = f;\n")
    assert Clang(clang, "19").compile("a.c", tmp_path / "a.ll", (), tmp_path) == ""
    assert "!kcfi_type" in (tmp_path / "a.ll").read_text()


def test_the_first_error_comes_with_its_place(clang: Path, tmp_path: Path) -> None:
    put(tmp_path / "a.c", "int f(void)\n{ return nothing; }\nint g(void) { return nothing; }\n")
    assert (
        Clang(clang, "19")
        .compile("a.c", tmp_path / "a.ll", ("-w",), tmp_path)
        .startswith("a.c:2:10: error:")
    )


def test_a_compiler_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "slow", "#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "slow").chmod(0o755)
    monkeypatch.setattr(clang_, "TIME_LIMIT", 0.2)
    assert "took more than" in Clang(tmp_path / "slow", "19").compile(
        "a.c", tmp_path / "a.ll", (), tmp_path
    )
