"""e1000 of the distribution's kernel: the reader's numbers against two other ways of counting.

The reader counts what clang emits and takes the first line from debug information and the last from
the source text. Here the definitions are counted by gcc's parser (`-aux-info`), and lines, calls
and critical functions come from clang's syntax tree, which knows neither IR nor hashes of types.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from ring3_split.critical import propagate
from ring3_split.distribution import open_kernel
from ring3_split.driver import load
from ring3_split.gather import Task, gather, gather_data, ways
from ring3_split.graph import link
from ring3_split.kernel import Kernel
from ring3_split.model import Function, Module

pytestmark = pytest.mark.kernel
DRIVER = "drivers/net/ethernet/intel/e1000/"
# Written by macros, called by nobody: the type check of module_param (one a parameter), and those
# of module_init and module_exit.
MACRO_MADE = re.compile(r"__check_\w+|__inittest|__exittest")


@pytest.fixture(scope="module")
def kernel(cache: Path) -> Kernel:
    return open_kernel("6.12", cache)


@pytest.fixture(scope="module")
def module(kernel: Kernel) -> Module:
    return kernel.module("e1000")


@pytest.fixture(scope="module")
def functions(kernel: Kernel, module: Module) -> dict[str, Function]:
    (facts,) = gather(kernel, [module])
    assert not facts.failures
    return {f.name: f for unit in facts.units for f in unit.functions if f.file.startswith(DRIVER)}


@pytest.fixture(scope="module")
def defined_by_gcc(
    kernel: Kernel, module: Module, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[str, int]]:
    """File and line of the definitions in the driver's folder, by name, as gcc parses them."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("no gcc to compare with")
    found = {}
    for source in module.sources:
        out = tmp_path_factory.mktemp("gcc") / "info"
        flags = [
            flag for flag in kernel.flags(module, source) if not flag.startswith(("--target", "-W"))
        ]
        program = [gcc, *flags, "-w", "-fno-pie", "-fsyntax-only", "-aux-info", str(out), source]
        subprocess.run(program, check=True, timeout=120, cwd=kernel.root)
        for file, line, name in re.findall(
            r"^/\* (\S+):(\d+):\wF \*/ [^(]*?(\w+) \(", out.read_text(), re.MULTILINE
        ):
            if file.startswith(DRIVER):
                found[name] = (file, int(line))
    return found


def test_gcc_sees_the_same_functions_and_those_that_macros_make(
    functions: dict[str, Function], defined_by_gcc: dict[str, tuple[str, int]]
) -> None:
    made = {name for name in defined_by_gcc if MACRO_MADE.fullmatch(name)}
    assert len(made) == 17
    assert set(functions) == set(defined_by_gcc) - made
    assert len(functions) == 250


def test_gcc_has_each_function_in_the_same_line(
    functions: dict[str, Function], defined_by_gcc: dict[str, tuple[str, int]]
) -> None:
    assert {name: (f.file, f.line) for name, f in functions.items()} == {
        name: defined_by_gcc[name] for name in functions
    }


@pytest.fixture(scope="module")
def trees(kernel: Kernel, module: Module, functions: dict[str, Function]) -> dict[str, list[str]]:
    """Lines of the syntax tree of each function and variable that the driver defines, by name."""
    found: dict[str, list[str]] = {}
    others = [
        name for name in functions if "e1000" not in name
    ]  # the dump is of declarations with a text in their name
    for source in module.sources:
        # Twelve dumps: with common headers, where the kernel's need not be parsed for each.
        flags = next(ways(kernel, Task(module, source)))
        for wanted in ("e1000", *(name for name in others if functions[name].file == source)):
            dump = [
                "-fsyntax-only",
                "-fno-color-diagnostics",
                "-Xclang",
                "-ast-dump",
                "-Xclang",
                f"-ast-dump-filter={wanted}",
            ]
            program = [
                str(kernel.compiler.program),
                *flags,
                *("-O0", "-g", "-Xclang", "-fsanitize=kcfi"),  # as the common headers have it
                "-w",
                *dump,
                source,
            ]
            done = subprocess.run(
                program, check=True, timeout=120, cwd=kernel.root, capture_output=True, text=True
            )
            for block in done.stdout.split("Dumping ")[1:]:
                name, _, tree = block.partition(":\n")
                lines = tree.split("\n")
                if lines[0].startswith("VarDecl") or any(
                    re.match(r"[|`]-CompoundStmt", line) for line in lines
                ):
                    found[name] = lines
    return found


def test_clangs_syntax_tree_has_each_function_in_the_same_lines(
    functions: dict[str, Function], trees: dict[str, list[str]]
) -> None:
    assert {name: (f.line, f.end) for name, f in functions.items()} == {
        name: extent(trees[name][0]) for name in functions
    }


def extent(head: str) -> tuple[int, int]:
    """Line of the name, and of the closing brace, of a function."""
    begin, end, named = re.findall(r"<(.*?), (.*?)> (\S+)", head)[0]
    line = number(named) or number(begin)
    return line, number(end) or line


def number(place: str) -> int:
    """The line of a place in a syntax tree; 0 if it has only a column (it is the previous)."""
    match = re.search(r":(\d+):\d+$", place)
    return int(match[1]) if match and not place.startswith("col:") else 0


