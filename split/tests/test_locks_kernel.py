"""Locks, allocations and arrays of the distribution's drivers, against a person's reading."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

import pytest

from ring3_split.driver import Driver
from ring3_split.gather import gather
from ring3_split.kernel import Kernel
from ring3_split.model import Function, ModuleFacts

pytestmark = pytest.mark.kernel
LOCK = re.compile(
    r"(?<![\w.>])(?:(?:spin|read|write)_(?:try)?lock(?:_bh|_irq|_irqsave)?"
    r"|mutex_(?:try)?lock(?:_interruptible)?|rcu_read_lock|rtnl_(?:try)?lock"
    r"|local_(?:irq_(?:save|disable)|bh_disable)|preempt_disable)\s*\("
)
UNLOCK = re.compile(
    r"(?<![\w.>])(?:(?:spin|read|write)_unlock(?:_bh|_irq|_irqrestore)?|mutex_unlock"
    r"|rcu_read_unlock|rtnl_unlock|local_(?:irq_(?:restore|enable)|bh_enable)|preempt_enable)\s*\("
)
NO_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def functions(facts: ModuleFacts) -> dict[str, Function]:
    return {
        f.name: f
        for unit in facts.units
        for f in unit.functions
        if f.file.startswith(facts.module.directory)
    }


def test_e1000_has_the_eight_regions_that_a_person_finds(e1000: Driver) -> None:
    found = [
        (f.name, region.kind.value, region.lock, len(region.releases))
        for f in functions(e1000.modules[0]).values()
        for region in f.regions
    ]
    assert sorted(found) == [
        ("e1000_mii_ioctl", "spin-irq", "e1000_adapter.stats_lock", 2),
        ("e1000_mii_ioctl", "spin-irq", "e1000_adapter.stats_lock", 2),
        ("e1000_read_eeprom", "mutex", "e1000_eeprom_lock", 1),
        ("e1000_read_phy_reg", "spin-irq", "e1000_phy_lock", 1),
        ("e1000_tbi_should_accept", "spin-irq", "e1000_adapter.stats_lock", 1),
        ("e1000_update_stats", "spin-irq", "e1000_adapter.stats_lock", 1),
        ("e1000_write_eeprom", "mutex", "e1000_eeprom_lock", 1),
        ("e1000_write_phy_reg", "spin-irq", "e1000_phy_lock", 2),
    ]


def test_e1000_calls_these_of_its_functions_with_a_lock_held(e1000: Driver) -> None:
    own = functions(e1000.modules[0])
    found = {
        (f.name, call.callee, f.regions[place].lock)
        for f in own.values()
        for call in f.calls
        for place in call.held
        if call.callee in own
    }
    assert found == {
        ("e1000_mii_ioctl", "e1000_read_phy_reg", "e1000_adapter.stats_lock"),
        ("e1000_mii_ioctl", "e1000_write_phy_reg", "e1000_adapter.stats_lock"),
        ("e1000_update_stats", "e1000_read_phy_reg", "e1000_adapter.stats_lock"),
        ("e1000_tbi_should_accept", "e1000_tbi_adjust_stats", "e1000_adapter.stats_lock"),
        ("e1000_read_phy_reg", "e1000_read_phy_reg_ex", "e1000_phy_lock"),
        ("e1000_read_phy_reg", "e1000_write_phy_reg_ex", "e1000_phy_lock"),
        ("e1000_write_phy_reg", "e1000_write_phy_reg_ex", "e1000_phy_lock"),
        ("e1000_read_eeprom", "e1000_do_read_eeprom", "e1000_eeprom_lock"),
        ("e1000_write_eeprom", "e1000_do_write_eeprom", "e1000_eeprom_lock"),
    }


@pytest.mark.parametrize("name", ["e1000", "8139too", "pcnet32", "snd-ens1370", "virtio_net"])
def test_each_lock_call_in_the_text_begins_a_region_and_each_unlock_ends_one(
    kernel: Kernel, name: str
) -> None:
    (facts,) = gather(kernel, [kernel.module(name)])
    every = functions(facts).values()
    taken = {(f.file, region.line) for f in every for region in f.regions}
    given = {(f.file, line) for f in every for region in f.regions for line in region.releases}
    for source in facts.module.sources:
        text = (kernel.root / source).read_text(encoding="utf-8", errors="replace")
        mine = [range(f.line, f.end + 1) for f in every if f.file == source]
        assert set(matching(LOCK, source, text, mine)) <= taken
        assert set(matching(UNLOCK, source, text, mine)) <= given


def matching(
    pattern: re.Pattern[str], source: str, text: str, compiled: list[range]
) -> Iterator[tuple[str, int]]:
    """The lines of code that a pattern is found in, in functions that are compiled."""
    inside = set(chain.from_iterable(compiled))
    blank = NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for number, line in enumerate(blank.splitlines(), 1):
        if number in inside and pattern.search(line):
            yield source, number


def test_the_six_mutexes_of_mpt3sas_are_told_apart(kernel: Kernel) -> None:
    (facts,) = gather(kernel, [kernel.module("mpt3sas")])
    regions = [region for one in functions(facts).values() for region in one.regions]
    commands = {region.name for region in regions if region.lock == "_internal_cmd.mutex"}
    kinds = ("base", "config", "ctl", "scsih", "tm", "transport")
    assert commands == {f"MPT3SAS_ADAPTER.{kind}_cmds.mutex" for kind in kinds}


@pytest.mark.parametrize(
    ("name", "function", "kind", "lock"),
    [
        ("sg", "sg_alloc", "preempt-off", ""),
        ("dc395x", "srb_done", "preempt-off", ""),
        ("sky2", "sky2_detach", "spin", "net_device.tx_global_lock"),
    ],
)
def test_what_begins_in_a_function_of_the_kernel_is_a_region(
    kernel: Kernel, name: str, function: str, kind: str, lock: str
) -> None:
    (facts,) = gather(kernel, [kernel.module(name)])
    one = functions(facts)[function]
    assert [
        region
        for region in one.regions
        if (region.kind, region.lock) == (kind, lock) and region.releases and not region.kept
    ]
    assert [given for given in one.given if given.kind == kind] == []


def test_no_function_of_virtio_net_returns_with_a_lock(kernel: Kernel) -> None:
    (facts,) = gather(kernel, [kernel.module("virtio_net")])
    assert [
        f.name for f in functions(facts).values() for region in f.regions if not region.releases
    ] == []


def test_the_rings_of_e1000_are_as_long_as_the_driver_says(e1000: Driver) -> None:
    sizes = {
        (found.into, found.size)
        for data in e1000.data
        for all_ in data.allocations.values()
        for found in all_
    }
    assert sizes >= {
        (
            "field e1000_adapter.tx_ring",
            "e1000_adapter.num_tx_queues * sizeof(struct e1000_tx_ring)",
        ),
        (
            "field e1000_adapter.rx_ring",
            "e1000_adapter.num_rx_queues * sizeof(struct e1000_rx_ring)",
        ),
        ("field e1000_tx_ring.buffer_info", "e1000_tx_ring.count * sizeof(struct e1000_tx_buffer)"),
        ("field e1000_rx_ring.buffer_info", "e1000_rx_ring.count * sizeof(struct e1000_rx_buffer)"),
        ("field e1000_tx_ring.desc", "e1000_tx_ring.size"),
        ("field e1000_rx_ring.desc", "e1000_rx_ring.size"),
    }


def test_the_indices_of_e1000_are_bounded_by_the_same_fields(e1000: Driver) -> None:
    shapes = {
        (one.what, one.pointer, one.detail)
        for data in e1000.data
        for all_ in data.shapes.values()
        for one in all_
    }
    bounds = {
        "e1000_adapter.tx_ring": {"< e1000_adapter.num_tx_queues"},
        "e1000_adapter.rx_ring": {"< e1000_adapter.num_rx_queues"},
    }
    for pointer, expected in bounds.items():
        assert {
            detail
            for what, place, detail in shapes
            if what == "index" and place == f"field {pointer}"
        } == expected
    assert ("index", "field e1000_tx_ring.desc", "< e1000_tx_ring.count") in shapes
    assert ("index", "field e1000_rx_ring.buffer_info", "< e1000_rx_ring.count") in shapes
    assert ("cast", "field e1000_rx_ring.desc", "e1000_rx_desc") in shapes
    assert ("list", "field netdev_hw_addr_list.list", "netdev_hw_addr.list") in shapes


def test_the_work_items_of_e1000_are_members_of_the_adapter(e1000: Driver) -> None:
    found = {
        name.rpartition(":")[2]: one.detail
        for data in e1000.data
        for name, all_ in data.shapes.items()
        for one in all_
        if one.what == "container" and one.detail.startswith("e1000_adapter.")
    }
    assert found == {
        "e1000_clean": "e1000_adapter.napi",
        "e1000_watchdog": "e1000_adapter.watchdog_task",
        "e1000_82547_tx_fifo_stall_task": "e1000_adapter.fifo_stall_task",
        "e1000_update_phy_info_task": "e1000_adapter.phy_info_task",
        "e1000_reset_task": "e1000_adapter.reset_task",
    }
