"""The pieces of a source file at file scope."""

from __future__ import annotations

import pytest

from ring3_split.annotate.outline import pieces
from ring3_split.kernel import Kernel


def kinds(text: str) -> list[tuple[str, str, int, int]]:
    return [(one.kind, one.name, one.first, one.last) for one in pieces(text)]


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("static int\nf(int a)\n{\n\treturn a;\n}\n", ("function", "f", 1, 5)),
        ("static int f(int a,\n\t\tint b);\n", ("prototype", "f", 1, 2)),
        ("static const struct ops ops = {\n\t.open = f,\n};\n", ("variable", "ops", 1, 3)),
        ("static int table[] = { 1, 2 };\n", ("variable", "table", 1, 1)),
        ("struct nic {\n\tint a;\n};\n", ("type", "nic", 1, 3)),
        ('MODULE_LICENSE("GPL");\n', ("macro", "MODULE_LICENSE", 1, 1)),
        ("module_pci_driver(nic_driver);\n", ("macro", "module_pci_driver", 1, 1)),
        ("#define MANY(x) \\\n\t((x) + 1)\n", ("define", "MANY", 1, 2)),
        ("static int __maybe_unused f(void) { return 0; }\n", ("function", "f", 1, 1)),
    ],
)
def test_a_piece_has_its_kind_its_name_and_all_its_lines(
    text: str, piece: tuple[str, str, int, int]
) -> None:
    assert kinds(text)[0] == piece


def test_a_brace_in_a_comment_or_a_string_ends_nothing() -> None:
    assert kinds('/* } */\nint f(void)\n{\n\tputs("}");\n\treturn 0; // }\n}\nint x;\n') == [
        ("function", "f", 2, 6),
        ("variable", "x", 7, 7),
    ]


def test_a_piece_knows_the_conditions_that_it_stands_in() -> None:
    found = {
        one.name: one.conditions
        for one in pieces("#ifdef A\nint x;\n#else\nint y;\n#endif\nint z;\n")
        if one.kind == "variable"
    }
    assert found == {"x": [1], "y": [3], "z": []}


@pytest.mark.kernel
@pytest.mark.parametrize("name", ["e1000", "8139too", "snd-ens1370"])
def test_the_functions_of_a_driver_are_those_of_its_facts(kernel: Kernel, name: str) -> None:
    from ring3_split.gather import gather  # noqa: PLC0415 - only this test reads a kernel

    (facts,) = gather(kernel, [kernel.module(name)])
    for unit in facts.units:
        text = (kernel.root / unit.source).read_text(encoding="utf-8", errors="replace")
        found = {(one.name, one.first, one.last) for one in pieces(text) if one.kind == "function"}
        # A function that a macro wrote has no name in the text.
        written = [one for one in unit.functions if one.file == unit.source and one.name in text]
        known = {(one.name, one.first or one.line, one.end) for one in written}
        assert known - found == set()
