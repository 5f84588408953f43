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


@pytest.fixture
def behind(question: Question) -> Question:
    """A question about what the unit declares."""
    clang = question.command[0]
    return replace(
        question,
        command=(clang, "-x", "c", "-fsyntax-only", "-Xclang", "-ast-dump", "-"),
        text='#include "a.c"\nenum { LENGTH = sizeof(a) };\n',
        unit=(clang, "-x", "c-header", "a.c"),
    )


def length(question: Question) -> str:
    tree = question.answer(str, str)
    return tree.partition(" LENGTH ")[2].partition("value: Int ")[2].partition("\n")[0]


def test_of_a_unit_that_was_parsed_the_same_is_said(behind: Question) -> None:
    assert length(behind) == length(replace(behind, unit=(), key="other")) == "12"


def test_a_unit_is_parsed_once_for_all_questions(behind: Question, tmp_path: Path) -> None:
    count = tmp_path / "count"
    program = tmp_path / "counting"
    program.write_text(f'#!/bin/sh\necho >>{count}\nexec {behind.command[0]} "$@"\n')
    program.chmod(0o755)
    counted = replace(behind, unit=(str(program), *behind.unit[1:]))
    for more in ("1", "2", "3"):
        length(replace(counted, text=f"{counted.text}enum {{ MORE = {more} }};\n"))
    assert count.read_text() == "\n"


def test_a_header_that_changes_behind_a_parsed_unit_is_read_again(behind: Question) -> None:
    assert length(behind) == "12"
    (behind.root / "a header.h").write_text("#define SIZE 44\n")
    os.utime(behind.root / "a header.h", ns=(1, 1))
    assert length(behind) == "176"


def test_what_is_wrong_in_a_question_is_refused_with_its_place(behind: Question) -> None:
    wrong = replace(behind, text='#include "a.c"\nenum { LENGTH = sizeof(b) };\n')
    with pytest.raises(Refusal, match=r"a\.c: <stdin>:1:\d+: error: use of undeclared"):
        length(wrong)
