"""What is inferred about a pointer, from which evidence, and what is asked."""

from __future__ import annotations

from border import FILE, OPEN, Border, function, inferred, known, number, pointer, reads
from ring3_split.model import Access, Allocation, Call, Layout, Member, Shape, Stored, Variable

RING = Layout(
    "ring", "d/nic.h", 30, 16, (Member("count", "int", 0, 4), Member("next", "int", 4, 4))
)


def with_ring(*shapes: Shape) -> Border:
    """struct nic with `struct ring *ring` and `int rings`.

    The user half touches members of a ring.
    """
    border = Border(pointer("ring", "ring"), number("rings", 16))
    border.layouts["ring"] = RING
    border.accesses[OPEN] += reads("ring.count", base="field nic.ring")
    return border.sees(*shapes)


def allocated(
    border: Border, size: str, api: str = "kcalloc", into: str = "field nic.ring"
) -> Border:
    border.allocations = {
        OPEN: (*border.allocations.get(OPEN, ()), Allocation(api, 12, size, into=into))
    }
    return border


def test_a_pointer_whose_members_only_are_touched_is_single() -> None:
    found = with_ring().look()
    assert inferred(found, "nic.ring") == "single"
    assert (
        str(found.inferred["nic.ring"].evidence[0])
        == "d/a.c:11: 1 places reach its members, none a neighbour"
    )


def test_an_indexed_pointer_of_unknown_length_is_asked() -> None:
    found = with_ring(Shape("index", "field nic.ring", 13, "i")).look()
    assert inferred(found, "nic.ring") == "asked"
    assert found.questions["nic.ring"].where == "d/nic.h:7"
    assert list(known(found, "nic.ring")) == ["d/a.c:13: indexed with i"]


def test_element_zero_is_no_neighbour() -> None:
    assert (
        inferred(with_ring(Shape("index", "field nic.ring", 13, "0")).look(), "nic.ring")
        == "single"
    )


def test_an_index_in_a_callee_counts() -> None:
    border = with_ring(Shape("flow", "field nic.ring", 12, "fill:0")).adds(
        function("fill", ("ring", "struct ring *"))
    )
    border.calls("nic_open", Call("fill", 12)).sees(
        Shape("index", "param 0", 61, "i"), function=f"{FILE}:fill"
    )
    assert inferred(border.look(), "nic.ring") == "asked"


def test_an_index_in_the_kernel_half_does_not() -> None:
    border = with_ring().sees(
        Shape("index", "field nic.ring", 31, "i"), function=f"{FILE}:nic_send"
    )
    assert inferred(border.look(), "nic.ring") == "single"


def test_the_length_of_an_array_comes_from_its_allocation() -> None:
    found = allocated(
        with_ring(Shape("index", "field nic.ring", 13, "i")), "nic.rings * sizeof(struct ring)"
    ).look()
    assert inferred(found, "nic.ring") == "array(rings)"
    assert "allocated by kcalloc" in str(found.inferred["nic.ring"].evidence[0])


def test_memory_for_one_object_is_single() -> None:
    assert inferred(allocated(with_ring(), "sizeof(struct ring)").look(), "nic.ring") == "single"


def test_a_length_that_the_holder_does_not_know_is_asked() -> None:
    found = allocated(with_ring(), "other.count * sizeof(struct ring)").look()
    assert inferred(found, "nic.ring") == "single"
    found = allocated(
        with_ring(Shape("index", "field nic.ring", 13, "i")), "other.count * sizeof(struct ring)"
    ).look()
    assert inferred(found, "nic.ring") == "asked"


def test_a_length_that_the_code_does_not_show_is_asked() -> None:
    found = allocated(
        with_ring(Shape("index", "field nic.ring", 13, "i")), "? * sizeof(struct ring)"
    ).look()
    assert inferred(found, "nic.ring") == "asked"
    assert (
        known(found, "nic.ring")[-1]
        == "d/a.c:12: allocated by kcalloc with ? * sizeof(struct ring) bytes"
    )


