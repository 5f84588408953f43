"""What clang said is taken from the cache as long as nothing that it read has changed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ring3_split.errors import Refusal
from ring3_split.generate.answers import Question

HEADER = "#define SIZE 3\n"
SOURCE = '#include "a header.h"\nint a[SIZE];\n'


@pytest.fixture
def question(clang: Path, tmp_path: Path) -> Question:
    root = tmp_path / "source"
    root.mkdir()
    (root / "a header.h").write_text(HEADER)
    (root / "a.c").write_text(SOURCE)
    for file in root.iterdir():
        os.utime(file, ns=(2, 2))
    return Question(
        tmp_path / "cache", root, "key", "a.c", (0, 0), "1", (str(clang), "-E", "-P", "a.c"), ""
    )


def asked(question: Question) -> tuple[str, int]:
    """The answer, and how often clang was asked for it."""
    times = 0

    def read(text: str) -> str:
        nonlocal times
        times += 1
        return text.strip()

    return question.answer(str, read), times


def test_the_same_question_is_asked_once(question: Question) -> None:
    assert [asked(question) for _ in range(2)] == [("int a[3];", 1), ("int a[3];", 0)]


def test_a_header_that_has_changed_is_read_again(question: Question) -> None:
    asked(question)
    (question.root / "a header.h").write_text("#define SIZE 4\n")
    os.utime(question.root / "a header.h", ns=(1, 1))
    assert asked(question) == ("int a[4];", 1)


def test_a_header_that_has_gone_is_missed(question: Question) -> None:
    asked(question)
    (question.root / "a header.h").unlink()
    with pytest.raises(Refusal, match=r"a\.c: .*file not found"):
        asked(question)


def test_an_answer_that_is_not_whole_is_asked_for_again(question: Question) -> None:
    asked(question)
    for file in question.folder.glob("answers-*/*"):
        file.write_bytes(file.read_bytes()[:-4])
    assert asked(question) == ("int a[3];", 1)


def test_what_changes_while_clang_reads_is_not_kept(question: Question) -> None:
    os.utime(question.root / "a header.h")
    assert [asked(question) for _ in range(2)] == [("int a[3];", 1), ("int a[3];", 1)]


def test_a_compiler_that_has_changed_is_asked_again(question: Question, tmp_path: Path) -> None:
    compiler = tmp_path / "clang"
    compiler.write_text(f'#!/bin/sh\nexec {question.command[0]} "$@"\n')
    compiler.chmod(0o755)
    other = replace(question, command=(str(compiler), *question.command[1:]))
    asked(other)
    os.utime(compiler, ns=(1, 1))
    assert asked(other) == ("int a[3];", 1)


def test_a_compiler_that_is_not_there_is_refused(question: Question) -> None:
    with pytest.raises(Refusal, match=r"a\.c: .*No such file"):
        asked(replace(question, command=("/nowhere/clang", *question.command[1:])))
