"""Linking facts into a call graph.

The facts are made by hand: what clang says of C is the reader's matter.
"""

from __future__ import annotations

from pathlib import Path

from facts import OTHER, TYPE, callees, compiled, function, linked, module, unit
from ring3_split.critical import propagate
from ring3_split.driver import Driver
from ring3_split.graph import lines, link
from ring3_split.model import (
    VERSION,
    Call,
    Data,
    Function,
    Indirect,
    Kind,
    ModuleFacts,
    Region,
    Stored,
)


def test_a_static_function_hides_one_of_its_name_in_another_unit() -> None:
    first = unit(function("f", calls=(Call("g", 11),)), function("g", static=True))
    second = unit(function("g", file="d/b.c"), source="d/b.c")
    assert callees(linked(module(first, second)), "d/a.c:f") == {"d/a.c:g"}


def test_a_static_function_of_another_unit_is_not_seen() -> None:
    first = unit(function("f", calls=(Call("g", 11),)))
    second = unit(function("g", file="d/b.c", static=True), source="d/b.c")
    assert list(linked(module(first, second)).external["d/a.c:f"]) == ["g"]


def test_a_function_of_another_unit_is_found_by_its_name() -> None:
    first = unit(function("f", calls=(Call("g", 11),)))
    second = unit(function("g", file="d/b.c"), source="d/b.c")
    assert callees(linked(module(first, second)), "d/a.c:f") == {"d/b.c:g"}


def test_what_is_not_exported_is_not_seen_from_another_module() -> None:
    first = module(unit(function("f", calls=(Call("g", 11), Call("h", 12)))))
    second = module(
        unit(
            function("g", file="d/b.c"), function("h", file="d/b.c"), source="d/b.c", exports=("g",)
        ),
        name="b",
    )
    graph = linked(first, second)
    assert callees(graph, "d/a.c:f") == {"d/b.c:g"}
    assert list(graph.external["d/a.c:f"]) == ["h"]


def test_an_inline_of_a_header_is_one_function_wherever_it_is_compiled() -> None:
    header = function("h", file="include/h.h", static=True, inline=True, calls=(Call("k", 11),))
    graph = linked(module(unit(header), unit(header, source="d/b.c")))
    assert list(graph.functions) == ["include/h.h:h"]
    assert len(graph.external["include/h.h:h"]["k"]) == 1
    assert list(graph.owned()) == []


def test_an_alias_is_the_function_that_it_names() -> None:
    graph = linked(module(unit(function("start", static=True), aliases={"init_module": "start"})))
    assert [stored.field for stored in graph.entries["d/a.c:start"]] == ["module.init"]


def test_the_held_locks_of_a_call_come_with_its_edge() -> None:
    region = Region(Kind.SPIN, "s.lock", 11, (12, 13))
    graph = linked(
        module(unit(function("f", regions=(region,), calls=(Call("g", 12, (0,)),)), function("g")))
    )
    assert graph.calls["d/a.c:f"]["d/a.c:g"][0].held == (region,)


def pointers(call: Indirect, *stored: Stored, **more: object) -> ModuleFacts:
    """A caller `f` of a pointer, and `g` and `h` of the same type whose addresses are taken."""
    functions = (function("f", indirect=(call,)), function("g"), function("h"))
    return module(unit(*functions, stored=stored, **more))  # type: ignore[arg-type]


TWO_FIELDS = (Stored("g", 1, field="ops.one"), Stored("h", 1, field="ops.two"))


def test_by_signature_a_pointer_reaches_all_functions_of_its_type() -> None:
    graph = linked(
        pointers(Indirect(TYPE, 11, field="ops.one"), *TWO_FIELDS), precision="signature"
    )
    assert callees(graph, "d/a.c:f") == {"d/a.c:g", "d/a.c:h"}


def test_by_signature_a_pointer_reaches_no_function_of_another_type() -> None:
    graph = linked(
        pointers(Indirect(OTHER, 11, field="ops.one"), *TWO_FIELDS), precision="signature"
    )
    assert callees(graph, "d/a.c:f") == set()
    assert graph.leaving["d/a.c:f"][0].field == "ops.one"


def test_a_function_whose_address_nobody_takes_is_no_target() -> None:
    graph = linked(
        pointers(Indirect(TYPE, 11), TWO_FIELDS[0], exports=("h",)), precision="signature"
    )
    assert callees(graph, "d/a.c:f") == {"d/a.c:g"}


def test_by_field_a_pointer_reaches_what_was_stored_to_its_field() -> None:
    graph = linked(pointers(Indirect(TYPE, 11, field="ops.one"), *TWO_FIELDS))
    assert callees(graph, "d/a.c:f") == {"d/a.c:g"}
    assert graph.calls["d/a.c:f"]["d/a.c:g"][0].how == "field"