def test_an_index_that_is_always_below_a_member_gives_the_length() -> None:
    found = with_ring(
        Shape("index", "field nic.ring", 13, "< nic.rings"),
        Shape("index", "field nic.ring", 15, "< nic.rings"),
    ).look()
    assert inferred(found, "nic.ring") == "array(rings)"


def test_an_index_that_is_below_a_parameter_gives_the_length() -> None:
    border = (
        Border()
        .takes(("list", "u32 *"), ("count", "int"))
        .sees(Shape("index", "param 0", 13, "< param 1"))
    )
    assert inferred(border.look(), f"{OPEN}(list)") == "array(count)"


def test_a_parameter_of_a_callee_is_no_length_here() -> None:
    border = (
        Border()
        .takes(("list", "u32 *"), ("count", "int"))
        .sees(Shape("flow", "param 0", 12, "fill:0"))
    )
    border.adds(function("fill", ("what", "u32 *"), ("many", "int"))).calls(
        "nic_open", Call("fill", 12)
    )
    border.sees(Shape("index", "param 0", 61, "< param 1"), function=f"{FILE}:fill")
    assert inferred(border.look(), f"{OPEN}(list)") == "asked"


def test_an_index_that_is_below_one_member_here_and_anything_there_is_asked() -> None:
    found = with_ring(
        Shape("index", "field nic.ring", 13, "< nic.rings"),
        Shape("index", "field nic.ring", 15, "param 1"),
    ).look()
    assert inferred(found, "nic.ring") == "asked"


def test_a_pointer_variable_that_both_halves_use_is_annotated() -> None:
    border = Border(number("n")).sees(Shape("index", "global nics", 13, "i"))
    border.variables = {"nics": Variable("struct nic *", "d/a.c", 3)}
    border.touched = {OPEN: {"nics": "r"}, f"{FILE}:nic_send": {"nics": "w"}}
    found = border.look()
    assert inferred(found, "variable nics") == "asked"
    assert found.questions["variable nics"].where == "d/a.c:3"


def test_allocations_that_disagree_are_asked() -> None:
    border = allocated(
        with_ring(Shape("index", "field nic.ring", 13, "i")), "nic.rings * sizeof(struct ring)"
    )
    assert inferred(allocated(border, "4 * sizeof(struct ring)").look(), "nic.ring") == "asked"


def test_coherent_memory_is_for_the_device() -> None:
    border = Border(pointer("desc", "void", "void *"), number("size"))
    assert (
        inferred(
            allocated(border, "nic.size", "dma_alloc_coherent", "field nic.desc").look(), "nic.desc"
        )
        == "dma(size)"
    )


def test_a_struct_that_the_user_half_never_looks_into_is_a_handle() -> None:
    found = Border(pointer("napi", "napi_struct")).look()
    assert inferred(found, "nic.napi") == "handle"
    assert "touches no member of struct napi_struct" in str(found.inferred["nic.napi"].evidence[0])


def test_registers_are_known_by_their_access() -> None:
    border = Border(pointer("regs", "void", "void *")).sees(
        Shape("flow", "field nic.regs", 12, "readl:0")
    )
    assert inferred(border.calls("nic_open", Call("readl", 12)).look(), "nic.regs") == "io"


def test_a_pointer_to_a_function_is_a_symbol() -> None:
    assert (
        inferred(Border(pointer("clean", "fn", "void (*)(void)")).look(), "nic.clean") == "function"
    )


def test_a_table_that_is_initialised_with_functions_is_operations() -> None:
    assert inferred(Border(pointer("ops", "ops")).look(), "nic.ops") == "operations"


def test_a_void_pointer_is_what_it_is_used_as() -> None:
    border = with_ring(Shape("cast", "field nic.back", 12, "ring"))
    border.layouts["nic"] = Layout(
        "nic", "d/nic.h", 5, 64, (*border.layouts["nic"].members, pointer("back", "void", "void *"))
    )
    border.accesses[OPEN] += reads("nic.back")
    assert inferred(border.look(), "nic.back") == "single(struct ring)"


def test_a_void_pointer_through_which_members_are_reached_is_their_struct() -> None:
    border = Border(number("n")).takes(("data", "void *"))
    assert inferred(border.look(), f"{OPEN}(data)") == "single(struct nic)"


