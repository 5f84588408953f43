"""What the generator makes of a network card whose adapter lies behind its net_device.

e1000 with the plan of examples/.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ring3_split.annotate import file
from ring3_split.annotate.border import Check
from ring3_split.annotate.survey import survey
from ring3_split.errors import Refusal
from ring3_split.generate import tables
from ring3_split.generate.border import Wishes
from ring3_split.generate.bounds import bounds
from ring3_split.generate.halves import Generated, generate
from ring3_split.generate.summary import summary
from ring3_split.generate.table import Bound, Call, Field, Undo
from ring3_split.kernel import Kernel
from ring3_split.model import Member
from ring3_split.plan import load, subject
from ring3_split.plan.file import Mmio

EXAMPLES = Path(__file__).parents[1] / "examples"
MAIN = "drivers/net/ethernet/intel/e1000/e1000_main.c"
ETHTOOL = "drivers/net/ethernet/intel/e1000/e1000_ethtool.c"


def member(kind: str, size: int) -> Member:
    return Member(name="n", type=kind, offset=0, size=size)


def test_a_number_is_kept_in_the_range_that_was_derived_of_it() -> None:
    assert bounds(Check([], [], "range", 0, 16), member("u8", 1)) == (
        Bound(0, 1, 1, 0, 16, signed=False),
    )


def test_a_number_that_may_be_anything_has_no_bounds() -> None:
    assert bounds(Check([], [], low=0, high=255), member("u8", 1)) == ()
    assert bounds(None, member("u32", 4)) == ()


def test_a_divisor_is_never_zero() -> None:
    (found,) = bounds(Check([], ["divisor"], "nonzero"), member("int", 4))
    assert (found.nonzero, found.signed, found.low, found.high) == (True, True, -(2**31), 2**31 - 1)


@pytest.fixture(scope="module")
def network(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return made(kernel, tmp_path_factory.mktemp("network"), {})


def made(kernel: Kernel, folder: Path, other: dict[str, Any]) -> Generated:
    """Both halves by the example's plan, of which something else is wished."""
    plan = load(EXAMPLES / "e1000.plan.toml")
    answers = file.load(EXAMPLES / "e1000.annotations.toml").answers()
    whole = subject.load(kernel, "e1000", "field", None, subject.Known(None, plan.contexts))
    found = survey(whole.graph, plan.sides(), kernel.name, answers)
    return generate(
        kernel, kernel.module("e1000"), found, replace(Wishes.of(plan, answers), **other), folder
    )


def view(generated: Generated, entry: str) -> dict[str, Field]:
    return {one.path: one for one in generated.border.table.views[entry]["net_device"]}


def call(generated: Generated, name: str) -> Call:
    return next(one for one in generated.border.table.calls if one.name == name)


@pytest.mark.kernel
def test_elements_are_counted_in_the_struct_that_the_pointer_lies_in(network: Generated) -> None:
    ring = view(network, f"{ETHTOOL}:e1000_get_ringparam")["e1000_adapter:tx_ring"]
    declaration, expression, _ = network.border.table.counts[ring.count]
    assert (
        declaration
        == f"const struct e1000_adapter *this = base + {network.border.behind['net_device'][1]};"
    )
    assert expression == "this->num_tx_queues"


@pytest.mark.kernel
def test_memory_of_numbers_crosses_in_its_full_length(network: Generated) -> None:
    data = network.border.table.parameters[f"{ETHTOOL}:e1000_get_ethtool_stats"][2]
    assert (data.name, data.type) == ("data", "bytes")
    assert network.border.table.counts[data.count][1] == "(stats->n_stats) * sizeof(*data)"


@pytest.mark.kernel
def test_a_buffer_that_is_called_down_with_is_as_long_as_another_argument_says(
    network: Generated,
) -> None:
    address = call(network, "dev_addr_mod").arguments[2]
    assert (address.way, address.size, address.counted, address.reads) == ("COUNTED", 1, 3, True)


@pytest.mark.kernel
def test_a_buffer_of_a_fixed_length_needs_no_other_argument(network: Generated) -> None:
    address = call(network, "e1000_rar_set").arguments[1]
    assert (address.way, address.size, address.counted) == ("COUNTED", 6, 8)


@pytest.mark.kernel
def test_what_the_user_half_writes_is_kept_in_the_range_of_its_own_code(network: Generated) -> None:
    (found,) = view(network, f"{MAIN}:e1000_watchdog")["e1000_adapter:tx_timeout_factor"].bounds
    assert (found.low, found.high) == (0, 16)


@pytest.mark.kernel
@pytest.mark.parametrize("entry", ["e1000_get_ethtool_stats", "e1000_diag_test"])
def test_the_name_of_an_interface_which_is_only_printed_does_not_come_back(
    network: Generated, entry: str
) -> None:
    table = network.border.table
    views = [table.views[key] for key in table.views if key.endswith(f":{entry}")]
    assert not [
        one.path
        for each in views
        for one in each["net_device"]
        if one.path == "name" and one.written
    ]


