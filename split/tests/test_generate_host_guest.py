"""A split SCSI host adapter in a guest: vmw_pvscsi, with a disk on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ring3_split import cli

pytestmark = [pytest.mark.guest, pytest.mark.kernel]
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pvscsi")
    plan = [f"--{what}={EXAMPLES}/vmw_pvscsi.{what}.toml" for what in ("plan", "annotations")]
    lies = ["--lies", "4000", "--liar", "40"]
    assert cli.main(["run", "--guest", *plan, *lies, "--out", str(folder)]) == 0
    return (folder / "run.log").read_text()


def part(log: str, step: str) -> str:
    return log.partition(f"== {step}")[2].partition("\n==")[0]


def test_a_disk_appears_by_the_user_half_and_what_is_written_is_read_again(log: str) -> None:
    assert "host #" in part(log, "the halves meet")
    for step in ("it works by its user half", "it works again", "it works once more"):
        assert "/dev/sda has 268435456 bytes" in part(log, step)
        assert "write: IOPS=" in part(log, step)
        assert "file: OK" in part(log, step)
        assert "the queue is 64 deep" in part(log, step)


def test_no_block_is_lost_while_the_user_half_dies_nor_without_it(log: str) -> None:
    assert "no block was lost" in part(log, "the user half dies while it works")
    assert "blocks go without the user half" in part(
        log, "what is in the kernel goes on, what is not fails"
    )


def test_the_disk_works_after_its_user_half_has_died_in_the_middle_of_probes(log: str) -> None:
    step = part(log, "the user half dies in the middle of probing")
    assert "the disk works after all probes" in step
    assert "it died in pvscsi_probe" in step


def test_the_kernel_says_nothing_of_a_bug_after_lies_in_probes(log: str) -> None:
    assert "messages, " in part(log, "messages that no user half would send")
    assert "the kernel is well" in log


def test_the_disk_comes_back_after_a_user_half_that_knows_types(log: str) -> None:
    assert re.search("== calls, members and probes of.*\n40 upcalls of one that knows types", log)
    assert "write: IOPS=" in part(log, "it works once more")