def test_a_void_pointer_is_what_is_put_into_it() -> None:
    border = Border(pointer("priv", "void", "void *")).sees(
        Shape("flow", "param 0", 12, "field nic.priv")
    )
    assert inferred(border.look(), "nic.priv") == "single(struct nic)"


def test_a_pointer_that_moves_back_to_the_struct_around_is_no_array() -> None:
    border = (
        Border(number("n"))
        .takes(("work", "struct work *"))
        .sees(Shape("arithmetic", "param 0", 12, "-200"))
    )
    assert inferred(border.look(), f"{OPEN}(work)") == "single"


def test_a_void_pointer_that_nobody_uses_is_asked() -> None:
    assert inferred(Border(pointer("data", "void", "void *")).look(), "nic.data") == "asked"


def test_characters_of_a_string_function_are_a_string() -> None:
    border = Border(pointer("name", "char", "char *")).sees(
        Shape("string", "field nic.name", 12, "strlen")
    )
    assert inferred(border.look(), "nic.name") == "string"


def test_a_buffer_that_a_string_is_written_to_is_not_sent_first() -> None:
    border = (
        Border(number("n"))
        .takes(("buf", "char *"))
        .sees(Shape("flow", "param 0", 12, "sysfs_emit:0"))
    )
    assert (
        inferred(border.calls("nic_open", Call("sysfs_emit", 12)).look(), f"{OPEN}(buf)")
        == "out string"
    )


def test_the_head_of_a_list_has_the_type_of_the_place_that_walks_it() -> None:
    border = Border(Member("work", "struct list_head", 0, 16, struct="list_head"))
    border.sees(Shape("list", "field nic.work", 12, "ring.link"))
    assert inferred(border.look(), "nic.work") == "list(struct ring, link)"


def test_a_list_that_the_user_half_never_walks_is_a_handle() -> None:
    assert (
        inferred(
            Border(Member("work", "struct list_head", 0, 16, struct="list_head")).look(), "nic.work"
        )
        == "handle"
    )


def test_an_embedded_array_needs_no_annotation() -> None:
    assert Border(Member("mac", "u8[6]", 0, 6, count=6)).look().items.keys() == {f"{OPEN}(nic)"}


def test_an_array_of_pointers_does() -> None:
    assert (
        inferred(
            Border(pointer("queues", "queue", "struct queue *[4]", count=4)).look(), "nic.queues"
        )
        == "handle"
    )


def kernels(*shapes: Shape) -> Border:
    """struct nic with a kernel struct, of which the user half touches a member differently."""
    border = Border(pointer("dev", "device"))
    border.layouts["device"] = Layout("device", "include/linux/device.h", 5, 8, (number("id"),))
    border.accesses[OPEN] += reads("device.id", base="call get")
    return border.sees(*shapes)


def test_a_struct_of_the_kernel_that_is_only_handed_on_is_a_handle() -> None:
    border = kernels(Shape("flow", "field nic.dev", 12, "put_device:0")).calls(
        "nic_open", Call("put_device", 12)
    )
    assert inferred(border.look(), "nic.dev") == "handle"


def test_a_struct_of_the_kernel_that_a_local_function_looks_at_is_an_object() -> None:
    border = kernels(Shape("flow", "field nic.dev", 12, "netdev_priv:0")).calls(
        "nic_open", Call("netdev_priv", 12)
    )
    assert inferred(border.look(), "nic.dev") == "single"


def test_a_member_of_the_kernel_is_what_the_table_says() -> None:
    border = kernels()
    border.layouts["device"] = Layout(
        "device", "include/linux/device.h", 5, 8, (pointer("init_name", "char", "const char *"),)
    )
    border.accesses[OPEN] += reads("device.init_name", base="field nic.dev")
    assert inferred(border.look(), "device.init_name") == "string"


def test_elements_at_constant_indices_are_as_many_as_the_highest_asks_for() -> None:
    border = (
        Border()
        .takes(("mac", "u8 *"))
        .sees(Shape("index", "param 0", 12, "5"), Shape("index", "param 0", 13, "4"))
    )
    assert inferred(border.look(), f"{OPEN}(mac)") == "array(6)"


