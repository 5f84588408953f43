"""Two split network cards in a guest.

8139too, whose registers are mapped or ports, and pcnet32, which has ports.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ring3_split import cli

pytestmark = [pytest.mark.guest, pytest.mark.kernel]
EXAMPLES = Path(__file__).parents[1] / "examples"
# After the lies the driver is loaded so that its registers are those of the other window.
PORTS = """
mapped() {
    start=$(sed -n 2p "/sys/bus/pci/devices/$CARD/resource" | cut -d' ' -f1)
    grep -q "phys=$start" /proc/vmallocinfo
}
honest() { mapped && split_reload use_io=1 && ! mapped && echo "its registers are ports"; }
"""


def ran(driver: str, folder: Path, *more: str) -> str:
    plan = [
        "--plan",
        str(EXAMPLES / f"{driver}.plan.toml"),
        "--annotations",
        str(EXAMPLES / f"{driver}.annotations.toml"),
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
                "--out",
                str(folder),
                *more,
            ]
        )
        == 0
    )
    return (folder / "run.log").read_text()


def part(log: str, step: str) -> str:
    return log.partition(f"== {step}")[2].partition("\n==")[0]


@pytest.fixture(scope="module")
def realtek(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("8139too")
    (folder / "ports.sh").write_text(PORTS)
    return ran("8139too", folder, "--work", str(folder / "ports.sh"))


@pytest.fixture(scope="module")
def lance(tmp_path_factory: pytest.TempPathFactory) -> str:
    work = str(EXAMPLES / "pcnet32.work.sh")
    return ran("pcnet32", tmp_path_factory.mktemp("pcnet32"), "--work", work, "--liar", "40")


@pytest.fixture(params=["realtek", "lance"])
def log(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def test_the_card_works_by_its_user_half_and_again_when_that_has_come_back(log: str) -> None:
    assert " user half: attached" in log
    for step in ("it works by its user half", "it works again", "it works once more"):
        assert "eth0 is up" in part(log, step)
        assert "message level\n  written back" in part(log, step)


def test_packets_go_while_the_user_half_dies_and_without_it(log: str) -> None:
    assert "no packet was lost" in log
    assert "packets go without the user half" in log


def test_the_card_works_after_its_user_half_has_died_in_the_middle_of_probes(log: str) -> None:
    assert "the card works after all probes" in log


def test_the_kernel_says_nothing_of_a_bug_after_the_lies(log: str) -> None:
    assert "messages, " in part(log, "messages that no user half would send")
    assert "the kernel is well" in log


def test_a_liar_that_sets_addresses_of_the_devices_memory_has_no_other_memory_freed(
    lance: str,
) -> None:
    knows = part(lance, "calls, members and probes of one that knows types and lies")
    assert "40 upcalls of one that knows types" in knows
    assert "eth0 is up" in part(lance, "it works once more")


def test_user_halves_die_in_the_midst_of_probing(realtek: str, lance: str) -> None:
    assert "it died in rtl8139_init_one" in realtek
    assert "it died in pcnet32_probe_pci" in lance


def test_registers_that_pci_iomap_has_found_in_ports_are_reached_as_ports(realtek: str) -> None:
    assert "its registers are ports" in part(realtek, "an honest one comes back")
    assert "eth0 is up" in part(realtek, "it works once more")
