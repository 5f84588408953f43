"""Addresses of a loaded module become functions of its source, inlined ones included.

On an object that gcc makes here.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ring3_split.errors import Refusal
from ring3_split.model import VERSION, Function, Module, ModuleFacts, Unit
from ring3_split.profile.build import VISIBLE
from ring3_split.profile.counts import Sample
from ring3_split.profile.elf import Object
from ring3_split.profile.image import Frame, Image, parse_lines
from ring3_split.profile.mapping import Names, map_calls
from ring3_split.profile.record import Pair

TEXT = 0xFFFFFFFFC0100000  # where the module lies
COLD = 0xFFFFFFFFC0200000

# Two files with a static function of one name, an inline function of a header, one of the driver's,
# and code in another section.
HEADER = """\
void kernel(void);
void other_open(void);
static int helper(int value);
static inline __attribute__((always_inline)) int through(int value) { return helper(value) + 1; }
"""
ONE = """\
#include "include/linux/through.h"
static __attribute__((noinline)) int helper(int value) { \
asm volatile("" : "+r"(value)); return value; }
static inline __attribute__((always_inline)) int folded(int value) { return helper(value) - 1; }
int open_device(int value) { return through(value) + folded(value); }
__attribute__((section(".text.unlikely"))) int rare(int value) { \
int got = helper(value); kernel(); return got; }
"""
TWO = """\
void kernel(void);
static __attribute__((noinline)) int helper(int value) { \
asm volatile("" : "+r"(value)); return value; }
void other_open(void) { kernel(); helper(2); kernel(); }
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """A module of two files, as the kernel's build makes it."""
    if not shutil.which("gcc"):
        pytest.fail("gcc is missing: apt-get install gcc")
    root = tmp_path_factory.mktemp("driver")
    folder = root / "drivers/toy"
    (root / "include/linux").mkdir(parents=True)
    folder.mkdir(parents=True)
    (root / "include/linux/through.h").write_text(HEADER)
    (folder / "one.c").write_text(ONE)
    (folder / "two.c").write_text(TWO)
    flags = [
        "-O2",
        "-g",
        "-pg",
        "-mfentry",
        "-mrecord-mcount",
        "-fno-pic",
        "-mcmodel=kernel",
        "-fcf-protection=none",
        *VISIBLE,
    ]
    for name in ("one", "two"):
        subprocess.run(
            ["gcc", *flags, f"-I{root}", "-c", f"{folder}/{name}.c", "-o", f"{folder}/{name}.o"],
            check=True,
        )
    subprocess.run(
        ["ld", "-r", "-o", f"{folder}/toy.ko", f"{folder}/one.o", f"{folder}/two.o"], check=True
    )
    places = {".text": TEXT, ".text.unlikely": COLD}
    return Image("toy", Object(folder / "toy.ko"), places, (root,))


def facts() -> ModuleFacts:
    def function(name: str, file: str) -> Function:
        return Function(name, file, 1, 1, static=name in ("helper", "folded"))

    one, two, header = "drivers/toy/one.c", "drivers/toy/two.c", "include/linux/through.h"
    own = (
        function("helper", one),
        function("folded", one),
        function("open_device", one),
        function("rare", one),
    )
    units = (
        Unit(VERSION, one, (*own, function("through", header))),
        Unit(VERSION, two, (function("helper", two), function("other_open", two))),
    )
    return ModuleFacts(Module("toy", "drivers/toy", (one, two)), units)


def hook(image: Image, name: str, file: str = "") -> int:
    """Where a function is entered."""
    for symbol in image.object.functions:
        if symbol.name == name and file in ("", symbol.file):
            return (
                COLD if image.object.sections[symbol.section].name == ".text.unlikely" else TEXT
            ) + symbol.value
    raise LookupError(name)


def calls(image: Image, caller: str) -> list[int]:
    """Where the calls of a function return to, the one of its own hook left out."""
    symbol = next(f for f in image.object.functions if f.name == caller)
    section = image.object.sections[symbol.section]
    code = image.object.content[
        section.offset + symbol.value : section.offset + symbol.value + symbol.size
    ]
    base = hook(image, caller)
    return [base + at + 5 for at in range(5, len(code) - 4) if code[at] == 0xE8]


def pairs(image: Image, *samples: Sample) -> dict[tuple[str, str], int]:
    short = {
        (p.caller.rpartition("/")[2], p.callee.rpartition("/")[2]): p.count
        for p in map_calls(samples, [image], [facts()]).pairs
    }
    assert all(count > 0 for count in short.values())
    return short


def test_a_call_from_outside_is_the_kernels(image: Image) -> None:
    assert pairs(image, Sample(hook(image, "open_device"), 0xFFFFFFFF81000000, 1, 7, 0)) == {
        ("", "one.c:open_device"): 7
    }


