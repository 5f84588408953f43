"""Shapes: what the use of a pointer says about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ir_from_c import compile_c
from ring3_split.ir.module import parse
from ring3_split.ir.origin import Origins
from ring3_split.model import Shape
from ring3_split.reader.shapes import shapes
from ring3_split.reader.uses import Uses

Read = Callable[[str], set[tuple[str, str, str]]]
KERNEL = """
typedef unsigned long size_t;
#define container_of(p, type, member) ({ \
void *m = (void *)(p); ((type *)(m - __builtin_offsetof(type, member))); })
struct list_head { struct list_head *next, *prev; };
#define list_entry(p, type, member) container_of(p, type, member)
#define list_for_each_entry(e, head, member) \\
    for (e = list_entry((head)->next, typeof(*e), member); \\
    &e->member != (head); e = list_entry(e->member.next, typeof(*e), member))
extern int _printk(const char *format, ...);
extern size_t strlen(const char *text);
extern unsigned long _copy_to_user(void *to, const void *from, unsigned long n);
extern int readl(void *address);
extern void register_thing(void *thing);
struct work { int pending; };
struct buffer { void *data; int length; };
struct ring { unsigned count, head; struct buffer *buffers; void *descriptors; \
unsigned char *registers; };
struct job { int number; struct list_head link; };
struct nic {
    int queues;
    struct ring *rings, *spare;
    struct work watchdog;
    struct list_head jobs;
    char *name;
    void *back;
};
extern void use(struct buffer *buffer);
"""


@pytest.fixture
def read(clang: Path, tmp_path: Path) -> Read:
    def shaped(source: str) -> set[tuple[str, str, str]]:
        module = parse(compile_c(clang, tmp_path, f"{KERNEL}\n#line 1\n{source}").read_text())
        body = module.functions["f"]
        found: tuple[Shape, ...] = shapes(module, body, Origins.within(module, body), Uses(body))
        assert all(shape.line > 0 for shape in found)
        return {
            (shape.what, shape.pointer, shape.detail) for shape in found if shape.what != "handle"
        }

    return shaped


def test_the_condition_of_a_loop_bounds_the_index(read: Read) -> None:
    found = read(
        "void f(struct nic *n) { for (int i = 0; i < n->queues; i++) n->rings[i].count = 0; }"
    )
    assert found == {("index", "field nic.rings", "< nic.queues")}


def test_the_wrap_of_a_ring_bounds_the_index(read: Read) -> None:
    found = read("""void f(struct ring *r) {
        unsigned i = r->head;
        struct buffer *b = &r->buffers[i];
        b->length = 0;
        if (++i == r->count)
            i = 0;
        r->head = i;
    }""")
    assert found == {("index", "field ring.buffers", "< ring.count")}


def test_two_loops_with_one_variable_have_their_own_bounds(read: Read) -> None:
    found = read("""void f(struct ring *r, struct nic *n) {
        int i;
        for (i = 0; i < r->count; i++)
            use(&r->buffers[i]);
        for (i = 0; i < n->queues; i++)
            n->rings[i].count = 0;
    }""")
    assert found == {
        ("index", "field ring.buffers", "< ring.count"),
        ("index", "field nic.rings", "< nic.queues"),
    }


def test_an_index_without_a_comparison_is_shown_itself(read: Read) -> None:
    found = read(
        "void f(struct ring *r, int which) { use(&r->buffers[which]); use(&r->buffers[r->head]); }"
    )
    assert found == {
        ("index", "field ring.buffers", "param 1"),
        ("index", "field ring.buffers", "ring.head"),
    }


def test_constant_indices_are_one_array_up_to_the_last(read: Read) -> None:
    assert read("void f(int *regs) { regs[0] = 1; regs[7] = 2; regs[3] = 3; }") == {
        ("index", "param 0", "7")
    }


def test_a_pointer_that_steps_is_arithmetic(read: Read) -> None:
    found = read("void f(char *p, int n) { while (n--) *p++ = 0; }")
    assert {shape[:2] for shape in found} == {("arithmetic", "param 0")}


def test_bytes_behind_a_pointer_that_a_function_gets_are_arithmetic(read: Read) -> None:
    assert read("int f(struct ring *r) { return readl(r->registers + 8); }") == {
        ("arithmetic", "field ring.registers", "8")
    }


def test_a_cast_array_of_descriptors_is_an_array(read: Read) -> None:
    found = read(
        "void f(struct ring *r) { for (int i = 0; i < r->count; i++) ((struct buffer "
        "*)r->descriptors)[i].length = 1; }"
    )
    assert found == {
        ("index", "field ring.descriptors", "< ring.count"),
        ("cast", "field ring.descriptors", "buffer"),
    }


def test_container_of_tells_the_struct_around_and_is_no_cast(read: Read) -> None:
    found = read(
        "int f(struct work *w) { struct nic *n = container_of(w, struct nic, watchdog); return "
        "n->queues; }"
    )
    assert found == {("container", "param 0", "nic.watchdog")}


def test_walking_a_list_tells_its_elements(read: Read) -> None:
    found = read(
        "void f(struct nic *n) { struct job *j; list_for_each_entry(j, &n->jobs, link) j->number "
        "= 0; }"
    )
    assert found == {("list", "field nic.jobs", "job.link")}


def test_a_pointer_to_void_that_is_put_in_a_typed_variable_is_cast(read: Read) -> None:
    found = read(
        "int f(void *data, struct nic *m) { struct nic *n = data; struct ring *r = m->back; "
        "return n->queues + r->count; }"
    )
    assert found == {("cast", "param 0", "nic"), ("cast", "field nic.back", "ring")}


def test_a_pointer_that_has_its_type_is_not_cast(read: Read) -> None:
    assert (
        read(
            "int f(struct nic *m) { struct nic *n = m; struct ring *r = n->spare; return "
            "r->count; }"
        )
        == set()
    )


def test_what_a_string_function_gets_is_a_string(read: Read) -> None:
    assert read("int f(struct nic *n) { return strlen(n->name); }") == {
        ("string", "field nic.name", "strlen")
    }


def test_what_a_format_prints_as_a_string_is_a_string(read: Read) -> None:
    found = read(
        'void f(struct nic *n, char *text) { _printk("%d %% %-8s %p %.*s", 1, n->name, n, 3, '
        "text); }"
    )
    assert found == {("string", "field nic.name", "printk"), ("string", "param 1", "printk")}


def test_what_is_copied_to_a_process_is_its_address(read: Read) -> None:
    assert read("long f(void *to, int *from) { return _copy_to_user(to, from, 4); }") == {
        ("user", "param 0", "copy_to_user")
    }


def test_a_pointer_that_is_only_passed_on_is_a_handle(clang: Path, tmp_path: Path) -> None:
    source = (
        f"{KERNEL}\n#line 1\nvoid f(struct nic *n, struct ring *r) {{ register_thing(n); "
        f"register_thing(r); r->count = 1; }}"
    )
    module = parse(compile_c(clang, tmp_path, source).read_text())
    body = module.functions["f"]
    found = shapes(module, body, Origins.within(module, body), Uses(body))
    assert found == (Shape("handle", "param 0", 1, "register_thing"),)
