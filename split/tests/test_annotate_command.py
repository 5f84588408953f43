"""The command, as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import conforms
from ring3_split.cli import main
from ring3_split.plan import Placed, Plan, Side, Totals, save

EXAMPLE = Path(__file__).parent.parent / "examples/e1000.annotations.toml"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "e1000.annotations.toml"


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A plan of e1000 with a function that it does not have."""
    totals = Totals(**dict.fromkeys(Totals.__struct_fields__, 0))
    plan = Plan(
        1, "6.12", "e1000", "field", "cut", "1", "", totals, {"d/a.c:nowhere": Placed(Side.USER, 3)}
    )
    save(plan, tmp_path / "plan.toml")
    return tmp_path / "plan.toml"


def test_somebody_must_say_which_driver(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["annotate"]) == 1
    assert "name a driver, or a plan with --plan FILE" in capsys.readouterr().err


def test_a_plan_of_another_driver_is_refused(
    strange: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["annotate", "8139too", "--plan", str(strange)]) == 1
    assert "the plan is for e1000, not for 8139too" in capsys.readouterr().err


def test_a_check_without_a_file_says_how_to_begin(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["annotate", "e1000", "--check", "--out", str(out)]) == 1
    assert f"write it with `annotate e1000 --out {out}`" in capsys.readouterr().err


@pytest.mark.kernel
def test_a_plan_that_does_not_fit_the_driver_is_refused(
    strange: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["annotate", "--plan", str(strange)]) == 1
    assert "the plan places d/a.c:nowhere, which e1000 of" in capsys.readouterr().err


@pytest.mark.kernel
def test_what_is_unknown_is_refused_with_its_place(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["annotate", "e1000", "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["annotate", "e1000", "--out", str(out), "--check"]) == 1
    printed = capsys.readouterr()
    assert all(
        line.startswith("drivers/net/ethernet/intel/e1000/e1000")
        for line in printed.out.splitlines()
    )
    assert f"{len(printed.out.splitlines())} unknown or wrong" in printed.err


@pytest.mark.kernel
def test_a_wrong_answer_is_refused_with_its_line(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out.write_text(EXAMPLE.read_text().replace('answer = "single"', 'answer = "array(cuont)"'))
    line = next(
        number for number, text in enumerate(out.read_text().splitlines(), 1) if "cuont" in text
    )
    assert main(["annotate", "e1000", "--out", str(out), "--check"]) == 1
    assert f"{out}:{line}: " in capsys.readouterr().out


@pytest.mark.kernel
def test_a_check_and_json_write_nothing(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out.write_text(EXAMPLE.read_text())
    assert main(["annotate", "e1000", "--out", str(out), "--check"]) == 0
    capsys.readouterr()
    assert main(["annotate", "e1000", "--out", str(out), "--json"]) == 0
    assert out.read_text() == EXAMPLE.read_text()


@pytest.mark.kernel
def test_json_has_the_border_and_every_annotation(
    out: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["annotate", "e1000", "--out", str(out), "--json"]) == 0
    printed = capfdbinary.readouterr().out
    found = json.loads(printed)
    assert conforms.printed(printed, "split-annotate") is None
    assert found["counts"]["upcalls"] == len(found["interface"]["entries"])
    assert found["counts"]["inferred"] + found["counts"]["asked"] == len(found["notes"])
    tx = found["interface"]["types"]["e1000_adapter"]["members"]["tx_ring"]
    assert (tx["type"], tx["size"]) == ("struct e1000_tx_ring *", 8)