def test_functions_of_one_name_are_told_apart_by_their_files(image: Image) -> None:
    one, two = hook(image, "helper", "one.c"), hook(image, "helper", "two.c")
    assert pairs(image, Sample(one, 1, 1, 1, 0), Sample(two, 1, 1, 2, 0)) == {
        ("", "one.c:helper"): 1,
        ("", "two.c:helper"): 2,
    }


def test_an_inlined_function_of_the_driver_is_the_caller_and_one_of_a_header_is_not(
    image: Image,
) -> None:
    helper = hook(image, "helper", "one.c")
    samples = [Sample(helper, back, 1, 1, 0) for back in calls(image, "open_device")]
    assert pairs(image, *samples) == {
        ("one.c:open_device", "one.c:helper"): 1,
        ("one.c:folded", "one.c:helper"): 1,
    }


def test_code_of_another_section_is_found_where_that_section_lies(image: Image) -> None:
    back = calls(image, "rare")[0]
    assert back > COLD
    assert pairs(image, Sample(hook(image, "helper", "one.c"), back, 1, 3, 0)) == {
        ("one.c:rare", "one.c:helper"): 3
    }


def test_what_the_kernel_jumps_to_is_not_called_by_who_called_the_kernel(image: Image) -> None:
    helper = hook(image, "helper", "two.c")
    first, middle, last = calls(image, "other_open")  # the kernel, helper, the kernel
    kernel, own = ("", "two.c:helper"), ("two.c:other_open", "two.c:helper")
    assert pairs(image, Sample(helper, first, 1, 1, 0), Sample(helper, last, 1, 1, 0)) == {
        kernel: 2
    }
    assert pairs(image, Sample(helper, middle, 1, 1, 0)) == {own: 1}


def test_calls_of_one_pair_from_several_places_are_summed_with_their_context(image: Image) -> None:
    at = hook(image, "helper", "two.c")
    middle = calls(image, "other_open")[1]
    found = map_calls(
        [Sample(at, middle, 1, 5, 2), Sample(at, middle, 1, 6, 3)], [image], [facts()]
    ).pairs
    assert found == (Pair("drivers/toy/two.c:other_open", "drivers/toy/two.c:helper", 11, 5),)


def test_only_code_is_searched_for_an_address(image: Image) -> None:
    other = Image("toy", image.object, {".text": TEXT, ".symtab": COLD})
    assert other.locate(COLD, 1) is None
    assert other.locate(TEXT, 1) is not None


def test_before_a_module_is_loaded_its_memory_is_somebody_elses(image: Image) -> None:
    later = Image("toy", image.object, image.places, loaded=2)
    assert [later.locate(TEXT, epoch) is not None for epoch in (1, 2, 3)] == [False, True, True]


def test_what_is_entered_where_no_hook_is_belongs_to_somebody_else(image: Image) -> None:
    assert pairs(image, Sample(hook(image, "open_device") + 1, 1, 1, 7, 0)) == {}


def test_a_function_without_facts_is_named_and_left_out(image: Image) -> None:
    module = facts()
    less = ModuleFacts(module.module, module.units[1:])
    found = map_calls([Sample(hook(image, "rare"), 1, 1, 4, 0)], [image], [less])
    assert (found.pairs, found.unknown) == ((), {"toy:rare": 4})


def test_a_function_that_is_only_inlined_is_invisible(image: Image) -> None:
    assert map_calls([], [image], [facts()]).invisible == ("drivers/toy/one.c:folded",)


def test_without_line_information_the_symbol_is_the_caller(image: Image) -> None:
    plain = Image("toy", image.object, image.places)
    helper = hook(image, "helper", "one.c")
    samples = [Sample(helper, back, 1, 1, 0) for back in calls(image, "open_device")]
    assert pairs(plain, *samples) == {("one.c:open_device", "one.c:helper"): 2}


def test_names_that_gcc_has_changed_are_known() -> None:
    assert (
        Names(facts()).find(Frame("open_device.isra.0", "one.c")) == "drivers/toy/one.c:open_device"
    )
    assert Names(facts()).find(Frame("helper.constprop.0", "two.c")) == "drivers/toy/two.c:helper"


def test_a_name_of_two_functions_without_a_file_is_not_guessed() -> None:
    assert Names(facts()).find(Frame("helper", "")) is None


def test_frames_are_read_innermost_first_with_paths_of_the_tree() -> None:
    text = (
        "0x0000000000001863\ninner\n/b/x/./include/linux/a.h:12\nouter\n/b/x/drivers/d.c:99 "
        "(discriminator 2)\n0x2\n??\n??:0\n"
    )
    inner, outer = Frame("inner", "include/linux/a.h"), Frame("outer", "drivers/d.c")
    assert parse_lines(text, [Path("/b/x")]) == [(inner, outer), ()]


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(Refusal, match="no kernel module"):
        Object(Path("x.ko"), b"#!/bin/sh\n")
