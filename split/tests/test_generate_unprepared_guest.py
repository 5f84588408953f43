"""A split driver that was made by docs/splitting-a-driver.md, in a guest."""

from __future__ import annotations

from pathlib import Path

import pytest

from ring3_split import cli

pytestmark = [pytest.mark.guest, pytest.mark.kernel]
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("split")
    plan = [
        "--plan",
        str(EXAMPLES / "8139cp.plan.toml"),
        "--annotations",
        str(EXAMPLES / "8139cp.annotations.toml"),
    ]
    assert (
        cli.main(
            [
                "run",
                "--guest",
                *plan,
                "--seconds",
                "0.2",
                "--lies",
                "2000",
                "--liar",
                "40",
                "--out",
                str(folder),
            ]
        )
        == 0
    )
    return (folder / "run.log").read_text()


def test_8139cp_works_by_its_user_half_and_again_when_it_has_come_back(log: str) -> None:
    assert "8139cp user half: attached" in log
    assert log.count("eth0 is up") >= 2


def test_packets_of_8139cp_go_while_its_user_half_dies_and_without_it(log: str) -> None:
    assert "no packet was lost" in log
    assert "packets go without the user half" in log


def test_8139cp_works_after_its_user_half_has_died_in_the_middle_of_probes(log: str) -> None:
    assert "the card works after all probes" in log


def test_the_kernel_says_nothing_of_a_bug_after_the_lies_of_8139cps_user_half(log: str) -> None:
    assert "messages, " in log
    assert "40 upcalls of one that knows types" in log
    assert "the kernel is well" in log
