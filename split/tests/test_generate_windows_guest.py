"""Registers that are mapped into a user half, in a guest.

What it gets of them, and that they go with the driver's mapping.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import tomlkit

from ring3_split import cli
from ring3_split.generate import empty
from ring3_split.generate.build import runtime_module
from ring3_split.generate.halves import RUNTIME
from ring3_split.kernel import Kernel
from ring3_split.profile import lab
from ring3_split.profile.headers import version

pytestmark = [pytest.mark.guest, pytest.mark.kernel]
EXAMPLES = Path(__file__).parents[1] / "examples"
STEP = """
insmod /lib/ring3/ring3_split.ko && insmod /lib/ring3/split_empty.ko || exit 1
window >/tmp/window 2>&1 &
sleep 1
for what in register mapped; do echo 1 >/sys/module/split_empty/parameters/$what || exit 1; done
rmmod split_empty && wait && cat /tmp/window && rmmod ring3_split || exit 1
! dmesg | grep -E 'BUG|WARNING|Oops|Call Trace'
"""


@pytest.fixture(scope="module")
def said(kernel: Kernel, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("windows")
    halves = empty.build(kernel, runtime_module(kernel))
    program = lab.compiled_file(
        Path(__file__).parent / "window.c", kernel.folder.parent / "guest", RUNTIME
    )
    scenario = {
        "about": "a user half maps the registers of the empty driver",
        "kernel": version(kernel),
        "iommu": "none",
        "time_limit": 120,
        "programs": [str(program)],
        "files": {
            f"/lib/ring3/{file.name}": str(file) for file in (runtime_module(kernel), halves.module)
        },
        "step": [{"name": "a window", "run": STEP}],
    }
    (folder / "scenario.toml").write_text(tomlkit.dumps(scenario))
    lab.run(
        folder / "scenario.toml",
        cache,
        folder / "out",
        folder / "run.log",
        lambda _line, _step: None,
    )
    return (folder / "run.log").read_text()


def test_a_window_is_the_register_that_calls_reach(said: str) -> None:
    assert "a write to it is read by a call: yes" in said


def test_only_whole_pages_that_the_kernel_half_offers_can_be_mapped(said: str) -> None:
    assert "registers that are not to be mapped: Operation not supported" in said
    assert "behind it: Bus error" in said
    assert "one that nobody gave: Bus error" in said


def test_a_window_is_shared_and_never_code(said: str) -> None:
    assert "a private window: Invalid argument" in said
    assert "a window to run code in: Invalid argument" in said
    assert "to make it executable: Permission denied" in said


def test_a_child_of_a_user_half_has_no_window(said: str) -> None:
    assert "a child: Segmentation fault" in said


def test_a_window_goes_with_the_drivers_mapping_though_the_process_still_has_it(said: str) -> None:
    assert "when its mapping has gone: Bus error" in said


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("mapped")
    text = (
        (EXAMPLES / "e1000.plan.toml")
        .read_text()
        .replace("[totals]", "[mmio]\nmap = true\n\n[totals]")
    )
    (folder / "plan.toml").write_text(text)
    # What an EEPROM that is read bit by bit costs in calls.
    (folder / "counts.sh").write_text(
        "often() { before=$(cat /sys/module/ring3_split/parameters/calls); net control "
        '"$(interface "$CARD")" dumps >/dev/null; '
        'echo "dumps took $(($(cat /sys/module/ring3_split/parameters/calls) - before)) calls"; }\n'
    )
    arguments = [
        "--plan",
        str(folder / "plan.toml"),
        "--annotations",
        str(EXAMPLES / "e1000.annotations.toml"),
    ]
    arguments += [
        "--work",
        str(folder / "counts.sh"),
        "--seconds",
        "0.2",
        "--lies",
        "2000",
        "--out",
        str(folder),
    ]
    assert cli.main(["run", "--guest", *arguments]) == 0
    return (folder / "run.log").read_text()


def test_a_card_whose_registers_are_mapped_works_dies_lies_and_comes_back(mapped: str) -> None:
    assert "no packet was lost" in mapped
    assert "the kernel is well" in mapped


def test_an_eeprom_is_read_without_a_call_for_each_bit(mapped: str) -> None:
    calls = int(mapped.partition("dumps took ")[2].partition(" calls")[0])
    assert calls < 1000
