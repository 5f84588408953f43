"""The options of `ring3 split bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ring3_split import cli
from ring3_split.commands import bench, generate
from ring3_split.errors import Refusal
from ring3_split.generate import delays
from ring3_split.profile import lab

LOG = Path("bench.log")


def arguments(*options: str) -> argparse.Namespace:
    return cli.parser().parse_args(["bench", "e1000", *options])


def test_without_an_option_the_placements_are_measured() -> None:
    asked = bench.request(arguments(), LOG)
    assert (asked.placements, asked.delays, asked.crossings, asked.ethtool) == (True, (), 0, 0)
    assert (asked.seconds, asked.rounds, asked.mode) == (4.0, 3, "instructions")


def test_without_a_driver_the_example_of_the_documentation_is_measured() -> None:
    asked = cli.parser().parse_args(["bench", "--quick"])
    generate._measure_an_example(asked)
    assert asked.plan.name == "e1000.plan.toml"
    assert asked.plan.is_file()
    assert asked.annotations.is_file()


def test_a_driver_that_is_named_is_measured_without_the_example() -> None:
    asked = arguments()
    generate._measure_an_example(asked)
    assert asked.plan is None


def test_delays_without_a_list_are_those_of_the_paper() -> None:
    asked = bench.request(arguments("--delays"), LOG)
    assert asked.delays == delays.USUAL
    assert not asked.placements


@pytest.mark.parametrize("text", ["fast", "1,", "1,1", "-1", "10000000"])
def test_a_list_that_is_none_is_wrong_usage(text: str) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments(f"--delays={text}")
    assert ended.value.code == 2


def test_quick_does_each_of_the_three_once_and_yields_to_what_is_said() -> None:
    asked = bench.request(arguments("--quick", "--rounds", "2", "--delays", "5"), LOG)
    assert (asked.delays, asked.rounds, asked.seconds) == ((5,), 2, 0.5)
    assert asked.crossings
    assert asked.ethtool


def test_a_picture_of_nothing_is_refused_before_anything_is_built() -> None:
    with pytest.raises(Refusal, match="add --delays"):
        bench.check("e1000", arguments("--plot", "x.svg"))


def test_a_picture_has_a_known_form() -> None:
    with pytest.raises(Refusal, match=r"a picture is \.svg"):
        bench.check("e1000", arguments("--delays", "--plot", "x.png"))


def ring3(folder: Path, script: str) -> str:
    program = folder / "ring3"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_the_lab_s_program_draws_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = ring3(tmp_path, 'grep -o \'"bench":"[a-z]*"\' "$2" >"$4"; echo "$1 $3" >>"$4"')
    monkeypatch.setenv("RING3", stand_in)
    lab.plot({"bench": "split"}, tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text().split("\n")[:2] == ['"bench":"split"', "plot --out"]


def test_what_cannot_be_drawn_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RING3", ring3(tmp_path, "echo no room >&2; exit 1"))
    with pytest.raises(Refusal, match="no room"):
        lab.plot({}, tmp_path / "x.svg")


def test_everywhere_is_for_cards_that_ring3_drives() -> None:
    bench.check("e1000", arguments("--everywhere"))
    with pytest.raises(Refusal, match="in a process"):
        bench.check("8139cp", arguments("--everywhere"))


def test_everywhere_is_refused_where_no_placement_is_measured() -> None:
    with pytest.raises(Refusal, match="leave out"):
        bench.check("e1000", arguments("--everywhere", "--crossings"))
