"""The form of report that all of ring3's commands share."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import conforms
from ring3_split import shared_report as shared
from ring3_split.generate.measured import Spread


class Load(msgspec.Struct, frozen=True):
    name: str
    rounds: int
    mbit_s: Spread
    cpu_ratio: Spread | None = None


def report() -> dict[str, Any]:
    load = Load("out", 3, Spread(1, 2.5, 4))
    rows = shared.spreads("tcp-out", "split", load)
    return shared.told("split", (shared.provenance(), shared.Lab("6.12")), rows, load)


def test_a_report_is_as_the_schema_says() -> None:
    assert conforms.check(report()) is None


@pytest.mark.parametrize(
    ("field", "value"), [("schema", "mine"), ("version", "1"), ("rows", [{}]), ("lab", None)]
)
def test_what_the_schema_does_not_allow_is_found(field: str, value: object) -> None:
    assert (conforms.check({**report(), field: value}) or "").startswith(f"report.{field}")


def test_spreads_become_rows_with_their_unit_and_what_is_missing_does_not() -> None:
    (row,) = report()["rows"]
    assert (row.metric, row.unit, row.rounds) == ("mbit_s", "Mb/s", 3)
    assert (row.min, row.median, row.max) == (1, 2.5, 4)


def test_its_own_fields_stay_beside_those_of_all() -> None:
    found = report()
    assert found["name"] == "out"
    assert found["bench"] == "split"


def test_the_work_of_this_process_is_not_that_of_others() -> None:
    others = shared.Others()
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        pass
    percent = others.percent()
    assert percent is not None
    assert 0 <= percent <= 100


def test_sources_in_somebody_elses_repository_have_no_commit(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run([*git, *words], check=True)
    theirs = shared._commit(tmp_path)
    assert theirs
    (tmp_path / "vendor").mkdir()
    assert shared._commit(tmp_path / "vendor") is None
