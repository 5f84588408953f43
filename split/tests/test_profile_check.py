"""What was seen at run time is looked up in the static graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import conforms
from ring3_split import cli, driver, source_options
from ring3_split.driver import Driver
from ring3_split.errors import Refusal
from ring3_split.graph import Graph, link
from ring3_split.model import VERSION, Call, Function, Module, ModuleFacts, Stored, Unit
from ring3_split.profile import record
from ring3_split.profile.check import missing
from ring3_split.profile.record import Pair, Profile

FILE, HEADER = "d/a.c", "include/linux/h.h"


def graph() -> Graph:
    """entry calls near, and far through a header inline and through the driver's own function."""

    def function(name: str, *callees: str, file: str = FILE) -> Function:
        return Function(
            name, file, 1, 2, static=True, calls=tuple(Call(callee, 1) for callee in callees)
        )

    functions = (
        function("entry", "near", "inline", "folded"),
        function("near"),
        function("far"),
        function("deep"),
        function("folded", "deep"),
        function("inline", "far", file=HEADER),
    )
    unit = Unit(VERSION, FILE, functions, (Stored("entry", 1, field="net_device_ops.ndo_open"),))
    return link(Driver("a", (ModuleFacts(Module("a", "d", (FILE,)), (unit,)),)))


def pair(caller: str, callee: str) -> Pair:
    return Pair(caller and f"{FILE}:{caller}", f"{FILE}:{callee}", 1)


def test_a_call_that_the_source_has_is_there() -> None:
    assert missing(graph(), [pair("entry", "near")]) == ()


def test_a_call_that_the_source_does_not_have_is_missing() -> None:
    assert missing(graph(), [pair("near", "entry")]) == (pair("near", "entry"),)


def test_an_inline_of_a_header_is_passed_through() -> None:
    assert missing(graph(), [pair("entry", "far")]) == ()


def test_a_function_of_the_driver_is_passed_through_only_in_an_optimised_binary() -> None:
    assert missing(graph(), [pair("entry", "deep")]) == (pair("entry", "deep"),)
    assert missing(graph(), [pair("entry", "deep")], optimised=True) == ()


def test_a_jump_out_of_an_entry_looks_like_a_call_by_the_kernel() -> None:
    assert missing(graph(), [pair("", "deep")], optimised=True) == ()


def test_what_no_path_leads_to_is_missing_in_an_optimised_binary_too() -> None:
    assert missing(graph(), [pair("near", "deep")], optimised=True) == (pair("near", "deep"),)


def test_the_kernel_calls_entries_only() -> None:
    assert missing(graph(), [pair("", "entry"), pair("", "near")]) == (pair("", "near"),)


def test_the_kernel_calls_what_it_is_passed_at_once() -> None:
    compare = Function("compare", FILE, 1, 2, static=True)
    stored = Stored("compare", 1, api="sort", argument=3)
    order = Function("order", FILE, 3, 4, calls=(Call("sort", 1),), stored=(stored,))
    unit = Unit(VERSION, FILE, (compare, order))
    passing = link(Driver("a", (ModuleFacts(Module("a", "d", (FILE,)), (unit,)),)))
    assert f"{FILE}:compare" not in passing.entries
    assert missing(passing, [pair("", "compare")]) == ()


def profiled(**more: Any) -> Profile:
    return Profile(
        record.VERSION,
        "6.12",
        "a",
        "edu",
        "usual",
        1.5,
        False,
        3,
        0,
        (pair("", "entry"),),
        unknown={"a:x": 2},
        **more,
    )


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    profiled().write(tmp_path / "p.json")
    assert record.load(tmp_path / "p.json") == profiled()


def test_a_profile_as_json_is_its_file_and_as_its_schema_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    command, seen = "ring3_split.commands.profile", profiled(missing=(pair("near", "entry"),))
    monkeypatch.setattr(source_options, "kernel", lambda _: None)
    monkeypatch.setattr(driver, "load", lambda *_, **__: None)
    monkeypatch.setattr(f"{command}.check", lambda *_: None)
    monkeypatch.setattr(f"{command}.profile", lambda *_: seen)
    assert cli.main(["profile", "a", "--json", "--out", str(tmp_path / "p.json")]) == 1
    out = capfdbinary.readouterr().out
    assert out == (tmp_path / "p.json").read_bytes()
    assert conforms.printed(out, "split-profile") is None


def test_what_is_no_profile_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{}")
    with pytest.raises(Refusal, match=r"p\.json is no profile"):
        record.load(tmp_path / "p.json")
    with pytest.raises(Refusal, match=r"q\.json cannot be read: No such file"):
        record.load(tmp_path / "q.json")
