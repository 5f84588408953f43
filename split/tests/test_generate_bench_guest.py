"""`ring3 split bench --quick` in a guest: all that Figure 4 needs is measured and drawn."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ring3_split import cli
from ring3_split.generate import costs

pytestmark = [pytest.mark.guest, pytest.mark.kernel]
EXAMPLES = Path(__file__).parents[1] / "examples"


class Standard(io.TextIOWrapper):
    """Standard output that is read afterwards."""

    def __init__(self) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, write_through=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def report(folder: Path) -> Any:
    plan = [
        "--plan",
        str(EXAMPLES / "e1000.plan.toml"),
        "--annotations",
        str(EXAMPLES / "e1000.annotations.toml"),
    ]
    out = Standard()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        assert (
            cli.main(
                [
                    "bench",
                    *plan,
                    "--quick",
                    "--json",
                    "--plot",
                    str(folder / "bench.svg"),
                    "--out",
                    str(folder),
                ]
            )
            == 0
        )
    return json.loads(out.bytes.getvalue())


def median(report: Any, what: str, user_half: str) -> Any:
    (found,) = (
        row for row in report["crossings"] if (row["what"], row["user_half"]) == (what, user_half)
    )
    return found["us"]["median"]


def test_each_delay_has_every_load_and_so_has_the_original(report: Any) -> None:
    assert {(row["delay_us"], row["load"]) for row in report["delays"]} == {
        (delay, load) for delay in (None, 0, 20000) for load in ("out", "in", "paced")
    }


def test_an_upcall_is_more_than_a_call_down_and_that_more_than_a_system_call(report: Any) -> None:
    kinds = ("upcall", "call", "register", "mapped", "getppid")
    upcall, call, register, mapped, getppid = (median(report, what, "unconfined") for what in kinds)
    assert upcall > call > register > getppid > mapped > 0


def test_the_filter_of_a_confined_user_half_is_in_its_crossings(report: Any) -> None:
    for what in ("call", "register"):
        assert median(report, what, "confined") > median(report, what, "unconfined")
    assert all(median(report, what, "confined") > 0 for what in ("upcall", "mapped"))


def test_a_restart_has_a_time_of_both_user_halves(report: Any) -> None:
    for user_half in costs.USER_HALVES:
        assert median(report, "restart", user_half) > median(report, "upcall", user_half)


def test_the_empty_drivers_system_call_is_the_measure(report: Any) -> None:
    (row,) = (row for row in report["crossings"] if row["what"] == "getppid")
    assert row | {"us": None, "instructions": None} == {
        "what": "getppid",
        "user_half": "unconfined",
        "rounds": 1,
        "us": None,
        "instructions": None,
        "multiple": {"min": 1.0, "median": 1.0, "max": 1.0},
    }


def test_loading_and_every_question_of_ethtool_has_a_time_of_both_drivers(report: Any) -> None:
    assert [row["what"] for row in report["times"]] == [
        "init",
        "-i",
        "-S",
        "-d",
        "-e",
        "-k",
        "link",
        "settings",
    ]
    assert all(
        row["original_us"]["min"] > 0 and row["split_us"]["min"] > 0 for row in report["times"]
    )


def test_the_delays_are_drawn(report: Any, folder: Path) -> None:
    assert report["delays"]
    assert "delay of each crossing" in (folder / "bench.svg").read_text()
