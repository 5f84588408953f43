"""What crosses between the halves of a plan."""

from __future__ import annotations

from border import FILE, OPEN, SEND, Border, function, nic, number, pointer, reads
from ring3_split.annotate.survey import Survey
from ring3_split.model import Access, Call, Indirect, Layout, Member, Shape, Stored, Variable


def ways(found: Survey) -> dict[str, str]:
    return {downcall.function: downcall.way for downcall in found.border.downcalls}


def test_a_user_function_that_the_kernel_knows_is_an_entry() -> None:
    (entry,) = Border(number("n")).look().border.entries
    assert (entry.function, entry.called_by, entry.where) == (OPEN, ["ops.open"], "d/a.c:10")


def test_a_user_function_that_the_kernel_half_calls_is_an_entry() -> None:
    border = Border(number("n")).adds(function("help", line=60)).calls("nic_send", Call("help", 31))
    entries = {entry.function: entry.called_by for entry in border.look().border.entries}
    assert entries[f"{FILE}:help"] == [SEND]


def test_a_user_function_that_only_user_functions_call_is_none() -> None:
    border = Border(number("n")).adds(function("help", line=60)).calls("nic_open", Call("help", 11))
    assert [entry.function for entry in border.look().border.entries] == [OPEN]


def test_a_replicated_function_is_neither_entry_nor_downcall() -> None:
    border = Border(number("n")).adds(function("help", line=60), side="both")
    border.calls("nic_open", Call("help", 11)).calls("nic_send", Call("help", 31))
    found = border.look().border
    assert [entry.function for entry in found.entries] == [OPEN]
    assert found.downcalls == []


def test_fields_of_all_that_an_entry_may_run_are_its_own() -> None:
    border = Border(number("n")).adds(function("help", line=60)).calls("nic_open", Call("help", 11))
    border.accesses = {f"{FILE}:help": (Access("nic.n", "w", (61,)),)}
    (entry,) = border.look().border.entries
    assert (entry.reads, entry.writes, entry.functions) == ([], ["nic.n"], 2)


def test_what_a_function_of_the_kernel_half_touches_is_not_the_entrys() -> None:
    border = Border(number("n")).calls("nic_open", Call("nic_send", 11))
    border.accesses = {SEND: reads("nic.n")}
    assert border.look().border.entries[0].reads == []


def test_a_called_function_of_the_kernel_half_is_a_downcall() -> None:
    border = Border(number("n")).calls("nic_open", Call("nic_send", 11))
    (downcall,) = border.look().border.downcalls
    assert (downcall.function, downcall.way, downcall.sites) == (SEND, "driver", ["d/a.c:11"])


def test_a_function_of_the_kernel_has_the_way_of_the_table() -> None:
    border = Border(number("n")).calls(
        "nic_open", Call("pci_enable_device", 11), Call("strlen", 12), Call("readl", 13)
    )
    assert ways(border.look()) == {
        "pci_enable_device": "downcall",
        "strlen": "local",
        "readl": "mmio",
    }


def test_a_downcall_says_what_its_pointers_are() -> None:
    border = Border(number("n")).calls(
        "nic_open", Call("pci_read_config_word", 11), Call("free_netdev", 12)
    )
    read, free = sorted(border.look().border.downcalls, key=lambda one: one.function, reverse=True)
    assert (read.arguments, free.frees) == ({2: "out single"}, 0)


def test_a_header_inline_that_the_table_does_not_name_is_taken_apart() -> None:
    inline = function("inner", file="include/x.h", calls=(Call("pci_save_state", 12),))
    border = Border(number("n")).adds(inline).calls("nic_open", Call("inner", 11))
    (downcall,) = border.look().border.downcalls
    assert (downcall.function, downcall.sites) == ("pci_save_state", ["d/a.c:11 (through inner)"])


def test_a_header_inline_that_the_table_names_is_called_whole() -> None:
    inline = function("netif_stop_queue", file="include/x.h", calls=(Call("set_something", 12),))
    border = Border(number("n")).adds(inline).calls("nic_open", Call("netif_stop_queue", 11))
    assert ways(border.look()) == {"netif_stop_queue": "downcall"}


def test_a_member_says_what_each_half_does_to_it() -> None:
    border = Border(number("n"))
    border.accesses = {OPEN: (Access("nic.n", "w", (11,)),), SEND: reads("nic.n")}
    use = border.look().border.types["nic"].members["n"]
    assert (use.user, use.kernel) == ("w", "r")


def test_the_address_of_a_member_may_be_read_and_written() -> None:
    border = Border(Member("mac", "u8[6]", 0, 6, count=6))
    border.accesses = {OPEN: (Access("nic.mac", "a", (11,)),)}
    assert border.look().border.types["nic"].members["mac"].user == "rw"


def test_the_address_of_an_embedded_struct_touches_nothing_itself() -> None:
    border = Border(Member("hw", "struct hw", 0, 8, struct="hw"))
    border.layouts["hw"] = Layout("hw", "d/nic.h", 20, 8, (number("id"),))
    border.accesses = {OPEN: (Access("nic.hw", "a", (11,)), *reads("hw.id"))}
    found = border.look().border
    assert found.entries[0].reads == ["hw.id"]
    assert found.types["nic"].members["hw"].struct == "hw"


def test_a_member_without_bytes_does_not_count() -> None:
    border = Border(number("n"))
    border.layouts["nic"] = nic(number("n"), Member("__cacheline_group_begin__tx", "u8[0]", 4, 0))
    assert border.look().border.types["nic"].count == 1


