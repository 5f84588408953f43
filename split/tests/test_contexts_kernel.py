"""The tables of contexts against the distribution's kernel."""

from __future__ import annotations

import pytest

from ring3_split.context import cores, evidence
from ring3_split.context.evidence import Finding
from ring3_split.kernel import Kernel

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def found(kernel: Kernel) -> dict[str, Finding]:
    """What the kernel's own code says of each field. Cold, its 874 files are read first."""
    graph, failures = cores.read(kernel)
    assert [failure.source for failure in failures] == [
        "drivers/scsi/scsi_sysfs.c"
    ]  # includes a file that a build generates
    return {one.field: one for one in evidence.findings(graph)}


def test_the_kernel_contradicts_no_row(found: dict[str, Finding]) -> None:
    wrong = [
        f"{one.field}: {one.sites[0].path}"
        for one in found.values()
        if one.row and one.verdict == "contradicted"
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "field",
    [
        "scsi_host_template.target_destroy",
        "fc_function_template.set_rport_dev_loss_tmo",
        "net_device_ops.ndo_bridge_getlink",
        "net_device_ops.ndo_change_rx_flags",
        "net_device_ops.ndo_eth_ioctl",
        "rtnl_link_ops.get_link_net",
        "rtnl_link_ops.get_slave_size",
        "snd_timer_hardware.precise_resolution",
        "ethtool_ops.get_link",
    ],
)
def test_what_a_person_found_under_a_lock_is_found_there(
    field: str, found: dict[str, Finding]
) -> None:
    assert "atomic" in {site.grade for site in found[field].sites}
    row = found[field].row
    assert row is not None
    assert row.context == "atomic"


def test_what_a_mutex_guards_is_found_in_process_context(found: dict[str, Finding]) -> None:
    for field in (
        "net_device_ops.ndo_open",
        "phy_driver.config_aneg",
        "ieee80211_ops.start",
        "hda_codec_ops.build_pcms",
    ):
        assert found[field].verdict in ("certain", "open")


def test_most_rows_that_may_sleep_are_seen_to_be_called_so(found: dict[str, Finding]) -> None:
    certain = sum(one.verdict == "certain" for one in found.values() if one.row)
    assert certain > 700
