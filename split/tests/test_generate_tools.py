"""How a user half is started to be looked at."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from ring3_split import cli
from ring3_split.errors import Refusal
from ring3_split.generate.run import Wanted, text
from ring3_split.generate.tools import Tools
from ring3_split.profile.devices import device
from ring3_split.profile.scenario import Run


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """gdb and valgrind are there, wherever this runs."""
    for file in (tmp_path / "gdb", tmp_path / "memcheck-amd64-linux"):
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("ring3_split.generate.tools.PARTS", (str(tmp_path),))
    monkeypatch.setattr("ring3_split.generate.tools.HEADER", tmp_path / "gdb")


def scenario(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(Tools, "files", lambda _: {"/there": Path("/here")})
    found = device("e1000")
    run = Run(
        "e1000",
        found,
        "load",
        0.5,
        "6.12",
        (Path("/r.ko"), Path("/d.ko")),
        (),
        (Path("/out/split-e1000"),),
    )
    return tomlkit.parse(text(run, found.kind, "1", Wanted(tools=tools))).unwrap()


def test_a_user_half_that_nobody_looks_at_is_started_as_it_is_and_tried_what_it_can_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = scenario(Tools(), monkeypatch)
    assert (found["variables"]["TOOL"], found["variables"]["OPTIONS"]) == ("", "")
    assert any(step["run"].endswith("; confined") for step in found["step"])


def test_one_that_keeps_its_rights_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    found = scenario(Tools(unconfined=True), monkeypatch)
    assert found["variables"]["OPTIONS"] == "--unconfined"
    assert not any(step["run"].endswith("; confined") for step in found["step"])


def test_gdb_gets_what_it_is_told_and_shows_a_crash_where_nobody_tells_it() -> None:
    told = shlex.split(
        Tools(gdb=True, words=("-batch", "-ex", "break e1000_probe", "-ex", "run")).command()
    )
    assert told[-5:] == ["-ex", "break e1000_probe", "-ex", "run", "--args"]
    assert shlex.split(Tools(gdb=True).command())[-6:] == [
        "-batch",
        "-ex",
        "run",
        "-ex",
        "bt",
        "--args",
    ]


def test_whoever_is_looked_at_keeps_its_rights_and_is_not_pinned() -> None:
    for tools in (Tools(gdb=True), Tools(asan=True), Tools(valgrind=True)):
        assert tools.options() == "--unconfined --unpinned"


def test_the_program_has_its_line_numbers_where_somebody_looks_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = scenario(Tools(asan=True), monkeypatch)
    assert found["files"]["/usr/local/bin/split-e1000"] == "/out/split-e1000"
    assert any(step["run"].endswith("; checked") for step in found["step"])


def test_what_a_tool_opens_is_in_the_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scenario(Tools(gdb=True), monkeypatch)["files"]["/there"] == "/here"


def test_tools_that_exclude_each_other_are_refused() -> None:
    for gdb in (True, False):
        with pytest.raises(Refusal, match="--valgrind runs alone"):
            Tools(valgrind=True, gdb=gdb, asan=not gdb)
    assert Tools(gdb=True, asan=True).form.asan


def test_words_without_gdb_are_refused() -> None:
    with pytest.raises(Refusal, match="say --gdb"):
        Tools(words=("-ex",))


def test_a_tool_that_is_not_installed_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("ring3_split.generate.tools.PARTS", ())
    with pytest.raises(Refusal, match="apt-get install gdb"):
        Tools(gdb=True)
    with pytest.raises(Refusal, match="apt-get install valgrind"):
        Tools(valgrind=True)


def test_what_follows_two_dashes_is_gdbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "e1000", "--guest", "--", "-batch"]) == 1
    assert "what follows -- goes to gdb" in capsys.readouterr().err
