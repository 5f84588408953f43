"""The judge of plans and the stubs of a running driver find the same.

A plan that was broken on purpose.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ring3_split import cli

pytestmark = [pytest.mark.guest, pytest.mark.kernel]
EXAMPLES = Path(__file__).parents[1] / "examples"
MOVED = '8139cp.c:cp_set_rx_mode"]\nplacement = '


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan whose user half has what the network calls under a spinlock."""
    plan = tmp_path_factory.mktemp("judged") / "8139cp.plan.toml"
    text = (EXAMPLES / "8139cp.plan.toml").read_text()
    assert text.count(f'{MOVED}"kernel"') == 1
    plan.write_text(text.replace(f'{MOVED}"kernel"', f'{MOVED}"user"'))
    return plan


def test_the_judge_finds_a_call_into_the_user_half_from_atomic_context(
    broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "--check", str(broken)]) == 1
    assert (
        "cp_set_rx_mode is called in atomic context by net_device_ops.ndo_set_rx_mode"
        in capsys.readouterr().out
    )


def test_the_running_driver_refuses_that_call_and_its_run_fails_by_it(
    broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = ["--annotations", str(EXAMPLES / "8139cp.annotations.toml")]
    assert (
        cli.main(
            [
                "run",
                "--guest",
                "--plan",
                str(broken),
                *answers,
                "--seconds",
                "0.2",
                "--out",
                str(broken.parent),
            ]
        )
        == 1
    )
    assert "failed at 'the kernel has nothing to say'" in capsys.readouterr().err
    assert (
        "8139cp: cp_set_rx_mode is called in atomic context: refused"
        in (broken.parent / "run.log").read_text()
    )
