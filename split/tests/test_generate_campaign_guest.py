"""Faults in a split network card's user half, and strangers at the module's device, in a guest."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import conforms
from conftest import named_kernel
from ring3_split import cli
from ring3_split.generate.campaign import STRANGERS
from ring3_split.generate.tally import KINDS, Report

pytestmark = [pytest.mark.guest, pytest.mark.kernel]
KERNEL = ("--kernel", named_kernel())
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """What a lost card says is in its guest's log, which a failing test shows."""
    kept = tmp_path_factory.mktemp("split")
    plan = [
        "--plan",
        str(EXAMPLES / "e1000.plan.toml"),
        "--annotations",
        str(EXAMPLES / "e1000.annotations.toml"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        printed: list[bytes] = []
        patch.setattr(
            "ring3_split.commands.report.show",
            lambda found, *_: printed.append(msgspec.json.encode(found)),
        )
        code = cli.main(
            ["campaign", "e1000", "--quick", *KERNEL, *plan, "--out", str(kept), "--json"]
        )
    print(*(log.read_text() for log in sorted(kept.glob("campaign.*.log"))), sep="\n")
    assert code == 0, printed
    assert conforms.printed(printed[0], "split-campaign") is None
    return msgspec.json.decode(printed[0], type=Report)


def test_each_kind_of_fault_is_injected_and_the_card_comes_back(report: Report) -> None:
    assert {row.kind: (row.injected, row.back) for row in report.rows} == dict.fromkeys(
        KINDS, (1, 1)
    )


def test_what_faults_or_is_killed_dies(report: Report) -> None:
    assert all(
        row.died for row in report.rows if row.kind in ("null", "jump", "illegal", "kill", "call")
    )


def test_upcalls_end_with_their_entrys_error(report: Report) -> None:
    assert sum(row.failed for row in report.rows) >= 5


def test_all_messages_that_were_asked_for_are_sent(report: Report) -> None:
    assert report.told.lies >= 1000
    assert report.told.ioctls == STRANGERS * 1000


def test_tcp_goes_on_while_the_user_half_dies_again_and_again(report: Report) -> None:
    assert report.endured is not None
    assert report.endured.seconds == 6
    assert min(report.endured.sent_mbit_s, report.endured.received_mbit_s) > 0
    assert report.endured.deaths >= 1


def test_the_kernel_does_not_complain(report: Report) -> None:
    assert (report.complaints, report.atomic) == ([], 0)