def test_a_table_of_the_kernels_functions_is_a_handle() -> None:
    border = Border(pointer("config", "config_ops"))
    get = pointer("get", "fn", "void (*)(void)")
    border.layouts["config_ops"] = Layout(
        "config_ops", "include/linux/virtio.h", 5, 16, (get, number("other"))
    )
    border.accesses[OPEN] += reads("config_ops.get", base="field nic.config")
    assert inferred(border.look(), "nic.config") == "handle"


def test_a_struct_that_ends_in_an_array_without_a_length_is_asked() -> None:
    border = with_ring()
    border.layouts["ring"] = Layout(
        "ring", "d/nic.h", 30, 4, (number("count"), Member("slots", "u32[]", 4, 0, count=0))
    )
    border.accesses[OPEN] += reads("ring.slots", base="field nic.ring")
    assert (
        border.look()
        .questions["nic.ring"]
        .question.startswith("It ends in an array without a length")
    )


def test_an_array_at_the_end_that_nobody_touches_is_no_question() -> None:
    border = with_ring()
    border.layouts["ring"] = Layout(
        "ring", "d/nic.h", 30, 4, (number("count"), Member("slots", "u32[]", 4, 0, count=0))
    )
    assert inferred(border.look(), "nic.ring") == "single"


def test_a_pointer_in_a_union_is_asked_unless_it_is_a_handle() -> None:
    border = with_ring()
    members = (pointer("ring", "ring", union=1), pointer("page", "page", union=1))
    border.layouts["nic"] = Layout("nic", "d/nic.h", 5, 64, members)
    border.accesses[OPEN] += reads("nic.page")
    found = border.look()
    assert (inferred(found, "nic.ring"), inferred(found, "nic.page")) == ("asked", "handle")


def test_a_parameter_that_the_kernel_describes_needs_no_question() -> None:
    border = Border(number("n")).takes(
        ("nic", "struct nic *"), ("regs", "struct regs *"), ("p", "void *")
    )
    border.stored = [Stored("nic_open", 50, field="ethtool_ops.get_regs", object="ops")]
    found = border.look()
    assert inferred(found, f"{OPEN}(p)") == "out bytes(regs->len)"
    assert str(found.inferred[f"{OPEN}(p)"].evidence[0]).startswith(
        "api.toml: ethtool_ops.get_regs"
    )


def test_a_length_that_the_driver_computes_names_its_function() -> None:
    border = Border(number("n")).takes(("dev", "struct nic *"), ("set", "u32"), ("data", "u8 *"))
    border.adds(function("count_strings", ("dev", "struct nic *"), line=70))
    border.stored = [
        Stored("nic_open", 50, field="ethtool_ops.get_strings", object="ops"),
        Stored("count_strings", 51, field="ethtool_ops.get_sset_count", object="ops"),
    ]
    assert (
        inferred(border.look(), f"{OPEN}(data)")
        == "out bytes(ETH_GSTRING_LEN * count_strings(dev, set))"
    )


def test_a_part_of_an_object_is_found_by_container_of() -> None:
    border = (
        Border(number("n"))
        .takes(("work", "struct work_struct *"))
        .sees(Shape("container", "param 0", 12, "nic"))
    )
    found = border.look()
    assert inferred(found, f"{OPEN}(work)") == "single"
    assert "it is nic" in str(found.inferred[f"{OPEN}(work)"].evidence[0])


def test_a_number_behind_a_pointer_that_is_never_indexed_is_one() -> None:
    assert (
        inferred(Border(number("n")).takes(("value", "u16 *")).look(), f"{OPEN}(value)") == "single"
    )


def test_a_number_behind_a_pointer_that_is_copied_is_asked() -> None:
    border = (
        Border(number("n")).takes(("bytes", "u8 *")).sees(Shape("flow", "param 0", 12, "memcpy:0"))
    )
    found = border.look()
    assert inferred(found, f"{OPEN}(bytes)") == "asked"
    assert list(known(found, f"{OPEN}(bytes)")) == ["d/a.c:12: handed to memcpy, argument 0"]


