"""Where pointers are handed on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ir_from_c import compile_c
from ring3_split.ir.module import parse
from ring3_split.ir.origin import Origins
from ring3_split.reader.pointers import flows
from ring3_split.reader.uses import Uses

Gather = Callable[[str], set[tuple[str, str]]]


@pytest.fixture
def flowing(clang: Path, tmp_path: Path) -> Gather:
    """The flows of the function `f`: from, to."""

    def gather(text: str) -> set[tuple[str, str]]:
        module = parse(
            compile_c(
                clang,
                tmp_path,
                "struct s { int n; int *p; int a[4]; }; void g(int, void *);\n" + text,
            ).read_text()
        )
        body = module.functions["f"]
        return {
            (shape.pointer, shape.detail)
            for shape in flows(body, Origins(module, body), Uses(body))
            if shape.what != "interior"
        }

    return gather


def test_a_parameter_that_is_passed_on_flows_to_the_argument(flowing: Gather) -> None:
    assert flowing("void f(int *p) { g(1, p); }") == {("param 0", "g:1")}


def test_a_loaded_field_flows_through_a_local_variable(flowing: Gather) -> None:
    assert flowing("void f(struct s *s) { int *q = s->p; g(1, q); }") == {("field s.p", "g:1")}


def test_an_element_of_what_a_field_points_to_still_comes_from_the_field(flowing: Gather) -> None:
    assert flowing("void f(struct s *s, int i) { g(1, &s->p[i]); }") == {("field s.p", "g:1")}


def test_a_store_into_a_field_is_a_flow(flowing: Gather) -> None:
    assert flowing("void f(struct s *s, int *p) { s->p = p; }") == {("param 1", "field s.p")}


def test_what_is_returned_flows_to_the_result(flowing: Gather) -> None:
    assert flowing("int *f(struct s *s) { return s->p; }") == {("field s.p", "return")}


def test_an_argument_of_a_call_through_a_pointer_has_no_callee(flowing: Gather) -> None:
    assert flowing("void f(void (*h)(int *), int *p) { h(p); }") == {("param 1", ":0")}


def test_memcpy_of_the_compiler_has_the_name_that_c_gives_it(flowing: Gather) -> None:
    assert flowing("void f(int *p, struct s *s) { __builtin_memcpy(p, s->p, 8); }") == {
        ("param 0", "memcpy:0"),
        ("field s.p", "memcpy:1"),
    }


def test_numbers_and_addresses_of_members_do_not_flow(flowing: Gather) -> None:
    assert flowing("void f(struct s *s) { g(s->n, s->a); }") == set()


def test_a_pointer_from_two_places_that_is_followed_is_followed_for_both(flowing: Gather) -> None:
    text = "void f(struct s *a, int *p, int i) { int *q = i ? a->p : p; q[i] = 0; }"
    assert flowing(text) == {("field s.p", "?"), ("param 1", "?")}


def test_a_struct_from_two_places_is_used_as_that_struct_for_both(flowing: Gather) -> None:
    text = "void f(struct s *a, struct s *b, int i) { struct s *q = i ? a : b; q->n = 0; }"
    assert flowing(text) == {("param 0", "s"), ("param 1", "s")}