def test_a_struct_that_stays_in_the_user_half_does_not_cross() -> None:
    border = Border(number("n"))
    border.layouts["option"] = Layout("option", "d/a.c", 3, 8, (number("value"),))
    border.accesses[OPEN] += reads("option.value", base="local option")
    found = border.look().border
    assert list(found.types) == ["nic"]
    assert found.entries[0].reads == ["nic.n"]


def test_an_embedded_struct_crosses_with_the_struct_around_it() -> None:
    border = Border(Member("rom", "struct rom", 0, 8, struct="rom"))
    border.layouts["rom"] = Layout("rom", "d/nic.h", 20, 8, (number("words"),))
    border.accesses = {OPEN: (Access("rom.words", "r", (11,), within="nic.rom", base="param 0"),)}
    found = border.look().border
    assert found.entries[0].reads == ["rom.words"]
    assert (found.types["nic"].members["rom"].struct, found.types["nic"].members["rom"].user) == (
        "rom",
        "",
    )


def test_an_object_in_the_private_area_of_another_lies_behind_it() -> None:
    border = (
        Border(number("n"))
        .sees(Shape("cast", "call netdev_priv", 12, "nic"))
        .calls("nic_open", Call("netdev_priv", 12))
    )
    kind = border.look().border.types["nic"]
    assert (kind.behind, kind.by) == ("net_device", "netdev_priv")


def test_a_struct_that_a_kernel_function_returns_crosses() -> None:
    border = Border(number("n"))
    border.layouts["dev"] = Layout("dev", "include/dev.h", 3, 8, (number("value"),))
    border.accesses[OPEN] += reads("dev.value", base="call get_dev")
    assert "dev" in border.look().border.types


def test_bytes_of_neighbouring_fields_are_one_range() -> None:
    border = Border(number("a", 0), number("b", 4), number("c", 16))
    border.accesses = {OPEN: (*reads("nic.a", "nic.b", "nic.c"), Access("nic.b", "w", (12,)))}
    (entry,) = border.look().border.entries
    assert (entry.copy_in, entry.copy_out) == ({"nic": [(0, 8), (16, 4)]}, {"nic": [(4, 4)]})


def test_members_of_a_union_are_copied_once() -> None:
    border = Border(
        number("a", 0), Member("long", "u64", 0, 8, union=1), Member("short", "u32", 0, 4, union=1)
    )
    assert border.look().border.entries[0].copy_in == {"nic": [(0, 8)]}


def test_a_struct_that_is_read_by_computed_offsets_is_sent_whole() -> None:
    border = Border(number("n")).sees(Shape("arithmetic", "param 0", 12, "stat.offset"))
    assert border.look().border.entries[0].whole == ["nic"]


def test_a_step_back_to_the_struct_around_is_no_computed_offset() -> None:
    border = Border(number("n")).sees(Shape("arithmetic", "param 0", 12, "-200"))
    assert border.look().border.entries[0].whole == []


def test_a_call_through_a_pointer_of_the_kernel_is_a_downcall() -> None:
    border = Border(number("n"))
    border.functions["nic_open"] = function(
        "nic_open", indirect=(Indirect(7, 12, field="virtio_config_ops.get"),)
    )
    assert ways(border.look()) == {"virtio_config_ops.get": "downcall"}


def test_a_variable_of_the_driver_says_what_each_half_does_to_it() -> None:
    border = Border(number("n"))
    border.variables = {"debug": Variable("int", "d/a.c", 3)}
    border.touched = {OPEN: {"debug": "r"}, SEND: {"debug": "rw"}}
    shared = border.look().border.variables["debug"]
    assert (shared.user, shared.kernel, shared.type, shared.where, shared.way) == (
        "r",
        "rw",
        "int",
        "d/a.c:3",
        "",
    )


def test_a_variable_of_the_kernel_has_the_way_of_the_table() -> None:
    border = Border(number("n"))
    border.variables = {"jiffies": Variable(external=True), "strange": Variable(external=True)}
    border.touched = {OPEN: {"jiffies": "r", "strange": "r"}}
    found = border.look()
    assert {name: one.way for name, one in found.border.variables.items()} == {
        "jiffies": "read",
        "strange": "?",
    }
    assert found.questions["variable strange"].where == "d/a.c:10"


def test_a_descriptor_of_a_message_is_no_variable_that_crosses() -> None:
    border = Border(number("n"))
    border.variables = {"nic_open.__UNIQUE_ID_ddebug980": Variable("struct _ddebug", "d/a.c", 3)}
    border.touched = {OPEN: {"nic_open.__UNIQUE_ID_ddebug980": "rw"}}
    assert border.look().border.variables == {}


def test_a_downcall_with_functions_needs_the_symbol_table() -> None:
    border = Border(number("n")).calls("nic_open", Call("request_threaded_irq", 11))
    assert border.look().border.downcalls[0].symbols


def test_an_entry_of_a_callback_that_was_passed_names_the_function_and_argument() -> None:
    border = Border(number("n"))
    border.stored = [Stored("nic_open", 50, api="request_irq", argument=1)]
    assert border.look().border.entries[0].called_by == ["request_irq:1"]


def test_a_function_that_the_plan_does_not_name_stays_in_the_kernel() -> None:
    border = Border(pointer("next", "nic"))
    border.sides = {}
    assert border.look().border.entries == []