def test_an_address_of_the_process_is_never_followed() -> None:
    border = (
        Border(number("n"))
        .takes(("to", "void *"))
        .sees(Shape("user", "param 0", 12, "copy_to_user"))
    )
    assert inferred(border.look(), f"{OPEN}(to)") == "user"


def test_a_cookie_of_the_kernel_is_a_handle() -> None:
    border = Border().takes(("cookie", "void *")).sees(Shape("flow", "param 0", 12, "free_irq:1"))
    assert (
        inferred(border.calls("nic_open", Call("free_irq", 12)).look(), f"{OPEN}(cookie)")
        == "handle"
    )


def test_a_function_of_the_kernel_that_nobody_knows_is_asked() -> None:
    found = Border(number("n")).calls("nic_open", Call("frobnicate", 12)).look()
    question = found.questions["kernel frobnicate"]
    assert (question.where, question.known) == ("d/a.c:12", ("d/a.c:12: called by nic_open",))


def test_an_answer_says_how_a_function_of_the_kernel_is_met() -> None:
    found = (
        Border(number("n"))
        .calls("nic_open", Call("frobnicate", 12))
        .look({"kernel frobnicate": "downcall"})
    )
    assert [downcall.way for downcall in found.border.downcalls] == ["downcall"]
    assert "kernel frobnicate" in found.questions


def test_a_function_that_may_never_be_called_from_outside_is_no_way_out() -> None:
    found = (
        Border(number("n"))
        .calls("nic_open", Call("frobnicate", 12))
        .look({"kernel frobnicate": "never"})
    )
    assert OPEN in found.questions


def test_a_user_function_that_touches_memory_of_each_processor_is_asked_back_to_the_kernel() -> (
    None
):
    border = Border(number("n"))
    border.variables = {"pcpu_hot": Variable(external=True)}
    border.touched = {OPEN: {"pcpu_hot": "r"}}
    assert list(known(border.look(), OPEN)) == ["d/a.c:10: uses pcpu_hot"]


def test_an_answer_says_how_a_variable_of_the_kernel_is_met() -> None:
    border = Border(number("n"))
    border.variables = {"strange": Variable(external=True)}
    border.touched = {OPEN: {"strange": "r"}}
    found = border.look({"variable strange": "copy"})
    assert found.border.variables["strange"].way == "copy"
    assert "variable strange" in found.questions


def test_a_user_function_that_needs_packet_memory_is_asked_back_to_the_kernel() -> None:
    found = Border(number("n")).calls("nic_open", Call("skb_put", 12)).look()
    assert found.questions[OPEN].allowed == ("kernel", "refuse")
    assert list(known(found, OPEN)) == ["d/a.c:12: calls skb_put: packet memory"]


def test_a_user_function_that_looks_into_a_packet_is_asked_back_to_the_kernel() -> None:
    border = Border(number("n"))
    border.layouts["sk_buff"] = Layout(
        "sk_buff", "include/linux/skbuff.h", 5, 8, (pointer("data", "", "unsigned char *"),)
    )
    border.accesses[OPEN] += reads("sk_buff.data", base="call alloc_skb")
    found = border.look()
    assert list(known(found, OPEN)) == ["d/a.c:11: looks at sk_buff.data: packet memory"]
    assert "sk_buff.data" not in found.items


def test_a_packet_that_is_only_freed_is_no_reason() -> None:
    border = Border(number("n")).calls("nic_open", Call("consume_skb", 12))
    assert border.look().questions == {}


def test_a_function_that_a_person_keeps_in_the_kernel_is_no_entry() -> None:
    border = Border(number("n")).calls("nic_open", Call("skb_put", 12))
    assert border.look({OPEN: "kernel"}).border.entries == []


def test_a_field_that_the_user_half_does_not_touch_is_not_asked() -> None:
    border = Border(pointer("data", "void", "void *"))
    border.accesses = {f"{FILE}:nic_send": (Access("nic.data", "r", (31,)),)}
    assert border.look().questions == {}
