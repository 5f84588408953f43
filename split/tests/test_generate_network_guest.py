"""A split network card in a guest.

Ethtool, EEPROM and options run in a process, packets in the kernel.
"""

from __future__ import annotations

import re
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
        str(EXAMPLES / "e1000.plan.toml"),
        "--annotations",
        str(EXAMPLES / "e1000.annotations.toml"),
    ]
    assert (
        cli.main(
            [
                "run",
                "e1000",
                "--guest",
                *plan,
                "--seconds",
                "0.2",
                "--lies",
                "5000",
                "--out",
                str(folder),
            ]
        )
        == 0
    )
    return Path(folder / "run.log").read_text()


def part(log: str, step: str) -> str:
    return log.partition(f"== {step}")[2].partition("\n==")[0]


def test_what_ethtool_asks_and_sets_the_user_half_answers(log: str) -> None:
    works = part(log, "it works by its user half")
    assert re.search(r"EEPROM\n\s+a word written back\n", works)
    assert re.search(r"pause\n\s+written back\n", works)


def test_no_packet_is_lost_while_the_user_half_dies(log: str) -> None:
    assert "no packet was lost" in part(log, "the user half dies while it works")


def test_packets_go_without_the_user_half_and_ethtool_fails(log: str) -> None:
    alone = part(log, "what is in the kernel goes on, what is not fails")
    assert "ethtool fails without the user half" in alone
    assert "packets go without the user half" in alone


def test_a_restarted_user_half_takes_over(log: str) -> None:
    assert re.search(r"pause\n\s+written back\n", part(log, "it works again"))


def test_a_user_half_that_dies_amid_a_reset_or_a_probe_leaves_a_card_that_the_next_makes_work(
    log: str,
) -> None:
    often = part(log, "the user half dies in the middle of resets, opening and probing")
    assert "the card works after all resets" in often
    assert "the card works after all probes" in often
    assert "it died in e1000_probe" in often


def test_all_lies_that_were_asked_for_are_told(log: str) -> None:
    messages = re.search(
        r"(\d+) messages, \d+ calls taken", part(log, "messages that no user half would send")
    )
    assert messages
    assert int(messages[1]) >= 5000


def test_a_driver_whose_user_half_lied_is_unloaded_without_one_and_works_when_it_is_loaded_anew(
    log: str,
) -> None:
    assert "it is unloaded without a user half" in part(log, "an honest one comes back")
    assert re.search(r"pause\n\s+written back\n", part(log, "it works once more"))


def test_the_kernel_says_nothing_of_a_bug(log: str) -> None:
    assert "the kernel is well" in log
