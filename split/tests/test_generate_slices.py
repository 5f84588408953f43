"""Sources without some of their functions, and functions read from preprocessed text."""

from __future__ import annotations

import pytest

from ring3_split.errors import Refusal
from ring3_split.generate import declarations
from ring3_split.generate.slices import Slice, local_static

SOURCE = """\
#include <linux/module.h>
#ifdef A
#include <linux/a.h>
#endif
static int keep(void) { return 1; }
static int gone(int x)
{
#define SIZE 4
	return x;
}
int last(void);
"""

UNIT = """\
# 1 "driver.c"
struct card { int state; };
typedef int (*handler)(int);
extern int enable(struct card *card, const char *name, ...) __attribute__((format(printf, 2, 3)));
extern struct card the_card;
static const struct card one = { .state = (1) };
static __attribute__((unused))
int probe(struct card *card, int (*done)(int), unsigned long flags[2])
{
	if (card) { return '}'; }
	return 0;
}
# 40 "driver.c"
void *find(void) { return (void *)"{"; }
"""


def sliced() -> Slice:
    return Slice("d.c", SOURCE.split("\n"))


def test_what_goes_is_not_compiled_and_lines_keep_their_numbers() -> None:
    one = sliced()
    one.replace(6, 10, "int stub(void);")
    lines = one.text().split("\n")
    at = lines.index("static int gone(int x)")
    assert lines[at - 1] == "#if 0"
    assert lines[lines.index("int stub(void);") + 1] == '#line 11 "d.c"'
    assert lines[lines.index("int last(void);") - 1] == '#line 11 "d.c"'


def test_a_macro_that_a_function_defines_stays() -> None:
    one = sliced()
    one.replace(6, 10)
    lines = one.text().split("\n")
    at = lines.index("#define SIZE 4")
    assert (lines[at - 1], lines[at + 1]) == ("#endif", "#if 0")


def test_what_stands_behind_the_includes_is_not_inside_a_condition() -> None:
    one = sliced()
    one.behind_includes = '#include "prelude.h"'
    assert one.text().split("\n").index('#include "prelude.h"') == 2


def test_functions_that_share_lines_are_refused() -> None:
    one = sliced()
    one.replace(6, 10)
    with pytest.raises(Refusal, match=r"d\.c:10"):
        one.replace(10, 11)


def test_a_static_variable_of_a_function_is_found_to_its_end() -> None:
    lines = [
        "int f(void)",
        "{",
        "\tstatic const struct ops ops = {",
        "\t\t.free = f,",
        "\t};",
        "\treturn 0;",
        "}",
    ]
    begin, end, text = local_static(lines, 1, 7, "ops")
    assert (begin, end) == (3, 5)
    assert text.endswith("};")


def test_a_static_variable_that_is_not_there_is_refused() -> None:
    with pytest.raises(Refusal, match="ops"):
        local_static(["int f(void) { }"], 1, 1, "ops")


def test_a_definition_has_its_lines_also_with_brackets_in_characters() -> None:
    found = declarations.read(UNIT).functions["probe"]
    assert (found.first, found.last, found.defined) == (6, 11, True)
    assert declarations.read(UNIT).functions["find"].first == 40


def test_parameters_are_read_with_pointers_to_functions_and_arrays() -> None:
    found = declarations.read(UNIT).functions["probe"].parameters
    assert [(one.name, one.pointer) for one in found] == [
        ("card", True),
        ("done", True),
        ("flags", True),
    ]
    assert found[0].type == "struct card *"
    assert found[1].type == "int (*)(int)"


def test_a_declaration_says_whether_its_arguments_vary() -> None:
    found = declarations.read(UNIT).functions["enable"]
    assert found.variadic
    assert not found.defined
    assert [one.type for one in found.parameters] == ["struct card *", "const char *"]


def test_variables_and_typedefs_are_no_functions() -> None:
    unit = declarations.read(UNIT)
    assert "handler" not in unit.functions
    assert "one" not in unit.functions
    assert unit.variables == {"the_card": "card"}
    assert "card" in unit.structs
