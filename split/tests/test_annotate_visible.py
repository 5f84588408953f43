"""What a downcall shows the kernel and brings back, what returns at all, and how it is checked."""

from __future__ import annotations

from border import FILE, OPEN, SEND, Border, function, number, reads
from ring3_split.annotate.survey import Survey, survey
from ring3_split.driver import Driver
from ring3_split.graph import link
from ring3_split.model import (
    VERSION,
    Access,
    Assigned,
    Call,
    Data,
    Handed,
    Layout,
    Member,
    Module,
    ModuleFacts,
    Shape,
    Stored,
    Unit,
    Used,
    Variable,
)
from ring3_split.prototypes import Prototype


def look(border: Border, prototypes: dict[str, Prototype] | None = None, **facts: object) -> Survey:
    """The border with facts that the fixture has no words for."""
    unit = Unit(VERSION, FILE, tuple(border.functions.values()), tuple(border.stored))
    known = (
        border.accesses,
        border.allocations,
        border.shapes,
        border.touched,
        border.variables,
        border.layouts,
    )
    data = Data(VERSION, FILE, *known, **facts)  # type: ignore[arg-type]
    driver = Driver("nic", (ModuleFacts(Module("nic", "d", (FILE,)), (unit,)),), data=(data,))
    return survey(link(driver, "field"), border.sides, "6.12", None, prototypes)


def writes(name: str) -> Access:
    return Access(name, "w", (11,), base="param 0")


def gives(name: str, to: str) -> Access:
    return Access(name, "a", (11,), base="param 0", to=to)


def test_what_was_set_before_a_call_of_the_kernel_half_is_shown_to_it() -> None:
    border = Border(number("a", 0), number("b", 4)).calls("nic_open", Call("nic_send", 11))
    border.accesses = {OPEN: (writes("nic.a"), writes("nic.b")), SEND: reads("nic.a")}
    (downcall,) = look(border).border.downcalls
    assert (downcall.scope, downcall.reads, downcall.copy_out) == (
        "code",
        ["nic.a"],
        {"nic": [(0, 4)]},
    )


def test_what_the_kernel_half_sets_comes_back_from_a_call_of_it() -> None:
    border = Border(number("a", 0)).calls("nic_open", Call("nic_send", 11))
    border.accesses = {OPEN: reads("nic.a"), SEND: (writes("nic.a"),)}
    (downcall,) = look(border).border.downcalls
    assert (downcall.writes, downcall.copy_in) == (["nic.a"], {"nic": [(0, 4)]})


def test_a_call_of_the_kernel_shows_no_more_than_its_arguments_lead_to() -> None:
    border = Border(number("a", 0)).calls("nic_open", Call("pci_set_master", 11))
    border.accesses = {OPEN: (writes("nic.a"),), SEND: reads("nic.a")}
    (downcall,) = look(
        border, {"pci_set_master": Prototype("void", ("struct pci_dev *",))}
    ).border.downcalls
    assert (downcall.reads, downcall.parameters[0].type) == ([], "struct pci_dev *")


def test_a_call_that_publishes_shows_all_that_the_kernel_half_reads() -> None:
    border = Border(number("a", 0)).calls("nic_open", Call("request_irq", 11))
    border.accesses = {OPEN: (writes("nic.a"),), SEND: reads("nic.a")}
    (downcall,) = look(border).border.downcalls
    assert (downcall.scope, downcall.reads) == ("all", ["nic.a"])


def test_a_call_that_enters_the_driver_names_the_functions() -> None:
    border = Border(number("a", 0)).calls("nic_open", Call("register_netdev", 11))
    border.stored.append(Stored("nic_send", 52, field="net_device_ops.ndo_init"))
    (downcall,) = look(border).border.downcalls
    assert downcall.runs == [SEND]


def test_an_address_that_goes_to_a_pointer_to_const_is_only_read() -> None:
    border = Border(number("a", 0)).calls("nic_open", Call("look_at", 11))
    border.accesses = {OPEN: (gives("nic.a", "look_at:0"),)}
    entry = look(border, {"look_at": Prototype("void", ("const int *",))}).border.entries[0]
    assert (entry.reads, entry.writes) == (["nic.a"], [])


