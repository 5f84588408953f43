"""A split sound card in a guest.

Its probe, mixer and files run in a process, which hangs, dies and comes back.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ring3_split import cli

pytestmark = [pytest.mark.guest, pytest.mark.kernel]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("split")
    assert (
        cli.main(
            [
                "run",
                "snd-ens1370",
                "--guest",
                "--seconds",
                "0.2",
                "--lies",
                "10000",
                "--liar",
                "40",
                "--out",
                str(folder),
            ]
        )
        == 0
    )
    return Path(folder / "run.log").read_text()


def test_the_card_is_probed_and_its_mixer_turned_by_the_user_half(log: str) -> None:
    works = log.partition("== it works by its user half")[2].partition("==")[0]
    assert "Ensoniq AudioPCI ENS1370 at" in works
    assert "Recording source   : mixer" in works


def test_it_plays_on_while_the_user_half_dies_and_without_it(log: str) -> None:
    assert "it went on playing" in log
    assert "it plays without its user half" in log


def test_calls_that_wait_for_a_user_half_that_dies_fail(log: str) -> None:
    assert "the mixer's calls failed and it ended" in log
    assert "fails: the user half has died" in log


def test_a_restarted_user_half_takes_over(log: str) -> None:
    again = log.partition("== it works again")[2].partition("==")[0]
    assert "Recording source   : mixer" in again


def test_it_is_ended_for_any_call_but_those_of_its_device_and_opens_no_file(log: str) -> None:
    confined = log.partition("== the user half can do nothing but answer")[2].partition("\n==")[0]
    assert "user 65534, capabilities 0000000000000000" in confined
    assert "its files: 0" in confined
    assert "file: refused: Permission denied" in confined
    for call in ("device", "socket", "fork", "exec", "code"):
        assert f"{call}: ended by signal 31" in confined


def test_its_pages_are_pinned(log: str) -> None:
    pinned = re.search(r"pinned (\d+) of (\d+) KiB", log)
    assert pinned
    assert int(pinned[1]) > int(pinned[2]) * 0.9


def test_the_kernel_survives_messages_that_no_user_half_would_send(log: str) -> None:
    fuzzed = log.partition("== messages that no user half would send")[2].partition("\n==")[0]
    messages = re.search(r"(\d+) messages, \d+ calls taken", fuzzed)
    assert messages
    assert int(messages[1]) >= 10000


def test_the_kernel_says_nothing_of_a_bug(log: str) -> None:
    assert "the kernel is well" in log


def test_it_works_behind_messages_that_were_wrong_without_a_new_module(log: str) -> None:
    assert "it worked without a new module" in log


def test_it_comes_back_after_a_user_half_that_knows_types(log: str) -> None:
    assert re.search("== calls, members and probes of.*\n(.*\n)*40 upcalls of one that", log)
    once_more = log.partition("== it works once more")[2].partition("\n==")[0]
    assert "Recording source   : mixer" in once_more