def test_by_field_a_field_of_the_drivers_own_that_no_function_was_stored_to_reaches_its_type() -> (
    None
):
    module = pointers(
        Indirect(TYPE, 11, "own.setup"),
        Stored("g", 5, field="firmware.setup"),
        structs={"own": "d/a.h", "firmware": "d/a.h"},
    )
    assert callees(linked(module, precision="field"), "d/a.c:f") == {"d/a.c:g"}


def test_by_field_a_pointer_of_unknown_origin_reaches_its_type() -> None:
    graph = linked(pointers(Indirect(TYPE, 11), *TWO_FIELDS))
    assert callees(graph, "d/a.c:f") == {"d/a.c:g", "d/a.c:h"}
    assert graph.calls["d/a.c:f"]["d/a.c:g"][0].how == "signature"


def test_by_field_a_function_that_went_to_an_unknown_place_is_reached_by_its_type() -> None:
    graph = linked(pointers(Indirect(TYPE, 11, field="ops.one"), Stored("h", 1, object="table")))
    assert callees(graph, "d/a.c:f") == {"d/a.c:h"}


def test_by_field_a_function_that_only_the_kernel_was_given_is_not_reached() -> None:
    graph = linked(
        pointers(Indirect(TYPE, 11, field="ops.one"), Stored("h", 1, api="request_irq", argument=1))
    )
    assert callees(graph, "d/a.c:f") == set()
    assert set(graph.entries) == {"d/a.c:h"}


def parameter(*callers: Function) -> ModuleFacts:
    called = function("each", static=True, indirect=(Indirect(TYPE, 11, parameter=1),))
    return module(
        unit(
            called,
            function("g"),
            function("h"),
            *callers,
            stored=(Stored("h", 1, field="ops.two"),),
        )
    )


PASSES_G = function(
    "f", calls=(Call("each", 12),), stored=(Stored("g", 12, api="each", argument=1),)
)


def test_by_field_a_parameter_reaches_what_the_callers_pass() -> None:
    graph = linked(parameter(PASSES_G))
    assert callees(graph, "d/a.c:each") == {"d/a.c:g"}
    assert "d/a.c:g" not in graph.entries


def test_by_field_a_parameter_reaches_its_type_where_a_caller_hands_on_a_pointer() -> None:
    graph = linked(parameter(PASSES_G, function("other", calls=(Call("each", 15),))))
    assert callees(graph, "d/a.c:each") == {"d/a.c:g", "d/a.c:h"}


def test_a_field_of_the_drivers_own_struct_that_it_calls_is_no_entry() -> None:
    facts = pointers(Indirect(TYPE, 11, field="ops.one"), *TWO_FIELDS, structs={"ops": "d/a.h"})
    assert set(linked(facts).entries) == {"d/a.c:h"}


def test_a_field_of_a_struct_of_the_kernel_is_an_entry() -> None:
    facts = pointers(
        Indirect(TYPE, 11, field="ops.one"), *TWO_FIELDS, structs={"ops": "include/linux/ops.h"}
    )
    assert set(linked(facts).entries) == {"d/a.c:g", "d/a.c:h"}


def test_an_exported_function_is_an_entry_of_its_own_module() -> None:
    assert set(linked(module(unit(function("f"), exports=("f",)))).entries) == {"d/a.c:f"}


def test_an_exported_function_of_a_library_is_no_entry_of_its_user() -> None:
    user = module(unit(function("f", calls=(Call("g", 11),))))
    library = module(unit(function("g", file="d/b.c"), source="d/b.c", exports=("g",)), name="b")
    assert linked(user, library).entries == {}


def test_critical_functions_come_with_the_shortest_chain() -> None:
    graph = linked(
        module(
            unit(
                function("root", calls=(Call("long", 11), Call("end", 12))),
                function("long", calls=(Call("end", 13), Call("deep", 14))),
                function("end"),
                function("deep"),
                function("aside"),
            )
        )
    )
    chains = propagate(graph, ["d/a.c:root"])
    assert chains["d/a.c:end"].functions == ("d/a.c:root", "d/a.c:end")
    assert chains["d/a.c:deep"].functions == ("d/a.c:root", "d/a.c:long", "d/a.c:deep")
    assert [edge.line for edge in chains["d/a.c:deep"].edges] == [11, 14]
    assert "d/a.c:aside" not in chains


def test_a_function_has_the_lines_from_its_first_to_its_last() -> None:
    assert lines(function("f")) == 10


OPERATIONS = """
struct own { void (*one)(void *); void (*two)(void *); };
static void first(void *p) { }
static void second(void *p) { }
static void third(void *p) { }
static const struct own table = { .one = first, .two = second };
static const struct kernel_ops ops = { .run = third };
void use(const struct own *own) { own->one(0); }
const void *keep[] = { &table, &ops };
"""


def test_in_c_a_field_is_told_from_others_of_its_type(clang: Path, tmp_path: Path) -> None:
    facts, _ = compiled(clang, tmp_path, OPERATIONS)
    by_field, by_type = linked(facts), linked(facts, precision="signature")
    use = "drivers/a.c:use"
    assert callees(by_field, use) == {"drivers/a.c:first"}
    assert callees(by_type, use) == {f"drivers/a.c:{name}" for name in ("first", "second", "third")}


