"""The study of a few real drivers, whose numbers are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ring3_split import cli
from ring3_split.distribution import open_kernel
from ring3_split.errors import Refusal
from ring3_split.study.families import Family
from ring3_split.study.result import Counts, Row, Study
from ring3_split.study.rules import BASE, RULES, Rule
from ring3_split.study.survey import survey

pytestmark = pytest.mark.kernel

FAMILIES = (
    Family("e1000", ("drivers/net/ethernet/intel/e1000",), name="e1000"),
    Family("8390", ("drivers/net/ethernet/8390",), name="8390"),
)


@pytest.fixture(scope="module")
def studied(cache: Path) -> Study:
    study, details = survey(open_kernel("6.12", cache), FAMILIES)
    assert set(details) == {row.path for row in study.drivers}
    return study


def row(study: Study, name: str) -> Row:
    return next(one for one in study.drivers if one.name == name)


def critical(counts: Counts | None, rule: Rule) -> int:
    assert counts is not None
    return counts.critical[RULES.index(rule)]


def test_e1000_has_the_functions_that_the_paper_s_rule_gives(studied: Study) -> None:
    counts = row(studied, "e1000").alone
    assert (counts.functions, critical(counts, BASE)) == (250, 33)


def test_more_roots_make_more_critical_and_fewer_calls_fewer(studied: Study) -> None:
    counts = row(studied, "e1000").alone
    timers = critical(counts, Rule("signature", "signature", "timers"))
    direct = critical(counts, Rule("direct", "signature", "data"))
    assert direct < critical(counts, BASE) <= timers


def test_ne2k_pci_is_counted_with_8390_which_holds_its_data_path(studied: Study) -> None:
    found = row(studied, "ne2k-pci")
    assert found.libraries == ("8390",)
    assert row(studied, "8390").library
    assert critical(found.together, BASE) > critical(found.alone, BASE)


def test_a_library_is_no_driver_where_drivers_have_their_libraries(studied: Study) -> None:
    family = studied.families[1]
    assert family.driver.drivers == family.module.drivers - 1
    assert family.driver.functions == family.module.functions


def test_a_family_without_a_module_in_the_configuration_is_refused(cache: Path) -> None:
    with pytest.raises(Refusal, match="builds no module of nothing"):
        survey(open_kernel("6.12", cache), [Family("", ("drivers/nothing",), name="nothing")])


def test_the_command_writes_everything_from_a_sample(
    cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [
        "study",
        "--quick",
        "--family",
        "scsi",
        "--cache",
        str(cache),
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    assert cli.main(command) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed["quick"]
    assert len(printed["drivers"]) == 3
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"study.{ending}" for ending in ("csv", "html", "json", "png", "svg")
    ]