@pytest.mark.kernel
def test_of_an_interface_no_member_comes_back_that_finds_it(network: Generated) -> None:
    # A new card is given its name by the function that makes it, before anything can find it.
    views = [
        view for entry, view in network.border.table.views.items() if entry != f"{MAIN}:e1000_probe"
    ]
    written = {
        one.path
        for each in views
        for one in each.get("net_device", ())
        if one.written and ":" not in one.path
    }
    assert not written & {"name", "state", "ifindex", "reg_state"}, written


def half(generated: Generated, half: str, unit: str) -> str:
    return (generated.folder / half / f"{unit}.c").read_text()


def function(text: str, name: str) -> str:
    """From the line of a function's name, where its body follows, to the brace that closes it."""
    found = re.search(rf"^\S.*\b{name}\([^;]*?\)\n{{\n.*?^}}", text, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[0]


@pytest.mark.kernel
def test_a_work_item_that_the_user_half_sets_up_runs_what_the_kernel_half_has_under_that_name(
    network: Generated,
) -> None:
    work, code = call(network, "split_init_delayed_work").arguments
    assert (work.type, code.type) == ("delayed_work", "void (*)(struct work_struct *)")
    assert ("e1000_watchdog", code.type) in [
        (symbol.name, symbol.type) for symbol in network.border.table.symbols
    ]


@pytest.mark.kernel
def test_a_work_item_whose_upcall_fails_is_queued_again(network: Generated) -> None:
    stub = function(half(network, "kernel", "e1000_main"), "e1000_watchdog")
    assert re.search(r"if \(split_upcall\(.*\)\)\n\t\tsplit_again_delayed\(work\);", stub)


@pytest.mark.kernel
def test_a_function_that_is_called_down_through_a_pointer_is_a_symbol(network: Generated) -> None:
    assert "e1000_alloc_jumbo_rx_buffers" in [
        symbol.name for symbol in network.border.table.symbols
    ]
    assert call(network, "e1000_alloc_jumbo_rx_buffers").own


@pytest.mark.kernel
def test_no_pointer_of_a_call_is_null(network: Generated) -> None:
    condition = function(half(network, "kernel", "e1000_main"), "split_requires_e1000_set_rx_mode")
    assert "return netdev;" in condition
    assert call(network, "request_irq").requires.startswith(
        "handler && name && dev && (split_is_own_irq(irq)"
    )


@pytest.mark.kernel
def test_a_recovery_whose_work_does_not_wait_for_a_user_half_is_refused(
    kernel: Kernel, tmp_path: Path
) -> None:
    with pytest.raises(
        Refusal, match=r"recovery: e1000_adapter\.reset_task would be queued again and again"
    ):
        made(kernel, tmp_path, {"without": {}})


@pytest.mark.kernel
def test_a_plan_says_which_pointer_may_be_null(kernel: Kernel, tmp_path: Path) -> None:
    generated = made(kernel, tmp_path, {"nullable": frozenset({"request_irq(dev)"})})
    assert call(generated, "request_irq").requires.startswith(
        "handler && name && (split_is_own_irq(irq)"
    )


@pytest.mark.kernel
def test_a_plan_that_names_what_no_call_has_as_nullable_is_refused(
    kernel: Kernel, tmp_path: Path
) -> None:
    with pytest.raises(Refusal, match=r"nullable: request_irq\(irq\) is no pointer"):
        made(kernel, tmp_path, {"nullable": frozenset({"request_irq(irq)"})})


@pytest.mark.kernel
def test_functions_that_run_alone_begin_so_in_the_kernel_half_and_are_marked_in_the_table(
    network: Generated,
) -> None:
    assert call(network, "e1000_up").alone
    assert not call(network, "e1000_down").alone
    for name in ("e1000_up", "e1000_setup_tx_resources"):
        assert "{\n\tSPLIT_ALONE;\n" in function(half(network, "kernel", "e1000_main"), name)
    assert "\tSPLIT_ALONE;\n" in function(
        half(network, "kernel", "e1000_ethtool"), "e1000_set_ringparam"
    )
    assert "{\n\tSPLIT_ALONE;\n" in function(
        half(network, "kernel", "e1000_main"), "split_undo_e1000_setup_tx_resources"
    )


@pytest.mark.kernel
def test_a_plan_that_has_what_is_not_in_the_kernel_half_run_alone_is_refused(
    kernel: Kernel, tmp_path: Path
) -> None:
    with pytest.raises(Refusal, match=r"alone: e1000_set_mac is no function of the kernel half"):
        made(kernel, tmp_path, {"alone": frozenset({"e1000_set_mac"})})


@pytest.mark.kernel
def test_where_the_user_half_cannot_be_asked_the_kernel_answers_instead(network: Generated) -> None:
    stub = function(half(network, "kernel", "e1000_ethtool"), "e1000_get_link")
    assert "if (!split_asks(split_host))\n\t\treturn ethtool_op_get_link(netdev);" in stub


@pytest.mark.kernel
def test_what_must_not_begin_without_a_user_half_is_refused_or_runs_later(
    network: Generated,
) -> None:
    rings = function(half(network, "kernel", "e1000_ethtool"), "e1000_set_ringparam")
    assert "{\n\tif (!split_asks(split_host))\n\t\treturn -EIO;\n" in rings
    reset = function(half(network, "kernel", "e1000_main"), "e1000_reset_task")
    assert "{\n\tif (!split_asks(split_host))\n\t\treturn split_again(work);\n" in reset


@pytest.mark.kernel
def test_what_the_kernel_half_could_not_have_done_is_done_anew(network: Generated) -> None:
    stub = function(half(network, "kernel", "e1000_main"), "e1000_reset")
    assert "if (netif_running(adapter->netdev)) schedule_work(&adapter->reset_task);" in stub
    let_go = "ew32(EECD, er32(EECD) & ~(E1000_EECD_CS | E1000_EECD_SK | E1000_EECD_REQ))"
    assert stub.index(let_go) < stub.index("schedule_work(")


@pytest.mark.kernel
def test_what_must_be_done_whatever_becomes_of_the_user_half_the_kernel_half_does_itself(
    network: Generated,
) -> None:
    stub = function(half(network, "kernel", "e1000_main"), "e1000_clean_all_tx_rings")
    assert re.search(
        r"if \(split_upcall\(.*\)\)\n\t\te1000_clean_tx_ring\(adapter, adapter->tx_ring\);", stub
    )


@pytest.mark.kernel
def test_what_a_call_takes_is_given_back_by_the_call_that_belongs_to_it(network: Generated) -> None:
    taken = call(network, "request_irq").undo
    assert taken == Undo("free_irq", (0, 4), 1)
    assert "free_irq((unsigned int)arguments[0], (void *)arguments[4]);" in half(
        network, "kernel", "e1000_main"
    )
    assert call(network, "e1000_setup_tx_resources").undo == Undo(
        "e1000_free_tx_resources", (0, 1), 1
    )


@pytest.mark.kernel
def test_a_card_that_receives_is_stopped_before_its_rings_are_given_back(
    network: Generated,
) -> None:
    stop = function(half(network, "kernel", "e1000_main"), "split_undo_e1000_configure_rx")
    assert "struct e1000_adapter *adapter = (struct e1000_adapter *)arguments[0];" in stop
    assert "ew32(RCTL, er32(RCTL) & ~E1000_RCTL_EN);" in stop


@pytest.mark.kernel
def test_a_word_that_both_halves_change_never_comes_back(network: Generated) -> None:
    views = network.border.table.views.values()
    kinds = {
        one.kind
        for each in views
        for one in each.get("net_device", ())
        if one.path == "e1000_adapter:flags"
    }
    assert kinds == {"WORD"}
    assert {
        one.kind
        for each in views
        for one in each.get("net_device", ())
        if one.path == "e1000_adapter:tx_fifo_stall"
    } == {"WORD"}


@pytest.mark.kernel
def test_an_interrupt_is_requested_for_a_handler_and_for_what_all_handlers_take_it_for(
    network: Generated,
) -> None:
    arguments = call(network, "request_irq").arguments
    assert arguments[1].type == "irqreturn_t (*)(int, void *)"
    assert arguments[4].type == "net_device"


@pytest.mark.kernel
def test_a_number_that_a_call_sets_is_no_pointer(network: Generated) -> None:
    word = call(network, "pci_read_config_word").arguments[2]
    assert (word.way, word.size) == ("NUMBER", 2)


@pytest.mark.kernel
def test_a_limit_that_a_person_gives_bounds_what_comes_back(network: Generated) -> None:
    views = network.border.table.views[f"{MAIN}:e1000_probe"]
    (count,) = next(one for one in views["e1000_tx_ring"] if one.path == "count").bounds
    assert (count.low, count.high) == (48, 4096)


@pytest.mark.kernel
def test_a_text_that_the_user_half_may_change_keeps_its_zero(network: Generated) -> None:
    probed = view(network, f"{MAIN}:e1000_probe")
    assert probed["name"].texts == (15,)
    assert probed["e1000_adapter:hw.mac_addr"].texts == ()
    views = network.border.table.views[f"{ETHTOOL}:e1000_get_drvinfo"]
    told = {one.path: one.texts for one in views["ethtool_drvinfo"]}
    assert told["bus_info"] == (31,)
    # By which the kernel knows the driver; the array is as long as the text.
    (own,) = views["variable e1000_driver_name"]
    assert own.texts == (5,)
    assert (
        '"e1000_driver_name", 0, 6, SPLIT_DATA, 1, .texts = (const unsigned int[]){ 5 }, '
        ".ntexts = 1 }" in (network.folder / "tables.c").read_text()
    )


@pytest.mark.kernel
def test_a_mutex_by_which_the_kernel_guards_its_own_structs_is_not_the_user_halfs_to_take(
    network: Generated,
) -> None:
    inside = {
        name: [inner for inner, _ in rows] for name, rows in network.border.table.inside.items()
    }
    assert "kobject" in inside["device"]
    assert "mutex" not in inside["device"]


@pytest.mark.kernel
def test_what_must_be_so_before_a_call_is_asked_of_the_kernels_objects(network: Generated) -> None:
    asked = function(half(network, "kernel", "e1000_main"), "split_requires_napi_enable")
    assert "split_may_enable(n)" in asked  # of any driver
    assert "adapter->tx_ring->buffer_info" in asked  # of this one
    assert asked.count("return n && ") == 1
    assert (
        ".requires = KERNEL_HALF(split_requires_napi_enable)"
        in (network.folder / "tables.c").read_text()
    )


@pytest.mark.kernel
def test_an_entry_that_says_it_has_made_rings_is_asked_for_them(network: Generated) -> None:
    asked = function(
        half(network, "kernel", "e1000_main"), "split_ensures_e1000_setup_all_tx_resources"
    )
    assert "struct e1000_adapter *adapter" in asked
    assert "adapter->tx_ring->buffer_info" in asked
    assert (
        ".ensures = KERNEL_HALF(split_ensures_e1000_open)"
        in (network.folder / "tables.c").read_text()
    )


@pytest.mark.kernel
@pytest.mark.parametrize("kind", ["tx", "rx"])
def test_rings_that_the_user_half_only_says_to_have_freed_are_freed_by_the_kernel_half(
    network: Generated, kind: str
) -> None:
    main, name = half(network, "kernel", "e1000_main"), f"e1000_free_all_{kind}_resources"
    assert f"!adapter->{kind}_ring->buffer_info" in function(main, f"split_ensures_{name}")
    assert f"e1000_free_{kind}_resources(adapter, adapter->{kind}_ring)" in function(main, name)
    assert (
        f".ensures = KERNEL_HALF(split_ensures_{name})" in (network.folder / "tables.c").read_text()
    )


@pytest.mark.kernel
def test_the_length_of_buffers_stays_while_there_are_any(network: Generated) -> None:
    (length,) = (
        one
        for one in network.border.table.views[f"{MAIN}:e1000_change_mtu"]["net_device"]
        if one.path == "e1000_adapter:rx_buffer_len"
    )
    assert length.written
    _, asked, _ = network.border.table.conditions[length.requires]
    assert "object->rx_ring->next_to_use == object->rx_ring->next_to_clean" in asked


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("requires", "ensures"), [({"e1000_nothing": "1"}, {}), ({}, {"e1000_xmit_frame": "1"})]
)
def test_a_condition_of_what_is_no_call_or_no_entry_is_refused(
    network: Generated,
    kernel: Kernel,
    tmp_path: Path,
    requires: dict[str, str],
    ensures: dict[str, str],
) -> None:
    wishes = replace(network.border.wishes, requires=requires, ensures=ensures)
    with pytest.raises(
        Refusal, match=r"is no (function that the user half calls|entry of the user half)"
    ):
        generate(kernel, kernel.module("e1000"), network.border.survey, wishes, tmp_path)


@pytest.mark.kernel
def test_seven_tenths_of_the_lines_are_in_the_user_half(network: Generated) -> None:
    found = summary(network, None)
    assert found.kernel_lines <= 0.3 * found.lines


@pytest.mark.kernel
@pytest.mark.parametrize("maps", [False, True])
def test_registers_are_mapped_only_where_the_plan_says_so(
    network: Generated, monkeypatch: pytest.MonkeyPatch, *, maps: bool
) -> None:
    plan = load(EXAMPLES / "e1000.plan.toml")
    plan.mmio = Mmio(maps) if maps else plan.mmio
    monkeypatch.setattr(network.border, "wishes", Wishes.of(plan, {}))
    assert f".maps = {int(maps)}," in tables.render(network.border)


@pytest.mark.kernel
def test_where_the_kernel_half_has_its_registers_the_user_half_can_set_to_mapped_registers_only(
    network: Generated,
) -> None:
    registers = view(network, f"{MAIN}:e1000_probe")["e1000_adapter:hw.hw_addr"]
    assert (registers.kind, registers.type, registers.written) == ("OPAQUE", "io", True)