def test_in_c_the_kernels_struct_makes_an_entry(clang: Path, tmp_path: Path) -> None:
    facts, _ = compiled(clang, tmp_path, OPERATIONS)
    graph = linked(facts)
    assert "drivers/a.c:third" in graph.entries
    assert "drivers/a.c:first" not in graph.entries


def test_in_c_a_pointer_is_followed_through_a_field_to_the_kernel(
    clang: Path, tmp_path: Path
) -> None:
    text = """
    struct own { void (*handler)(void *); };
    static void handle(void *p) { }
    void set(struct own *own) { own->handler = handle; }
    void start(struct own *own) { kernel_call(own->handler); }
    """
    facts, data = compiled(clang, tmp_path, text)
    graph = link(Driver("a", (facts,), data=(data,)))
    assert [(place.api, place.argument) for place in graph.entries["drivers/a.c:handle"]] == [
        ("kernel_call", 0)
    ]


def test_in_c_a_private_field_that_nobody_loads_is_no_entry(clang: Path, tmp_path: Path) -> None:
    text = """
    struct own { void (*handler)(void *); };
    static void handle(void *p) { }
    void set(struct own *own) { own->handler = handle; }
    """
    facts, data = compiled(clang, tmp_path, text)
    assert "drivers/a.c:handle" not in link(Driver("a", (facts,), data=(data,))).entries
    assert (
        "drivers/a.c:handle" in link(Driver("a", (facts,))).entries
    )  # where that was not looked at, it may be one


def test_a_field_that_nobody_loads_is_an_entry_where_other_modules_share_its_header() -> None:
    stored = (Stored("g", 1, field="ops.one"),)
    functions = (function("f"), function("g"))
    data = Data(VERSION, "d/a.c")
    alone = module(unit(*functions, stored=stored, structs={"ops": "d/a.h"}))
    shared = module(unit(*functions, stored=stored, structs={"ops": "d/a.h"}, exports=("f",)))
    assert "d/a.c:g" not in link(Driver("a", (alone,), data=(data,))).entries
    assert "d/a.c:g" in link(Driver("a", (shared,), data=(data,))).entries


def test_a_comparison_for_sort_is_called_by_who_sorts_and_under_its_locks() -> None:
    region = Region(Kind.SPIN, "s.lock", 11, (12, 13))
    caller = function(
        "f",
        regions=(region,),
        calls=(Call("sort", 12, (0,)),),
        stored=(Stored("g", 12, api="sort", argument=3),),
    )
    graph = linked(module(unit(caller, function("g"))))
    (edge,) = graph.calls["d/a.c:f"]["d/a.c:g"]
    assert (edge.how, edge.field, edge.held) == ("field", "sort:3", (region,))
    assert "d/a.c:g" not in graph.entries


def test_in_c_a_callback_that_is_handed_on_to_be_called_at_once_is_called_by_who_hands_it_on(
    clang: Path, tmp_path: Path
) -> None:
    text = """
    void list_sort(void *, void *, int (*)(void *, void *));
    static int compare(void *a, void *b) { return 0; }
    static void inner(int (*how)(void *, void *)) { list_sort(0, 0, how); }
    void outer(void) { inner(compare); }
    """
    facts, data = compiled(clang, tmp_path, text)
    graph = link(Driver("a", (facts,), data=(data,)))
    assert callees(graph, "drivers/a.c:inner") == {"drivers/a.c:compare"}
    assert "drivers/a.c:compare" not in graph.entries


def test_in_c_a_local_pointer_that_is_called_makes_no_entry(clang: Path, tmp_path: Path) -> None:
    text = """
    static void one(void) { }
    static void two(void) { }
    void use(int which) { void (*call)(void) = which ? one : two; call(); }
    """
    facts, data = compiled(clang, tmp_path, text)
    graph = link(Driver("a", (facts,), data=(data,)))
    assert callees(graph, "drivers/a.c:use") == {"drivers/a.c:one", "drivers/a.c:two"}
    assert graph.entries == {}


def test_in_c_a_field_reaches_what_it_got_from_another_field(clang: Path, tmp_path: Path) -> None:
    text = """
    struct info { void (*handler)(int); };
    struct own { void (*handler)(int); void (*other)(int); };
    static void copied(int i) { }
    static void stored(int i) { }
    static void aside(int i) { }
    static const struct info info = { .handler = copied };
    void set(struct own *own, const struct info *from) { \
own->handler = from->handler; own->other = aside; }
    void start(struct own *own) { own->handler = stored; set(own, &info); own->handler(0); }
    """
    facts, data = compiled(clang, tmp_path, text)
    graph = link(Driver("a", (facts,), data=(data,)), "field")
    assert callees(graph, "drivers/a.c:start") == {
        f"drivers/a.c:{name}" for name in ("set", "copied", "stored")
    }
