"""`plan` on the command line: what it prints, writes, refuses, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as Xml

import msgspec
import pytest

import conforms
from by_hand import Made, key
from ring3_split import cli, source_options
from ring3_split.plan import every, load, subject


@pytest.fixture(autouse=True)
def _driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver by hand in the place of one of a kernel."""
    made = (
        Made()
        .root("irq")
        .entry("ioctl", "process")
        .call("irq", "clean")
        .call("ioctl", "speed")
        .call("speed", "irq")
    )
    monkeypatch.setattr(subject, "load", lambda *_, **__: made.subject())
    monkeypatch.setattr(source_options, "kernel", lambda _: SimpleNamespace(name="6.12"))


def edited(tmp_path: Path, function: str, old: str, new: str) -> str:
    """A plan in which one function was changed."""
    file = tmp_path / "plan.toml"
    cli.main(["plan", "made", "--out", str(file)])
    head, table, rest = file.read_text().partition(f'[functions."{key(function)}"]\n')
    file.write_text(head + table + rest.replace(old, new, 1))
    return str(file)


def test_a_plan_is_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "made"]) == 0
    out = capsys.readouterr().out
    assert "made, kernel 6.12: minimum cut, cost 1, no profile" in out
    assert "kernel half  2 of 4 functions, 20 of 40 lines (50.0 %)" in out


def test_the_plan_that_was_written_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.toml"
    assert cli.main(["plan", "made", "--method", "propagation", "--out", str(file)]) == 0
    assert cli.main(["plan", "--check", str(file)]) == 0
    assert (
        "none of 2 functions of the user half can be reached in atomic context"
        in capsys.readouterr().out
    )


def test_a_plan_that_does_not_hold_ends_with_1_and_the_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = edited(tmp_path, "clean", 'placement = "kernel"', 'placement = "user"')
    assert cli.main(["plan", "--check", file]) == 1
    out = capsys.readouterr().out
    assert f"fault (atomic): {key('clean')} can be reached in atomic context" in out
    assert "    -> clean, called at a.c:1" in out
    assert out.endswith("does not hold: 1 fault\n")


def test_the_verdict_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = edited(tmp_path, "clean", 'placement = "kernel"', 'placement = "user"')
    capsys.readouterr()
    assert cli.main(["plan", "--check", file, "--json"]) == 1
    out = capsys.readouterr().out
    verdict = json.loads(out)
    assert conforms.printed(out, "split-plan-check") is None
    assert not verdict["holds"]
    assert [fault["function"] for fault in verdict["faults"]] == [key("clean")]


def test_a_check_writes_nothing(tmp_path: Path) -> None:
    file = edited(tmp_path, "clean", "lines = 10", "lines = 11 # odd")
    before = Path(file).read_text()
    cli.main(["plan", "--check", file])
    assert Path(file).read_text() == before


def test_the_curve_as_json_marks_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "made", "--curve", "--json"]) == 0
    out = capsys.readouterr().out
    made = json.loads(out)
    assert conforms.printed(out, "split-plan") is None
    assert [
        (corner["lines"], corner["crossings"], corner["chosen"]) for corner in made["curve"]
    ] == [
        (20, 2, True),
        (40, 0, False),
    ]
    assert made["propagation"]["kernel_lines"] == 20


def test_without_a_curve_the_plan_as_json_has_what_its_file_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.toml"
    assert cli.main(["plan", "made", "--out", str(file), "--json"]) == 0
    out = capsys.readouterr().out
    assert conforms.printed(out, "split-plan") is None
    assert json.loads(out) == msgspec.to_builtins(load(file))


def test_all_plans_as_json_have_the_columns_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "made", "--out", str(tmp_path / "plan.toml")]) == 0
    plan = load(tmp_path / "plan.toml")
    found = [every.Made("a", "d", plan), every.Made("b", "d", failure="b.c cannot be read")]
    monkeypatch.setattr("ring3_split.commands.plans.every", lambda *_: found)
    capsys.readouterr()
    assert cli.main(["plan", "--all", "--out", str(tmp_path / "plans"), "--json"]) == 0
    out = capsys.readouterr().out
    assert conforms.printed(out, "split-plan-all") is None
    first, second = json.loads(out)
    assert (first["kernel_lines"], first["kept:critical"]) == (20, 2)
    assert (second["kernel_lines"], second["failure"]) == (None, "b.c cannot be read")
    table = (tmp_path / "plans/plans.csv").read_text()
    assert table.splitlines()[0].split(",") == list(first)


def test_the_picture_is_the_same_file_each_time(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        assert cli.main(["plan", "made", "--curve", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    words = {
        element.text
        for element in Xml.parse(tmp_path / "a.svg").iter(  # noqa: S314
            "{http://www.w3.org/2000/svg}text"
        )
    }
    assert {"propagation", "this plan", "lines in the kernel"} <= words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name the driver to plan"),
        (["made", "--check", "x.toml"], "--check judges a plan and makes none"),
        (["--check", "/no/such.toml"], "No such file"),
        (["made", "--curve", "/no/such/picture.svg"], "/no/such/picture.svg"),
        (["made", "--curve", "picture.odd"], "picture.odd"),
        (["made", "--out", "/no/such/plan.toml"], "/no/such/plan.toml: No such file"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *arguments]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("cost", ["-1", "much", "1/0", "nan"])
def test_a_cost_that_is_none_is_wrong_usage(cost: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", "made", f"--cost={cost}"])
    assert ended.value.code == 2


def test_a_family_without_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "made", "--family", "ata"]) == 1
    assert "--family names the drivers that --all plans" in capsys.readouterr().err


def test_all_with_a_driver_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "made", "--all"]) == 1
    assert "leave DRIVER, --check, --profile and --curve out" in capsys.readouterr().err


def test_all_refuses_a_folder_that_is_not_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "e1000.toml").write_text("edited")
    assert cli.main(["plan", "--all", "--out", str(tmp_path)]) == 1
    assert "is not empty, perhaps with somebody's edits" in capsys.readouterr().err
