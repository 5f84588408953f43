"""Where values came from, and which field an access touches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ir_from_c import compile_c
from ring3_split.ir.module import parse
from ring3_split.ir.origin import Origin, Origins

Look = Callable[..., Origin]


@pytest.fixture
def argument(clang: Path, tmp_path: Path) -> Look:
    """The origin of the argument of the one call of `use` in the function `f`."""

    def look(text: str, *flags: str) -> Origin:
        module = parse(compile_c(clang, tmp_path, "void use();\n" + text, *flags).read_text())
        body = module.functions["f"]
        (call,) = [i for i in body.instructions if i.callee == "@use"]
        return Origins(module, body).of(call.arguments[0])

    return look


@pytest.fixture
def touched(clang: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """The fields that the loads and stores of `f` touch, in order, each once."""

    def look(text: str, *flags: str) -> list[str]:
        module = parse(compile_c(clang, tmp_path, text, *flags).read_text())
        body = module.functions["f"]
        origins = Origins(module, body)
        found = []
        for instruction in body.instructions:
            if instruction.opcode in ("load", "store") and not origins.part_of_store(instruction):
                field = origins.leaf(origins.of(instruction.operands[-1]), instruction)
                if field:
                    found.append(field.name)
        return list(dict.fromkeys(found))

    return look


def test_a_parameter_keeps_its_position_and_name(argument: Look) -> None:
    origin = argument("void f(int a, void *b) { use(b); }")
    assert (str(origin), origin.name) == ("param 1", "b")


def test_a_local_copy_is_looked_through(argument: Look) -> None:
    assert str(argument("void f(void *a) { void *b = a; void *c = b; use(c); }")) == "param 0"


def test_a_variable_that_holds_two_things_is_unknown(argument: Look) -> None:
    assert (
        argument("void *g; void f(void *a, int i) { void *b = a; if (i) b = g; use(b); }").kind
        == "unknown"
    )


def test_null_beside_something_else_is_left_out(argument: Look) -> None:
    assert (
        str(argument("void f(void *a, int i) { void *b = 0; if (i) b = a; use(b); }")) == "param 0"
    )


def test_a_result_names_its_callee(argument: Look) -> None:
    assert str(argument("void *get(void); void f(void) { void *p = get(); use(p); }")) == "call get"


def test_what_a_callee_fills_in_names_the_callee(argument: Look) -> None:
    assert (
        str(argument("void get(void **); void f(void) { void *p; get(&p); use(p); }")) == "call get"
    )


def test_the_address_of_an_embedded_struct_is_a_field(argument: Look) -> None:
    origin = argument(
        "struct in { int a; }; struct s { int x; struct in hw; }; void f(struct s *p) { "
        "use(&p->hw); }"
    )
    assert (str(origin), origin.address, str(origin.object)) == ("field s.hw", True, "param 0")


def test_a_pointer_loaded_from_a_field_is_not_its_address(argument: Look) -> None:
    origin = argument("struct s { void *a, *b; }; void f(struct s *p) { use(p->b); }")
    assert (str(origin), origin.address) == ("field s.b", False)


def test_a_member_of_a_member_knows_both(argument: Look) -> None:
    text = (
        "struct in { void *q; }; struct s { int x; struct in hw; }; void f(struct s *p) { "
        "struct in *h = &p->hw; use(h->q); }"
    )
    origin = argument(text)
    assert origin.base is not None
    assert (origin.name, origin.base.within, str(origin.object), str(origin.base.object)) == (
        "in.q",
        "s.hw",
        "field in.q",
        "param 0",
    )


def test_an_element_of_an_array_in_a_global_is_its_field(argument: Look) -> None:
    text = (
        "struct in { void *q; }; static struct { int n; struct in a[3]; } g; void f(int i) { "
        "use(g.a[i].q); }"
    )
    origin = argument(text)
    assert origin.base is not None
    assert (origin.name, str(origin.base.object)) == ("in.q", "global g")


@pytest.mark.parametrize(
    "flags", [(), ("-m32",), ("--target=aarch64-linux-gnu",), ("--target=mips-linux-gnu",)]
)
def test_bit_fields_are_told_apart(
    touched: Callable[..., list[str]], flags: tuple[str, ...]
) -> None:
    text = "struct s { unsigned a:3, b:5; int c:4; long long d:40; int e; };"
    text += "int f(struct s *p) { p->b = 3; p->d = 1; p->e = 2; return p->a + p->c; }"
    assert touched(text, *flags) == ["s.b", "s.d", "s.e", "s.a", "s.c"]


def test_a_bit_field_of_a_global_is_found(touched: Callable[..., list[str]]) -> None:
    assert touched("struct s { unsigned a:3, b:5; }; struct s g; void f(void) { g.b = 1; }") == [
        "s.b"
    ]


def test_the_first_member_of_a_global_is_found(touched: Callable[..., list[str]]) -> None:
    assert touched("struct s { int a, b; }; struct s g; void f(void) { g.a = 1; g.b = 2; }") == [
        "s.a",
        "s.b",
    ]


def test_a_member_of_an_unnamed_union_belongs_to_the_struct(
    touched: Callable[..., list[str]],
) -> None:
    text = (
        "struct s { int a; union { void *p; struct { short x, y; }; }; }; void f(struct s *q) "
        "{ q->p = 0; q->y = 1; }"
    )
    assert touched(text) == ["s.p", "s.y"]


def test_a_named_member_of_an_unnamed_type_names_the_type(
    touched: Callable[..., list[str]],
) -> None:
    text = (
        "struct s { union { long v; struct { char c[4]; } in; } u; }; void f(struct s *q) { "
        "q->u.in.c[1] = 1; q->u.v = 2; }"
    )
    assert touched(text) == ["s.u.in.c", "s.u.v"]


def test_marks_without_size_are_skipped(touched: Callable[..., list[str]]) -> None:
    text = (
        "struct s { char begin[0]; int a; char end[0]; char begin2[0]; long b; }; void "
        "f(struct s *q) { q->a = 1; q->b = 2; }"
    )
    assert touched(text) == ["s.a", "s.b"]


def test_a_list_without_a_length_in_a_union_is_found(argument: Look) -> None:
    text = (
        "struct s { short n; union { char some[14]; struct { struct { } empty; char all[]; }; }; };"
    )
    assert str(argument(text + "void f(struct s *q) { use(q->all); }")) == "field s.all"


def test_bit_fields_of_a_group_belong_to_the_struct_around_it(
    touched: Callable[..., list[str]],
) -> None:
    text = (
        "struct s { int n; union { struct { unsigned long a:32, b:1; }; struct { unsigned long "
        "a:32, b:1; } group; }; };"
    )
    assert touched(text + "void f(struct s *q) { q->a = 1; q->b = 1; }") == ["s.a", "s.b"]


def test_a_type_that_only_a_typedef_names_has_that_name(touched: Callable[..., list[str]]) -> None:
    assert touched("typedef struct { int n; } atomic_t; void f(atomic_t *a) { a->n = 1; }") == [
        "atomic_t.n"
    ]


def test_two_structs_of_one_name_are_told_apart(touched: Callable[..., list[str]]) -> None:
    text = "struct s { int a; long b; }; void g(struct s *p) { p->b = 1; }"
    text += "void f(void *v) { struct s { char x; int y; }; ((struct s *)v)->y = 1; }"
    assert touched(text) == ["s.y"]


def test_a_packed_struct_is_found(touched: Callable[..., list[str]]) -> None:
    assert touched(
        "struct s { char a; int b; } __attribute__((packed)); void f(struct s *q) { q->b = 1; }"
    ) == ["s.b"]


def test_an_array_of_structs_that_is_walked_keeps_its_fields(
    touched: Callable[..., list[str]],
) -> None:
    text = (
        "struct e { int a, b; }; struct s { int n; struct e *ring; }; void f(struct s *q, int "
        "i) { q->ring[i].b = 1; }"
    )
    assert touched(text) == ["s.ring", "e.b"]
