"""e1000 of the distribution's kernel: the reader's numbers against two other ways of counting.

The reader counts what clang emits and takes the first line from debug information and the last from the source text. Here the
definitions are counted by gcc's parser (`-aux-info`), and the lines are those of clang's syntax tree, which knows no IR.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from ring3_split.distribution import open_kernel
from ring3_split.gather import gather
from ring3_split.kernel import Kernel
from ring3_split.model import Function, Module

pytestmark = pytest.mark.kernel
DRIVER = "drivers/net/ethernet/intel/e1000/"
# Written by macros, called by nobody: the type check of module_param (one a parameter), and those of module_init and module_exit.
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
def defined_by_gcc(kernel: Kernel, module: Module, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, int]]:
    """File and line of the definitions in the driver's folder, by name, as gcc's parser sees them."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("no gcc to compare with")
    found = {}
    for source in module.sources:
        out = tmp_path_factory.mktemp("gcc") / "info"
        flags = [flag for flag in kernel.flags(module, source) if not flag.startswith(("--target", "-W"))]
        program = [gcc, *flags, "-w", "-fno-pie", "-fsyntax-only", "-aux-info", str(out), source]
        subprocess.run(program, check=True, timeout=120, cwd=kernel.root)
        for file, line, name in re.findall(r"^/\* (\S+):(\d+):\wF \*/ [^(]*?(\w+) \(", out.read_text(), re.MULTILINE):
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
    assert {name: (f.file, f.line) for name, f in functions.items()} == {name: defined_by_gcc[name] for name in functions}


def test_clangs_syntax_tree_has_each_function_in_the_same_lines(
    kernel: Kernel, module: Module, functions: dict[str, Function]
) -> None:
    seen: dict[str, tuple[int, int]] = {}
    others = [name for name in functions if "e1000" not in name]  # the dump is of declarations with a text in their name
    for source in module.sources:
        for wanted in ("e1000", *(name for name in others if functions[name].file == source)):
            dump = ["-fsyntax-only", "-fno-color-diagnostics", "-Xclang", "-ast-dump", "-Xclang", f"-ast-dump-filter={wanted}"]
            program = [str(kernel.compiler.program), *kernel.flags(module, source), "-w", *dump, source]
            done = subprocess.run(program, check=True, timeout=120, cwd=kernel.root, capture_output=True, text=True)
            seen |= extents(done.stdout)
    assert {name: (f.line, f.end) for name, f in functions.items()} == {name: seen.get(name) for name in functions}


def extents(dump: str) -> dict[str, tuple[int, int]]:
    """Line of the name and of the closing brace of each function that is defined in a syntax tree's text."""
    found = {}
    for block in dump.split("Dumping ")[1:]:
        name, _, tree = block.partition(":\n")
        head, *rest = tree.split("\n")
        if head.startswith("FunctionDecl") and any(line.startswith(("|-CompoundStmt", "`-CompoundStmt")) for line in rest):
            begin, end, named = re.findall(r"<(.*?), (.*?)> (\S+)", head)[0]
            first = number(begin)
            named_in = number(named) or first
            found[name] = (named_in, number(end) or named_in)
    return found


def number(place: str) -> int:
    """The line of a place in a syntax tree, 0 when it only has a column (the line is the one before)."""
    match = re.search(r":(\d+):\d+$", place)
    return int(match[1]) if match and not place.startswith("col:") else 0


def test_lines_in_functions_are_those_of_the_syntax_tree_summed(functions: dict[str, Function]) -> None:
    """11,647 lines have code or a declaration; 46 more are braces below a body's only `return`."""
    assert sum(f.end - f.line + 1 for f in functions.values()) == 11693


def test_no_function_reaches_into_the_next(functions: dict[str, Function]) -> None:
    by_file: dict[str, list[Function]] = {}
    for function in functions.values():
        by_file.setdefault(function.file, []).append(function)
    for members in by_file.values():
        members.sort(key=lambda f: f.line)
        assert all(a.end < b.line for a, b in pairwise(members))
