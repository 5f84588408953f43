"""What becomes of values and addresses that a function reads, and what it sets fields to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from facts import compiled
from ring3_split.model import Data, ModuleFacts

STRUCTS = """struct work { void (*func)(struct work *); };
struct nic { int idx; unsigned char small; int n; unsigned long state; int table[8]; char *buf; \
char *bufs[4]; struct work dog; };
void kernel_get(const unsigned long *w);
static int table[16];
"""

Read = Callable[[str], tuple[ModuleFacts, Data]]


@pytest.fixture
def read(clang: Path, tmp_path: Path) -> Read:
    """The facts of C text behind the structs above."""

    def facts(text: str) -> tuple[ModuleFacts, Data]:
        return compiled(clang, tmp_path, STRUCTS + text)

    return facts


def uses(data: Data, value: str) -> set[tuple[str, str]]:
    return {
        (use.what, use.detail)
        for found in data.used.values()
        for use in found
        if use.value == value
    }


def ranges(data: Data) -> dict[str, tuple[int | None, int | None]]:
    return {one.field: (one.low, one.high) for found in data.assigned.values() for one in found}


def test_a_field_that_chooses_an_element_is_an_index_with_the_size_of_the_array(read: Read) -> None:
    _, data = read("int f(struct nic *n) { return table[n->idx]; }")
    (use,) = [one for one in data.used["drivers/a.c:f"] if one.what == "index"]
    assert (use.value, use.count, use.mask) == ("field nic.idx", 16, -1)


def test_an_index_that_is_cut_to_its_low_bits_says_so(read: Read) -> None:
    _, data = read("int f(struct nic *n) { int i = n->idx & 7; return n->table[i]; }")
    (use,) = [one for one in data.used["drivers/a.c:f"] if one.what == "index"]
    assert (use.count, use.mask) == (8, 7)


@pytest.mark.parametrize(
    ("code", "use"),
    [
        ("return 100 / n->n;", ("divisor", "")),
        ("return 1 << n->n;", ("shift", "32")),
        ("for (int i = 0; i < n->n; i++) table[i] = 0; return 0;", ("loop", "local i")),
        ("__builtin_memcpy(n->buf, table, n->n); return 0;", ("length", "memcpy:2")),
        ("kernel_get((void *)(long)n->n); return 0;", ("argument", "kernel_get:0")),
        ("if (n->n == 3) return 1; return 0;", ("compared", "3")),
        ("return n->n;", ("returned", "")),
    ],
)
def test_what_becomes_of_a_number_is_told(read: Read, code: str, use: tuple[str, str]) -> None:
    _, data = read(f"int f(struct nic *n) {{ {code} }}")
    assert use in uses(data, "field nic.n")


def test_a_field_that_is_followed_is_a_pointer(read: Read) -> None:
    _, data = read("char f(struct nic *n) { return n->buf[3]; }")
    assert uses(data, "field nic.buf") == {("pointer", "")}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("k ? 1 : 2", (1, 2)),
        ("k & 3", (0, 3)),
        ("(unsigned)k >> 28", (0, 15)),
        ("k == 4", (0, 1)),
        ("n->small + 1", (1, 256)),
        ("k", (None, None)),
        ("k + 1", (None, None)),
    ],
)
def test_a_field_is_set_to_no_more_than_the_stored_value_can_be(
    read: Read, value: str, expected: tuple[int, int]
) -> None:
    _, data = read(f"void f(struct nic *n, int k) {{ n->idx = {value}; }}")
    assert ranges(data)["nic.idx"] == expected


def test_a_variable_whose_address_is_given_away_has_no_range(read: Read) -> None:
    _, data = read("void g(int *); void f(struct nic *n) { int k = 1; g(&k); n->idx = k; }")
    assert ranges(data)["nic.idx"] == (None, None)


def test_an_address_says_where_it_goes(read: Read) -> None:
    _, data = read("void f(struct nic *n) { kernel_get(&n->state); }")
    (access,) = data.accesses["drivers/a.c:f"]
    assert (access.field, access.way, access.to) == ("nic.state", "a", "kernel_get:0")


def test_a_function_says_what_it_does_to_what_its_parameters_point_to(read: Read) -> None:
    _, data = read("int f(const int *p, int *q, struct nic *n) { *q = *p; return n->idx; }")
    assert data.through["drivers/a.c:f"] == {"0": "r", "1": "w", "2": "r"}


def test_the_address_of_a_variable_says_where_it_goes(read: Read) -> None:
    _, data = read("void take(int *); void f(void) { take(table); }")
    assert [(one.variable, one.to) for one in data.handed["drivers/a.c:f"]] == [("table", "take:0")]


def test_a_pointer_into_what_another_points_to_is_interior(read: Read) -> None:
    _, data = read(
        "void f(struct nic *n) { for (int i = 0; i < 4; i++) n->bufs[i] = &n->buf[i * 8]; }"
    )
    found = [
        (one.pointer, one.detail) for one in data.shapes["drivers/a.c:f"] if one.what == "interior"
    ]
    assert found == [("field nic.bufs", "field nic.buf + local i * 8")]


def test_a_function_begins_where_its_type_stands(read: Read) -> None:
    facts, _ = read(
        "static __attribute__((noinline))\nint\nf(void)\n{\n\treturn 0;\n}\nint g(void) { return "
        "f(); }"
    )
    found = {one.name: one.line - one.first if one.first else 0 for one in facts.units[0].functions}
    assert found == {"f": 2, "g": 0}


def test_a_work_function_names_the_member_that_the_work_lies_in(read: Read) -> None:
    facts, _ = read(
        "static void bark(struct work *w) {} void f(struct nic *n) { n->dog.func = bark; }"
    )
    (stored,) = next(one for one in facts.units[0].functions if one.name == "f").stored
    assert (stored.field, stored.owner) == ("work.func", "nic.dog")
