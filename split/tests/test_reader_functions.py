"""Functions, calls and stored addresses, as the reader finds them in small C files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ir_from_c import compile_c
from ring3_split.errors import Refusal
from ring3_split.model import Function, Stored, Unit
from ring3_split.reader import read

Read = Callable[..., Unit]


@pytest.fixture
def unit(clang: Path, tmp_path: Path) -> Read:
    def look(text: str, *flags: str) -> Unit:
        return read(compile_c(clang, tmp_path, text, *flags), "drivers/a.c", tmp_path)[0]

    return look


def named(unit: Unit, name: str) -> Function:
    (function,) = [f for f in unit.functions if f.name == name]
    return function


def places(found: tuple[Stored, ...]) -> list[tuple[str, str]]:
    """What is stored, and to which field."""
    return [(one.function, one.field) for one in found]


MUTEXES = """struct mutex { int owner; };
typedef struct { int taken; } spinlock_t;
void mutex_lock(struct mutex *lock);
void mutex_unlock(struct mutex *lock);
void _raw_spin_lock(spinlock_t *lock);
void _raw_spin_unlock(spinlock_t *lock);
struct command { struct mutex mutex; spinlock_t lock; };
struct adapter { struct command scan, reset; };
"""


def test_a_mutex_is_known_by_the_member_in_which_it_was_reached(unit: Read) -> None:
    text = (
        "void f(struct adapter *a) { mutex_lock(&a->reset.mutex); "
        "mutex_unlock(&a->reset.mutex); }\n"
    )
    (region,) = named(unit(MUTEXES + text), "f").regions
    assert (region.lock, region.within, region.name) == (
        "command.mutex",
        "adapter.reset",
        "adapter.reset.mutex",
    )


@pytest.mark.parametrize(
    "text",
    [
        "void f(struct command *c) { mutex_lock(&c->mutex); mutex_unlock(&c->mutex); }",
        "void f(struct adapter *a, int n) { struct command *c = n ? &a->scan : "
        "&a->reset;\nmutex_lock(&c->mutex); }",
        "void f(struct adapter *a) { mutex_lock(&a->scan.mutex); mutex_lock(&a->reset.mutex); }",
    ],
    ids=["by a pointer", "by a pointer to one of two", "two in one line"],
)
def test_a_mutex_whose_member_is_not_known_keeps_the_name_of_its_struct(
    unit: Read, text: str
) -> None:
    assert {region.name for region in named(unit(MUTEXES + text), "f").regions} == {"command.mutex"}


def test_a_spinlock_keeps_one_name_however_it_is_reached(unit: Read) -> None:
    text = (
        "void f(struct adapter *a) { _raw_spin_lock(&a->scan.lock); "
        "_raw_spin_unlock(&a->scan.lock); }\n"
    )
    (region,) = named(unit(MUTEXES + text), "f").regions
    assert (region.within, region.name) == ("", "command.lock")


def test_a_file_that_is_not_ir_is_refused_with_its_source(tmp_path: Path) -> None:
    (tmp_path / "a.ll").write_text("hello\n")
    with pytest.raises(Refusal, match=r"drivers/a\.c"):
        read(tmp_path / "a.ll", "drivers/a.c", tmp_path)


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="cannot be read"):
        read(tmp_path / "a.ll", "drivers/a.c", tmp_path)


def test_a_function_goes_from_its_name_to_its_closing_brace(unit: Read) -> None:
    function = named(
        unit(
            "static int x;\nint\nf(int a)\n{\n  return a +\n    1;\n}\n\nint g(void) { return 1; "
            "}\n"
        ),
        "f",
    )
    assert (function.file, function.line, function.end) == ("drivers/a.c", 3, 7)


def test_braces_in_comments_strings_and_branches_do_not_end_a_function(unit: Read) -> None:
    text = (
        'int f(int a)\n{\n  /* } */ const char *s = "}"; // }\n#if 0\n  if (a) {\n#else\n  if '
        "(!a) {\n#endif\n"
    )
    text += "    return s[0] == '}';\n  }\n  return 0;\n}\n"
    assert named(unit(text), "f").end == 12


def test_a_function_that_a_macro_writes_ends_where_it_is_used(unit: Read) -> None:
    text = "#define MAKE(n) int n(int a) { return a; }\nMAKE(f)\n\n\nint g(void) { return f(1); }\n"
    assert (named(unit(text), "f").line, named(unit(text), "f").end) == (2, 2)


def test_a_function_of_a_header_is_in_the_header(unit: Read, tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/h.h").write_text("\nstatic inline int h(void)\n{\n\treturn 1;\n}\n")
    function = named(
        unit('#include "h.h"\nint f(void) { return h(); }\n', f"-I{tmp_path}/include"), "h"
    )
    assert (function.id, function.line, function.end, function.static, function.inline) == (
        "include/h.h:h",
        2,
        5,
        True,
        True,
    )


def test_a_header_outside_the_tree_is_named_as_the_tree_names_it(
    unit: Read, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    away = tmp_path_factory.mktemp("headers-common")
    for root in (away, tmp_path):
        (root / "include/linux").mkdir(parents=True)
        (root / "include/linux/h.h").write_text("static inline int h(void) { return 1; }\n")
    generated = away / "arch/x86/include/generated"
    generated.mkdir(parents=True)
    (generated / "g.h").write_text("static inline int g(void) { return 1; }\n")
    text = '#include <linux/h.h>\n#include "g.h"\nint f(void) { return h() + g(); }\n'
    found = unit(text, f"-I{away}/include", f"-I{generated}")
    assert named(found, "h").file == "include/linux/h.h"
    assert named(found, "g").file == "arch/x86/include/generated/g.h"


def test_a_file_that_was_generated_for_the_driver_is_in_the_drivers_folder(
    unit: Read, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    away = tmp_path_factory.mktemp("made") / "drivers"
    away.mkdir()
    (tmp_path / "drivers").mkdir()
    (away / "made.h").write_text("static int made(void) { return 1; }\n")
    found = unit('#include "made.h"\nint f(void) { return made(); }\n', f"-I{away}")
    assert named(found, "made").file == "drivers/made.h"


def test_a_plain_function_is_not_inline(unit: Read) -> None:
    found = unit("static inline int a(void) { return 1; }\n\nint f(void) { return a(); }\n")
    assert [f.inline for f in (named(found, "a"), named(found, "f"))] == [True, False]


def test_a_section_is_kept(unit: Read) -> None:
    assert (
        named(
            unit('__attribute__((section(".init.text"))) int f(void) { return 0; }\n'), "f"
        ).section
        == ".init.text"
    )


def test_types_are_written_as_the_source_has_them(unit: Read) -> None:
    text = "typedef unsigned char u8; struct s; typedef struct s *handle;\n"
    text += (
        "const struct s *f(u8 a[4], handle h, int (*cb)(struct s *, const u8 *), const char "
        "*const *n, ...) { return h; }\n"
    )
    function = named(unit(text), "f")
    assert function.returns == "const struct s *"
    assert [p.type for p in function.parameters] == [
        "u8 *",
        "handle",
        "int (*)(struct s *, const u8 *)",
        "const char *const *",
    ]
    assert [p.name for p in function.parameters] == ["a", "h", "cb", "n"]
    assert function.variadic


def test_equal_types_have_equal_signatures(unit: Read) -> None:
    found = unit("void a(int x) {}\nvoid b(int y) {}\nvoid c(long y) {}\n")
    assert named(found, "a").signature == named(found, "b").signature != named(found, "c").signature


def test_a_static_function_whose_address_nobody_takes_has_no_signature(unit: Read) -> None:
    assert named(unit("static void a(void) {}\nvoid f(void) { a(); }\n"), "a").signature is None


def test_calls_keep_their_lines_and_intrinsics_are_none(unit: Read) -> None:
    text = (
        "struct s { int a[99]; };\nvoid g(int);\nvoid f(struct s *p, struct s *q) {\n  *p = "
        "*q;\n  g(1);\n  g(2);\n}\n"
    )
    assert [(c.callee, c.line) for c in named(unit(text), "f").calls] == [("g", 5), ("g", 6)]


def test_a_call_through_a_field_of_a_parameter_names_the_field(unit: Read) -> None:
    text = "struct ops { int x; int (*open)(int); };\nint f(struct ops *o) { return o->open(1); }\n"
    (call,) = named(unit(text), "f").indirect
    assert (call.field, call.parameter, call.line) == ("ops.open", -1, 2)


def test_a_call_through_an_embedded_table_names_the_innermost_field(unit: Read) -> None:
    text = "struct ops { int (*open)(int); };\nstruct dev { int n; struct ops ops[2]; };\n"
    text += "int f(struct dev *d, int i) { return d->ops[i].open(1); }\n"
    assert [call.field for call in named(unit(text), "f").indirect] == ["ops.open"]


def test_a_call_through_a_local_copy_names_the_field(unit: Read) -> None:
    text = (
        "struct ops { int (*open)(int); };\nint f(struct ops *o) { int (*p)(int) = o->open; "
        "return p ? p(1) : 0; }\n"
    )
    assert [call.field for call in named(unit(text), "f").indirect] == ["ops.open"]


def test_a_call_through_a_parameter_has_its_position(unit: Read) -> None:
    (call,) = named(unit("int f(int a, int (*cb)(int)) { return cb(a); }\n"), "f").indirect
    assert (call.parameter, call.field) == (1, "")


def test_a_call_through_a_table_of_functions_names_the_table(unit: Read) -> None:
    text = (
        "static void a(int x) {}\nstatic void b(int x) {}\nstatic void (*const table[])(int) = "
        "{a, b};\n"
    )
    found = unit(text + "void f(int i) { table[i](i); }\n")
    assert [(call.variable, call.field) for call in named(found, "f").indirect] == [("table", "")]
    assert [(one.function, one.object) for one in found.stored] == [("a", "table"), ("b", "table")]


def test_a_call_through_a_cast_has_the_hash_of_the_cast(unit: Read) -> None:
    text = (
        "void g(long x) {}\nstruct s { void *p; };\nvoid f(struct s *s) { ((void "
        "(*)(long))s->p)(1); }\n"
    )
    found = unit(text)
    (call,) = named(found, "f").indirect
    assert (call.field, call.signature) == ("s.p", named(found, "g").signature)


def test_a_call_through_a_local_that_can_only_be_known_functions_is_direct(unit: Read) -> None:
    text = "static void a(int x) {}\nstatic void b(int x) {}\nvoid f(int i) { (i ? a : b)(1); }\n"
    function = named(unit(text), "f")
    assert ([c.callee for c in function.calls], function.indirect) == (["a", "b"], ())


def test_an_address_stored_by_code_names_its_field(unit: Read) -> None:
    text = (
        "struct w { void (*func)(struct w *); };\nstruct d { int n; struct w work; };\nstatic "
        "void h(struct w *w) {}\n"
    )
    text += "void f(struct d *d) {\n  d->work.func = h;\n}\n"
    assert named(unit(text), "f").stored == (Stored("h", 5, field="w.func", owner="d.work"),)


def test_an_address_that_is_passed_names_function_and_position(unit: Read) -> None:
    text = "int request_irq(int, int (*)(int), void *);\nstatic int h(int i) { return i; }\n"
    assert named(unit(text + "void f(void) { request_irq(7, h, 0); }\n"), "f").stored == (
        Stored("h", 3, api="request_irq", argument=1),
    )


def test_an_address_chosen_by_a_condition_is_stored_twice(unit: Read) -> None:
    text = "struct s { void (*go)(void); };\nstatic void a(void) {}\nstatic void b(void) {}\n"
    found = named(unit(text + "void f(struct s *s, int i) { s->go = i ? a : b; }\n"), "f").stored
    assert places(found) == [("a", "s.go"), ("b", "s.go")]


def test_an_address_that_goes_through_a_local_variable_is_found_where_it_ends(unit: Read) -> None:
    text = "struct s { void (*go)(void); };\nstatic void a(void) {}\nstatic void b(void) {}\n"
    text += "void f(struct s *s, int i) { void (*p)(void) = a; if (i) p = b; s->go = p; }\n"
    assert places(named(unit(text), "f").stored) == [("a", "s.go"), ("b", "s.go")]


def test_an_address_that_is_returned_is_taken(unit: Read) -> None:
    text = "typedef void (*handler)(void);\nstatic void a(void) {}\nhandler f(void) { return a; }\n"
    assert named(unit(text), "f").stored == (Stored("a", 3),)


def test_a_call_of_a_local_pointer_that_starts_as_null_is_direct(unit: Read) -> None:
    text = (
        "static void a(void) {}\nvoid f(int i) { void (*p)(void) = 0; if (i) p = a; if (p) p(); }\n"
    )
    function = named(unit(text), "f")
    assert ([c.callee for c in function.calls], function.indirect) == (["a"], ())


def test_an_alias_that_is_stored_is_a_function(unit: Read) -> None:
    text = (
        'void real(void) {}\nvoid other(void) __attribute__((alias("real")));\nstruct s { void '
        "(*go)(void); } s = { other };\n"
    )
    assert places(unit(text).stored) == [("other", "s.go")]


def test_a_comparison_takes_no_address(unit: Read) -> None:
    text = (
        "struct s { void (*go)(void); };\nstatic void a(void) {}\nint f(struct s *s) { return "
        "s->go == a; }\n"
    )
    assert named(unit(text), "f").stored == ()


def test_initialisers_are_followed_through_structs_arrays_and_unions(unit: Read) -> None:
    text = (
        "struct ops { int n; void (*go)(void); };\nstatic void a(void) {}\nstatic void b(void) "
        "{}\nstatic void c(void) {}\n"
    )
    text += (
        "struct box { struct ops one; struct ops many[3]; union { long l; void (*u)(void); } un;"
    )
    text += " struct { void (*in)(void); }; };\n"
    text += (
        "struct box box = { .one = { 1, a }, .many = { {}, { 2, b } }, .un = { .u = c }, .in "
        "= a };\n"
    )
    found = unit(text).stored
    assert places(found) == [("a", "ops.go"), ("b", "ops.go"), ("c", "box.un.u"), ("a", "box.in")]
    assert {one.object for one in found} == {"box"}


def test_an_array_without_a_length_at_the_end_keeps_its_fields(unit: Read) -> None:
    text = (
        "static void a(void) {}\nstatic struct { int n; struct e { int i; void (*go)(void); } "
        "list[]; } g ="
    )
    text += " { 1, { {}, { 2, a } } };\n"
    assert places(unit(text + "int f(void) { return g.n; }\n").stored) == [("a", "e.go")]


def test_a_local_table_names_the_variable(unit: Read) -> None:
    text = "static void a(void) {}\nstatic void b(void) {}\nvoid use(void *);\n"
    text += (
        "void f(void) { struct { int n; void (*go)(void); } t[] = { { 1, a }, { 2, b } }; "
        "use(t); }\n"
    )
    assert [(one.function, one.object) for one in unit(text).stored] == [("a", "f.t"), ("b", "f.t")]


def test_a_declared_function_whose_address_is_taken_has_its_hash(unit: Read) -> None:
    text = (
        "int eth_validate(int);\nint mine(int i) { return i; }\nstruct o { int (*v)(int); } o "
        "= { eth_validate };\n"
    )
    found = unit(text)
    assert found.declared == {"eth_validate": named(found, "mine").signature}


def test_what_module_init_and_addressable_write_is_no_taken_address(unit: Read) -> None:
    text = (
        "static int start(void) { return 0; }\nint init_module(void) "
        '__attribute__((alias("start")));\n'
    )
    text += '#define MARK static void *__attribute__((used, section(".discard.addressable")))\n'
    text += (
        "MARK __UNIQUE_ID___addressable_init_module1 = &init_module;\nMARK __addressable_x = "
        "&start;\n"
    )
    found = unit(text)
    assert (found.aliases, found.stored) == ({"init_module": "start"}, ())


def test_exports_are_found_as_2_6_writes_them(unit: Read) -> None:
    text = "int go(void) { return 0; }\n"
    text += (
        "static const struct kernel_symbol { unsigned long value; const char *name; } "
        "__ksymtab_go\n"
    )
    text += '__attribute__((used, section("__ksymtab"))) = { (unsigned long)&go, "go" };\n'
    found = unit(text)
    assert (found.exports, found.stored) == (("go",), ())


@pytest.mark.parametrize(
    "assembly",
    [
        '.section "___ksymtab+go", "a"\n__ksymtab_go:\n\t.long go - .\n\t.previous',  # 5.x
        # 6.x
        '.section ".export_symbol","a" ; __export_symbol_go: ; .asciz "GPL" ; .quad go ; .previous',
    ],
)
def test_exports_are_found_as_later_kernels_write_them(unit: Read, assembly: str) -> None:
    quoted = assembly.replace('"', '\\"').replace("\n", "\\n").replace("\t", " ")
    assert unit(f'int go(void) {{ return 0; }}\nasm("{quoted}");\n').exports == ("go",)


def test_module_parameters_are_named(unit: Read) -> None:
    text = "struct kernel_param { const char *name; void *arg; };\nstatic int debug;\n"
    text += (
        "static const struct kernel_param __param_debug __attribute__((used, "
        'section("__param"))) = { "debug", &debug };\n'
    )
    text += 'static const char __param_str_debug[] __attribute__((used)) = "debug";\n'
    assert unit(text).parameters == ("debug",)


def test_assembly_of_the_files_own_text_and_macros_counts_and_that_of_headers_does_not(
    unit: Read, tmp_path: Path
) -> None:
    (tmp_path / "h.h").write_text('#define barrier() asm volatile("mfence")\n')
    text = (
        '#include "h.h"\n#define mine() asm volatile("nop")\nvoid f(void) {\n  asm("hlt");\n  '
        "barrier();\n  mine();\n"
    )
    text += '  asm volatile("" ::: "memory");\n}\n'
    assert named(unit(text, f"-I{tmp_path}"), "f").assembly == (4, 6)


def test_per_cpu_data_is_seen_through_segment_and_section(unit: Read) -> None:
    text = 'extern int counter __attribute__((section(".data..percpu")));\n'
    text += (
        "void f(int __attribute__((address_space(256))) *p) {\n  *p = 1;\n  counter++;\n  int "
        "local = 2;\n}\n"
    )
    assert named(unit(text), "f").percpu == (3, 4)


def test_calls_carry_the_locks_that_may_be_held(unit: Read) -> None:
    text = (
        "typedef struct { int x; } spinlock_t;\nvoid _raw_spin_lock(spinlock_t *);\nvoid "
        "_raw_spin_unlock(spinlock_t *);\n"
    )
    text += (
        "void g(int);\nstruct d { spinlock_t lock; };\nvoid f(struct d *d) {\n  g(1);\n  "
        "_raw_spin_lock(&d->lock);\n  g(2);\n"
    )
    text += "  _raw_spin_unlock(&d->lock);\n  g(3);\n}\n"
    function = named(unit(text), "f")
    assert [region.lock for region in function.regions] == ["d.lock"]
    assert [c.held for c in function.calls if c.callee == "g"] == [(), (0,), ()]


ODD = {
    "computed goto": "int f(int i) { static void *t[] = {&&a, &&b}; g(); goto *t[i]; a: return 1; "
    "b: return 2; }",
    "asm goto": 'int f(int i) { asm goto("jmp %l0" : : "r"(i) : "memory" : out); g(); return 1; '
    "out: return 2; }",
    "asm with a struct of outputs": 'int f(int i) { int a, b; asm("x" : "=a"(a), "=d"(b) : '
    '"0"(i)); g(); return a + b; }',
    "a vector": "typedef int v4 __attribute__((vector_size(16))); v4 f(v4 a, v4 b) { g(); return "
    "a * b + (v4){1, 2, 3, 4}; }",
    "varargs": "int f(int n, ...) { __builtin_va_list l; __builtin_va_start(l, n); g(); return "
    "__builtin_va_arg(l, int); }",
    "an array of variable length": "int f(int n) { int a[n]; g(); a[0] = n; return a[n - 1]; }",
    "a statement expression": "int f(int n) { return ({ int x = n; g(); x + 1; }); }",
    "a struct by value": "struct s { long a, b, c; }; struct s f(struct s x) { g(); return x; }",
    "a small struct by value": "struct s { int a; char b; }; struct s f(struct s x) { g(); return "
    "x; }",
    "a switch with ranges": "int f(int n) { switch (n) { case 0 ... 9: g(); return 1; default: "
    "return 2; } }",
    "a cleanup": "static void c(int *p) {} int f(void) { int x __attribute__((cleanup(c))) = 1; "
    "g(); return x; }",
    "a wide integer": "__int128 f(__int128 a) { g(); return a << 3; }",
    "a floating constant": "double f(double a) { g(); return a * 1e300 + 0.1; }",
    "a call of a fixed address": "int f(void) { g(); return ((int (*)(void))0x1234)(); }",
    "a symbol by another name": 'int other(void) asm("real.name"); int f(void) { g(); return '
    "other(); }",
    "a declaration of the old kind": "int f(a, b) int a; char *b; { g(); return a + *b; }",
    "a tail of nothing": "int f(int a) { g(); if (a) __builtin_unreachable(); for (;;); }",
    "an atomic": "int f(int *p) { g(); return __atomic_compare_exchange_n(p, p, 1, 0, 5, 5); }",
    "text with brackets and quotes": 'int f(void) { const char *s = "}]){(\\"@f %f call"; g(); '
    "return s[1]; }",
    "a union passed through": "union u { int a; float b; }; float f(union u x) { g(); return x.b; "
    "}",
}


@pytest.mark.parametrize("name", ODD)
def test_code_of_every_kind_is_read(unit: Read, name: str) -> None:
    function = named(unit(f"void g();\n{ODD[name]}\n"), "f")
    assert "g" in [call.callee for call in function.calls]
    assert (function.line, function.end) == (2, 2)


def test_old_code_for_i386_is_read(unit: Read) -> None:
    text = (
        "extern inline int help(int x)\n{\n  return x;\n}\nint f(x)\nint x;\n{\n  "
        "undeclared(x);\n  return help(x);\n}\n"
    )
    found = unit(text, "-m32", "-std=gnu89", "-fgnu89-inline", "-Wno-implicit-function-declaration")
    assert [call.callee for call in named(found, "f").calls] == ["undeclared", "help"]
    assert (named(found, "f").line, named(found, "f").end) == (5, 10)
    assert [function.name for function in found.functions] == [
        "f"
    ]  # an extern inline function is another unit's


def test_a_symbol_by_another_name_is_called_by_that_name(unit: Read) -> None:
    function = named(
        unit('int other(void) asm("real.name");\nint f(void) { return other(); }\n'), "f"
    )
    assert [call.callee for call in function.calls] == ["real.name"]
