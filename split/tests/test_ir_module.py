"""The parser of text IR."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ir_from_c import compile_c
from ring3_split.ir.module import Body, IrModule, parse

Read = Callable[..., IrModule]


@pytest.fixture
def read(clang: Path, tmp_path: Path) -> Read:
    def read_text(text: str, *flags: str) -> IrModule:
        return parse(compile_c(clang, tmp_path, text, *flags).read_text())

    return read_text


def only(module: IrModule) -> Body:
    (body,) = module.functions.values()
    return body


def test_text_that_is_not_ir_is_refused() -> None:
    with pytest.raises(ValueError, match="not clang's IR"):
        parse("hello\n")


def test_ir_that_is_cut_off_is_refused(clang: Path, tmp_path: Path) -> None:
    text = compile_c(clang, tmp_path, "int f(int a) { return a; }\n").read_text()
    with pytest.raises(ValueError, match="cut off"):
        parse(text[:-5])
    with pytest.raises(ValueError, match="does not end"):
        parse(text[: text.index("\n}")] + "\n")


def test_a_call_has_its_callee_arguments_and_line(read: Read) -> None:
    body = only(read("int g(int, void *, int);\nint f(void *p) {\n  return g(1, p, -3);\n}\n"))
    (call,) = [i for i in body.instructions if i.opcode == "call"]
    assert (call.callee, call.arguments[0], call.arguments[2], call.line) == ("@g", "1", "-3", 3)


def test_a_call_through_a_pointer_has_the_hash_of_its_type(read: Read) -> None:
    module = read("void h(int x) {}\nvoid f(void (*p)(int)) { p(1); }\n")
    (call,) = [i for i in module.functions["f"].instructions if i.opcode == "call"]
    assert call.kcfi is not None
    assert call.kcfi == module.functions["h"].kcfi
    assert call.callee.startswith("%")


def test_a_struct_that_is_returned_in_memory_is_no_argument(read: Read) -> None:
    body = only(
        read("struct r { long a, b, c; };\nstruct r g(int);\nvoid f(void) { struct r r = g(7); }\n")
    )
    (call,) = [i for i in body.instructions if i.callee == "@g"]
    assert call.arguments == ["7"]


def test_a_switch_goes_to_each_of_its_cases_once(read: Read) -> None:
    body = only(
        read(
            "int f(int i) { switch (i) { case 1: case 2: return 5; case 9: return 6; } return 0; "
            "}\n"
        )
    )
    (block,) = [b for b in body.blocks.values() if b.instructions[-1].opcode == "switch"]
    assert len(block.successors) == 3
    assert set(block.successors) <= set(body.blocks)


def test_asm_goto_goes_to_its_labels(read: Read) -> None:
    body = only(read('int f(void) { asm goto("jmp %l0" : : : : out); return 1; out: return 2; }\n'))
    (block,) = [b for b in body.blocks.values() if b.instructions[-1].opcode == "callbr"]
    assert len(block.successors) == 2
    assert block.instructions[-1].assembly == ("jmp ${0:l}", "!i,~{dirflag},~{fpsr},~{flags}")


def test_a_computed_goto_goes_to_every_label_whose_address_is_taken(read: Read) -> None:
    body = only(
        read("int f(int i) { void *t[] = {&&a, &&b}; goto *t[i]; a: return 1; b: return 2; }\n")
    )
    (block,) = [b for b in body.blocks.values() if b.instructions[-1].opcode == "indirectbr"]
    assert len(block.successors) == 2


def test_every_block_can_be_found_by_the_label_that_others_go_to(read: Read) -> None:
    body = only(
        read(
            "int f(int a, int b) { for (; a < b; a++) if (a == 7) return b; else while (b) b--; "
            "return a; }\n"
        )
    )
    assert {s for b in body.blocks.values() for s in b.successors} <= set(body.blocks)
    assert next(iter(body.blocks)) == "2"  # %0 and %1 are the parameters


def test_inline_assembly_keeps_its_operands(read: Read) -> None:
    body = only(
        read(
            'int f(int *p) { int r; asm volatile("nop (%%eax)" : "=r"(r), "+m"(*p) : "r"(5)); '
            "return r; }\n"
        )
    )
    (call,) = [i for i in body.instructions if i.callee == "asm"]
    assert call.assembly is not None
    assert call.assembly[0] == "nop (%eax)"
    assert call.arguments[1] == "5"


def test_an_instruction_inside_a_macro_is_where_the_macro_is_used(read: Read) -> None:
    body = only(read("void g(void);\n#define M() g()\nvoid f(void) {\n\n  M();\n}\n"))
    (call,) = [i for i in body.instructions if i.opcode == "call"]
    assert call.line == 5


def test_atomic_accesses_keep_pointer_and_value_apart(read: Read) -> None:
    body = only(
        read(
            "int f(int *p) { __atomic_store_n(p, 3, 5); return __atomic_load_n(p, 5) + "
            "__sync_fetch_and_add(p, 4); }\n"
        )
    )
    operands = {i.opcode: i.operands for i in body.instructions if "seq_cst" in i.text}
    assert operands["store"][1].startswith("%")
    assert operands["load"][0].startswith("%")
    assert operands["atomicrmw"][1] == "4"


def test_a_variadic_call_has_all_its_arguments(read: Read) -> None:
    body = only(
        read('int printk(const char *, ...);\nvoid f(void) { printk("%d (%s)", 1, (char *)0); }\n')
    )
    (call,) = [i for i in body.instructions if i.opcode == "call"]
    assert call.arguments[1:] == ["1", "null"]


def test_variables_carry_name_and_position_of_parameters(read: Read) -> None:
    body = only(read("int f(int first, long second) { int local = first; return local; }\n"))
    assert [(v.name, v.argument) for v in body.variables.values()] == [
        ("first", 0),
        ("second", 1),
        ("local", -1),
    ]


def test_layouts_are_those_of_the_target(read: Read) -> None:
    text = "struct s { char a; long long b; struct { short c; } __attribute__((packed)) d[3]; };\n"
    text += "struct s *f(struct s *p) { return p + (p->b); }\n"
    wide, narrow = read(text).types, read(text, "-m32").types
    assert [wide.offset("%struct.s", i) for i in range(3)] == [0, 8, 16]
    assert [narrow.offset("%struct.s", i) for i in range(3)] == [0, 4, 12]
    assert (wide.size("%struct.s"), narrow.size("%struct.s")) == (24, 20)


def test_an_alias_names_what_it_stands_for(read: Read) -> None:
    module = read(
        "static int start(void) { return 0; }\nint init_module(void) "
        '__attribute__((alias("start")));\n'
    )
    assert module.aliases == {"init_module": "start"}