def test_an_address_that_goes_to_a_function_of_the_driver_is_used_as_that_does() -> None:
    helper = function("peek", ("p", "int *"), line=60)
    border = Border(number("a", 0)).adds(helper).calls("nic_open", Call("peek", 11))
    border.accesses = {OPEN: (gives("nic.a", "peek:0"),)}
    assert look(border, through={helper.id: {"0": "r"}}).border.entries[0].writes == []
    assert look(border, through={helper.id: {"0": "w"}}).border.entries[0].writes == ["nic.a"]


def test_an_address_that_is_lost_may_be_written() -> None:
    border = Border(number("a", 0)).calls("nic_open", Call("unknown", 11))
    border.accesses = {OPEN: (gives("nic.a", "unknown:0"),)}
    assert look(border).border.entries[0].writes == ["nic.a"]


def test_an_atomic_operation_on_a_shared_word_is_no_write_that_goes_back() -> None:
    border = Border(number("a", 0)).calls("nic_open", Call("set_bit", 11))
    border.accesses = {OPEN: (gives("nic.a", "set_bit:1"),), SEND: reads("nic.a")}
    found = look(border).border
    assert found.entries[0].writes == []
    assert (found.words["nic.a"].place, found.words["nic.a"].operations) == ("shared", ["set_bit"])
    assert found.types["nic"].members["a"].atomic
    assert found.downcalls[0].way == "atomic"


def test_a_word_that_only_the_user_half_touches_is_its_own() -> None:
    border = Border(number("a", 0)).calls("nic_open", Call("set_bit", 11))
    border.accesses = {OPEN: (gives("nic.a", "set_bit:1"),)}
    assert look(border).border.words["nic.a"].place == "local"


def test_what_may_come_back_is_sent_to_be_compared_with_and_each_member_by_itself() -> None:
    border = Border(number("a", 0), number("b", 4))
    border.accesses = {OPEN: (writes("nic.a"), writes("nic.b"))}
    (entry,) = look(border).border.entries
    assert (entry.copy_in, entry.copy_out) == ({"nic": [(0, 8)]}, {"nic": [(0, 4), (4, 4)]})


def checked(*uses: Used, assigned: tuple[Assigned, ...] = ()) -> object:
    border = Border(number("a", 0))
    border.accesses = {OPEN: (writes("nic.a"),), SEND: reads("nic.a")}
    return look(border, used={SEND: uses}, assigned={OPEN: assigned}).border.checks["nic.a"]


def test_an_index_of_the_kernel_half_must_be_inside_of_its_array() -> None:
    check = checked(Used("field nic.a", "index", 31, "nic.a", 16))
    assert (check.check, check.low, check.high, check.source) == ("range", 0, 15, "array")  # type: ignore[attr-defined]


def test_an_index_that_is_cut_to_its_array_needs_no_check() -> None:
    check = checked(Used("field nic.a", "index", 31, "nic.a & 7", 8, 7))
    assert (check.check, check.remains) == ("", "")  # type: ignore[attr-defined]


def test_an_index_that_is_computed_with_remains_to_be_looked_at() -> None:
    check = checked(Used("field nic.a", "index", 31, "nic.a + 1", 8, -1, True))
    assert (check.check, check.remains) == ("", "index that is computed, d/a.c:31")  # type: ignore[attr-defined]


def test_a_divisor_must_not_be_zero() -> None:
    assert checked(Used("field nic.a", "divisor", 31)).check == "nonzero"  # type: ignore[attr-defined]


def test_a_member_that_is_set_to_a_few_numbers_can_come_back_as_no_other() -> None:
    few = (Assigned("nic.a", 11, 2, 2, "2"), Assigned("nic.a", 12, 5, 5, "5"))
    check = checked(Used("field nic.a", "loop", 31, "local i"), assigned=few)
    assert (check.low, check.high, check.source, check.remains) == (0, 5, "assigned", "")  # type: ignore[attr-defined]


def test_the_end_of_a_loop_without_a_range_remains() -> None:
    check = checked(Used("field nic.a", "loop", 31, "local i"))
    assert check.remains == "loop without a limit, d/a.c:31"  # type: ignore[attr-defined]


