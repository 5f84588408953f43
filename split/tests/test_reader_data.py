"""Accesses, globals and layouts, as the reader finds them in small C files."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ir_from_c import compile_c
from ring3_split.model import Access, Data, Layout
from ring3_split.reader import read

Read = Callable[..., Data]


@pytest.fixture
def data(clang: Path, tmp_path: Path) -> Read:
    def look(text: str, *flags: str) -> Data:
        return read(compile_c(clang, tmp_path, text, *flags), "drivers/a.c", tmp_path)[1]

    return look


def accesses(data: Data, name: str = "f") -> tuple[Access, ...]:
    return data.accesses.get(f"drivers/a.c:{name}", ())


def ways(data: Data, name: str = "f") -> set[tuple[str, str]]:
    """Fields with the ways in which they are touched."""
    return {(access.field, access.way) for access in accesses(data, name)}


def members(layout: Layout) -> dict[str, tuple[int, int]]:
    """Offset and size of the members."""
    return {member.name: (member.offset, member.size) for member in layout.members}


def test_a_load_is_a_read_and_a_store_a_write(data: Read) -> None:
    found = data("struct s { int a, b; };\nvoid f(struct s *p) {\n  p->a = 1;\n  p->a = p->b;\n}\n")
    assert accesses(found) == (
        Access("s.a", "w", (3, 4), base="param 0"),
        Access("s.b", "r", (4,), base="param 0"),
    )


def test_a_counter_is_read_and_written(data: Read) -> None:
    assert ways(data("struct s { int a; };\nvoid f(struct s *p) { p->a++; }\n")) == {
        ("s.a", "r"),
        ("s.a", "w"),
    }


def test_a_bit_field_is_written_without_its_neighbours_being_read(data: Read) -> None:
    assert ways(data("struct s { int a:3, b:5; };\nvoid f(struct s *p) { p->b = 1; }\n")) == {
        ("s.b", "w")
    }


def test_an_address_that_is_passed_is_taken(data: Read) -> None:
    text = (
        "struct s { int a; char name[8]; };\nvoid g(void *);\nvoid f(struct s *p) { g(&p->a); "
        "g(p->name); }\n"
    )
    assert ways(data(text)) == {("s.a", "a"), ("s.name", "a")}


def test_an_element_of_an_array_is_the_array(data: Read) -> None:
    text = (
        "struct s { char mac[6]; };\nint f(struct s *p, int i) { p->mac[i] = 1; return "
        "p->mac[0]; }\n"
    )
    assert ways(data(text)) == {("s.mac", "w"), ("s.mac", "r")}


def test_an_address_in_a_local_variable_is_followed_and_not_taken(data: Read) -> None:
    text = "struct hw { int reg; };\nstruct s { int n; struct hw hw; };\n"
    text += "void f(struct s *p) { struct hw *hw = &p->hw; hw->reg = 1; }\n"
    assert accesses(data(text)) == (Access("hw.reg", "w", (3,), within="s.hw", base="param 0"),)


def test_an_address_that_is_stored_elsewhere_is_taken(data: Read) -> None:
    text = "struct s { int a; int *where; };\nvoid f(struct s *p) { p->where = &p->a; }\n"
    assert ways(data(text)) == {("s.a", "a"), ("s.where", "w")}


def test_what_a_field_points_to_has_that_field_as_its_base(data: Read) -> None:
    text = (
        "struct r { int n; };\nstruct s { struct r *ring; };\nint f(struct s *p) { return "
        "p->ring[2].n; }\n"
    )
    assert {(a.field, a.base) for a in accesses(data(text))} == {
        ("s.ring", "param 0"),
        ("r.n", "field s.ring"),
    }


def test_a_struct_that_is_copied_is_touched_in_each_member(data: Read) -> None:
    text = "struct s { long a, b, c; };\nvoid f(struct s *p, struct s *q) { *p = *q; }\n"
    assert ways(data(text)) == {(f"s.{m}", w) for m in "abc" for w in "rw"}


def test_an_embedded_struct_that_is_copied_is_one_field(data: Read) -> None:
    text = "struct in { long a, b, c; };\nstruct s { int n; struct in in; };\n"
    text += "void f(struct s *p, struct s *q) { p->in = q->in; }\n"
    assert ways(data(text)) == {("s.in", "w"), ("s.in", "r")}


def test_an_object_on_the_stack_is_a_local_of_its_struct(data: Read) -> None:
    found = data("struct opt { int type; };\nint f(void) { struct opt o; o.type = 1; return 0; }\n")
    assert accesses(found) == (Access("opt.type", "w", (2,), base="local opt"),)


def test_the_result_of_a_function_names_it(data: Read) -> None:
    found = data(
        "struct s { int a; };\nvoid *priv(void *);\nint f(void *d) { struct s *p = priv(d); "
        "return p->a; }\n"
    )
    assert [a.base for a in accesses(found)] == ["call priv"]


def test_the_name_in_the_source_decides_between_equal_members_of_a_union(data: Read) -> None:
    text = (
        "struct s { union { int first; int second; }; };\nvoid f(struct s *p) { p->second = 1; }\n"
    )
    assert ways(data(text)) == {("s.second", "w")}


def test_the_name_behind_a_named_union_decides_too(data: Read) -> None:
    text = "struct s { int n; union { int first; int second; } u; };\n"
    text += "int f(struct s *p) { p->u.second = 1; return p->u.first; }\n"
    assert ways(data(text)) == {("s.u.second", "w"), ("s.u.first", "r")}


def test_an_array_in_a_union_is_told_by_its_elements(data: Read) -> None:
    text = "struct s { int n; union { long *ptr; long value[8]; char bytes[64]; } u; };\n"
    text += "void f(struct s *p, int i) { p->u.value[i] = 1; p->u.bytes[i] = 2; p->u.ptr = 0; }\n"
    assert ways(data(text)) == {("s.u.value", "w"), ("s.u.bytes", "w"), ("s.u.ptr", "w")}


def test_the_address_of_a_member_of_a_union_is_told_by_its_name(data: Read) -> None:
    text = (
        "struct s { int n; union { long a; long b; }; union { long c; long d; } u; };\nvoid "
        "g(void *);\n"
    )
    text += "void f(struct s *p) { g(&p->b); g(&p->u.d); }\nvoid h(struct s *p) { g(&p->u); }\n"
    found = data(text)
    assert ways(found) == {("s.b", "a"), ("s.u.d", "a")}
    assert ways(found, "h") == {("s.u", "a")}


def test_memory_operands_of_assembly_are_read_and_written(data: Read) -> None:
    text = (
        'struct s { int a, b; };\nvoid f(struct s *p) { asm volatile("nop" : "=m"(p->a) : '
        '"m"(p->b)); }\n'
    )
    assert ways(data(text)) == {("s.a", "w"), ("s.b", "r")}


def test_globals_are_read_written_and_taken(data: Read) -> None:
    text = "int a, b, c, d[4]; struct s { int m; } s;\nvoid g(void *);\n"
    found = data(text + 'void f(void) { a = b; c++; g(d); s.m = 1; g("text"); }\n')
    assert found.globals["drivers/a.c:f"] == {"a": "w", "b": "r", "c": "rw", "d": "a", "s": "w"}


def test_a_layout_has_offsets_sizes_and_kinds(data: Read) -> None:
    text = "struct net_device; struct in { int x; };\n"
    text += "struct s { char c; struct net_device *dev; void (*cb)(int); void *priv; char *name;\n"
    text += (
        "struct in in; struct in more[3]; unsigned char tail[]; };\nvoid f(struct s *p) { "
        "p->c = 1; }\n"
    )
    found = data(text)
    layout = found.layouts["s"]
    assert (layout.file, layout.line, layout.size) == ("drivers/a.c", 2, 56)
    assert members(layout) == {
        "c": (0, 1),
        "dev": (8, 8),
        "cb": (16, 8),
        "priv": (24, 8),
        "name": (32, 8),
        "in": (40, 4),
        "more": (44, 12),
        "tail": (56, 0),
    }
    assert [m.line for m in layout.members][4:6] == [2, 3]
    assert [m.pointee for m in layout.members][1:5] == ["net_device", "fn", "void", "char"]
    assert [(m.struct, m.count) for m in layout.members][5:] == [("in", None), ("in", 3), ("", 0)]
    assert "in" in found.layouts


def test_a_layout_of_i386_is_that_of_i386(data: Read) -> None:
    text = "struct s { char c; long long l; void *p; };\nvoid f(struct s *p) { p->c = 1; }\n"
    assert members(data(text, "-m32").layouts["s"]) == {"c": (0, 1), "l": (4, 8), "p": (12, 4)}


def test_a_layout_tells_bit_fields_and_unions(data: Read) -> None:
    text = (
        "struct s { int a:3, b:9; union { int i; void *p; }; union { char c; struct { short x, "
        "y; }; }; };\n"
    )
    layout = data(text + "void f(struct s *p) { p->a = 1; }\n").layouts["s"]
    assert [(m.name, m.bits) for m in layout.members][:2] == [("a", (0, 3)), ("b", (3, 9))]
    assert [(m.name, m.union) for m in layout.members][2:] == [
        ("i", 1),
        ("p", 1),
        ("c", 2),
        ("x", 2),
        ("y", 2),
    ]
    assert [m.offset for m in layout.members][2:] == [8, 8, 16, 16, 18]


def seconds_to_read(data: Read, text: str) -> float:
    """The processor's time for it: how long it takes depends on what else runs."""
    start = time.process_time()
    data(text)
    return time.process_time() - start


def test_reading_a_table_takes_time_in_proportion_to_its_entries(data: Read) -> None:
    def table(entries: int) -> str:
        head = "static void h(void) {}\nstruct e { int n; void (*go)(void); };\n"
        rows = (f"  {{ {i}, h }},\n" if i % 10 == 0 else f"  {{ {i} }},\n" for i in range(entries))
        return f"{head}struct e table[{entries}] = {{\n{''.join(rows)}}};\n"

    short = seconds_to_read(data, table(12_500))
    # Eight times as many: quadratic is 64 times the time.
    assert seconds_to_read(data, table(100_000)) < 24 * short


def test_reading_a_function_takes_time_in_proportion_to_its_statements(data: Read) -> None:
    def function(pairs: int) -> str:
        head = "struct s { int a; struct s *next; };\nvoid f(struct s *p) {\n  struct s *q = p;\n"
        return head + "  q = q->next; q->a += 1;\n" * pairs + "}\n"

    assert ("s.a", "w") in ways(data(function(10)))
    short = seconds_to_read(data, function(1_250))
    # Eight times as many. Twice nested, it would be 64 times as long; a busy host adds to eight.
    assert seconds_to_read(data, function(10_000)) < 40 * short