class Tree:
    """Calls and taken addresses of one function or variable, from its syntax tree."""

    def __init__(self, lines: list[str]) -> None:
        self.direct: set[str] = set()
        self.indirect: list[str] = []  # type of the function that each call through a pointer calls
        self.taken: dict[str, str] = {}  # function -> type
        called = set()
        for at, line in enumerate(lines):
            if re.match(r"[| `-]*CallExpr ", line):
                callee = at + 1
                while (
                    re.search(r"ImplicitCastExpr|ParenExpr", lines[callee])
                    and "FunctionToPointerDecay" in lines[callee]
                ):
                    callee += 1
                if match := re.search(r" Function 0x\w+ '(\w+)'", lines[callee]):
                    self.direct.add(match[1])
                    called.add(callee)
                elif "BuiltinFnToFnPtr" not in lines[callee]:
                    self.indirect.append(
                        re.findall(r"'([^']*)'", lines[callee])[-1].replace("(*)", "")
                    )
        for at, line in enumerate(lines):
            if at not in called and (
                match := re.search(r"DeclRefExpr .* Function 0x\w+ '(\w+)' '([^']*)'", line)
            ):
                self.taken[match[1]] = match[2]


def test_the_call_graph_is_that_of_the_syntax_tree(
    kernel: Kernel, functions: dict[str, Function], trees: dict[str, list[str]]
) -> None:
    read = {name: Tree(lines) for name, lines in trees.items()}
    taken = {function: type_ for tree in read.values() for function, type_ in tree.taken.items()}
    by_tree = {
        (name, callee)
        for name in functions
        for callee in read[name].direct
        | {one for one, type_ in taken.items() if type_ in read[name].indirect}
        if callee in functions
    }
    graph = link(load(kernel, "e1000"))
    ids = {function.id: name for name, function in functions.items()}
    by_reader = {
        (ids[a], ids[b])
        for a, callees in graph.calls.items()
        if a in ids
        for b in callees
        if b in ids
    }
    assert by_reader == by_tree
    assert (
        sum(len(read[name].indirect) for name in functions)
        == sum(len(f.indirect) for f in functions.values())
        == 9
    )


def test_critical_functions_are_those_that_the_syntax_tree_reaches_from_the_roots(
    kernel: Kernel, functions: dict[str, Function], trees: dict[str, list[str]]
) -> None:
    """The roots by their C types: interrupt handlers, poll functions of NAPI, ndo_start_xmit."""
    read = {name: Tree(lines) for name, lines in trees.items()}
    taken = {function: type_ for tree in read.values() for function, type_ in tree.taken.items()}
    types = (
        "irqreturn_t (int, void *)",
        "int (struct napi_struct *, int)",
        "netdev_tx_t (struct sk_buff *, struct net_device *)",
    )
    waiting = [name for name, type_ in taken.items() if type_ in types and name in functions]
    assert sorted(waiting) == ["e1000_clean", "e1000_intr", "e1000_test_intr", "e1000_xmit_frame"]
    reached = set(waiting)
    while waiting:
        tree = read[waiting.pop()]
        callees = tree.direct | {one for one, type_ in taken.items() if type_ in tree.indirect}
        waiting += [one for one in callees & functions.keys() if one not in reached]
        reached |= callees & functions.keys()
    graph = link(load(kernel, "e1000"))
    critical = propagate(
        graph,
        [
            functions[name].id
            for name in ("e1000_clean", "e1000_intr", "e1000_test_intr", "e1000_xmit_frame")
        ],
    )
    own = {function.id: name for name, function in functions.items()}
    assert {own[one] for one in critical if one in own} == reached
    assert (
        len(reached),
        sum(f.end - f.line + 1 for name, f in functions.items() if name in reached),
    ) == (33, 1795)


def test_members_that_the_syntax_tree_names_are_accesses(
    kernel: Kernel, module: Module, functions: dict[str, Function], trees: dict[str, list[str]]
) -> None:
    """Each `x->member` of a function is a field that it touches, or that leads to one."""
    accesses = {
        one: found for data in gather_data(kernel, module) for one, found in data.accesses.items()
    }
    missing = {}
    for name, function in functions.items():
        named = {
            match[1]
            for line in trees[name]
            if (match := re.search(r"MemberExpr .*(?:->|\.)(\w+) 0x\w+$", line))
        }
        fields = {
            part
            for one in accesses.get(function.id, ())
            for part in (one.field, one.within, one.base.partition(" ")[2])
        }
        touched = {part for field in fields for part in field.split(".")[1:]}
        if (
            rest := named - touched - {"dd_key_false"}
        ):  # in a union of the kernel's dynamic debugging: its address is the union's
            missing[name] = rest
    assert missing == {
        "e1000_update_mng_vlan": {
            "hw"
        },  # adapter->hw.mng_cookie.status: `within` has the inner of the two
        "e1000_close": {"hw"},
        "e1000_get_eeprom_len": {"hw"},
        "e1000_dump": {
            "data"
        },  # of a union in an argument of a macro, where the source's columns are lost
    }


def test_lines_in_functions_are_those_of_the_syntax_tree_summed(
    functions: dict[str, Function],
) -> None:
    """11,647 lines have code or a declaration; 46 more are braces below a body's only `return`."""
    assert sum(f.end - f.line + 1 for f in functions.values()) == 11693


def test_no_function_reaches_into_the_next(functions: dict[str, Function]) -> None:
    by_file: dict[str, list[Function]] = {}
    for function in functions.values():
        by_file.setdefault(function.file, []).append(function)
    for members in by_file.values():
        members.sort(key=lambda f: f.line)
        assert all(a.end < b.line for a, b in pairwise(members))