def test_a_table_that_the_kernel_keeps_is_listed_with_the_argument() -> None:
    border = Border(number("a", 0)).calls("nic_open", Call("snd_pcm_hw_constraint_ratnums", 11))
    border.variables = {"clocks": Variable("const struct ratnums", "d/a.c", 3)}
    handed = {OPEN: (Handed("clocks", "snd_pcm_hw_constraint_ratnums:3", 11),)}
    (kept,) = look(border, handed=handed).border.kept.items()
    assert (kept[0], kept[1].to, kept[1].keeps) == (
        "clocks",
        ["snd_pcm_hw_constraint_ratnums:3"],
        True,
    )


def test_a_string_that_a_call_only_reads_is_not_kept() -> None:
    border = Border(number("a", 0)).calls("nic_open", Call("pci_request_regions", 11))
    border.variables = {"label": Variable("char[4]", "d/a.c", 3)}
    assert (
        not look(border, handed={OPEN: (Handed("label", "pci_request_regions:1", 11),)})
        .border.kept["label"]
        .keeps
    )


def test_a_pointer_into_an_area_is_listed_with_it() -> None:
    border = Border(
        Member("slots", "char *[4]", 0, 32, pointee="char", count=4),
        Member("area", "char *", 32, 8, pointee="char"),
    )
    shape = Shape("interior", "field nic.slots", 12, "field nic.area + local i * 8")
    (found,) = border.sees(shape).look().border.interior["nic.slots"]
    assert (found.inside, found.offset) == ("field nic.area", "local i * 8")


def test_a_suspend_is_called_when_no_process_can_run() -> None:
    border = Border(number("a", 0))
    border.stored = [
        Stored("nic_open", 50, field="dev_pm_ops.suspend"),
        Stored("nic_send", 51, field="ops.send"),
    ]
    assert "frozen" in border.look().border.entries[0].frozen


def test_a_work_that_queues_itself_is_rearmed_by_the_kernel_half() -> None:
    border = Border(number("a", 0)).calls("nic_open", Call("queue_work_on", 11))
    border.stored = [Stored("nic_open", 50, field="work_struct.func", owner="nic.dog")]
    border.accesses = {OPEN: (gives("nic.dog", "queue_work_on:2"),)}
    (rearm,) = border.look().border.entries[0].rearm
    assert (rearm.by, rearm.object, rearm.where) == ("queue_work_on", "nic.dog", "d/a.c:11")


def test_a_copy_from_a_process_needs_the_task_of_the_caller() -> None:
    found = Border(number("a", 0)).calls("nic_open", Call("_copy_from_user", 11)).look().border
    assert (found.entries[0].task, found.downcalls[0].task) == (["_copy_from_user"], True)


def test_a_call_that_makes_an_object_says_where_it_is_found() -> None:
    found = Border(number("a", 0)).calls("nic_open", Call("snd_devm_card_new", 11)).look().border
    made = found.downcalls[0].allocates
    assert made is not None
    assert (made.struct, made.at, made.private) == (
        "snd_card",
        "argument 5",
        "snd_card.private_data",
    )


def test_a_member_of_an_unnamed_struct_crosses_with_the_struct_around_it() -> None:
    border = Border(number("a", 0))
    border.layouts["nic.u"] = Layout("nic.u", "d/nic.h", 20, 4, (number("low"),))
    border.accesses = {OPEN: (writes("nic.u.low"),)}
    assert border.look().border.entries[0].writes == ["nic.u.low"]


def test_the_address_of_a_lock_is_no_data() -> None:
    border = Border(Member("lock", "spinlock_t", 0, 4, struct="spinlock"))
    border.accesses = {OPEN: (gives("nic.lock", "somewhere:0"),)}
    assert border.look().border.entries[0].writes == []


def test_an_entry_lists_what_its_code_calls_and_which_variables_it_touches() -> None:
    border = Border(number("a", 0)).calls("nic_open", Call("kfree", 11))
    border.variables, border.touched = (
        {"debug": Variable("int", "d/a.c", 3)},
        {OPEN: {"debug": "r"}},
    )
    (entry,) = border.look().border.entries
    assert (entry.calls, entry.variables) == (["kfree"], {"debug": "r"})
