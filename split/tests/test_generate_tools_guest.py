"""A user half under gdb, AddressSanitizer and memcheck, in a guest.

With bugs that are planted in what was generated.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from ring3_split.annotate.survey import survey
from ring3_split.errors import Refusal
from ring3_split.generate import build, run
from ring3_split.generate.border import Wishes
from ring3_split.generate.halves import generate
from ring3_split.generate.tools import Tools
from ring3_split.kernel import Kernel
from ring3_split.plan import planner, subject, weights

pytestmark = [pytest.mark.guest, pytest.mark.kernel]
DRIVER = "snd-ens1370"
# A file of the driver's is read twice: its function runs in the user half. What that says is shown,
# and the guest ends.
WORK = """
works() {
    for time in first second; do cat "$(find /proc/asound/ -name audiopci)"; done
    usleep 1000000
    cat /tmp/user-half.log
    return 1
}
"""
READ = "struct ensoniq *ensoniq = entry->private_data;"
OVERFLOW = "((volatile char *)ensoniq)[sizeof(*ensoniq)] = 1;"
AFTER_ITS_UPCALL = "static volatile char *kept; if (kept) *kept = 1; kept = (char *)ensoniq;"


def looked_at(kernel: Kernel, folder: Path, cache: Path, tools: Tools, bug: str = "") -> str:
    """What a guest says while its user half is looked at.

    `bug` is the first statement of the function that reads.
    """
    whole = subject.load(kernel, DRIVER, "field", None, subject.Known())
    plan = planner.cut(whole, weights.places(whole), Fraction(1))
    found = survey(whole.graph, plan.sides(), kernel.name, {})
    generated = generate(kernel, kernel.module(DRIVER), found, Wishes.of(plan, {}), folder / "out")
    source = folder / "out/user/ens1370.c"
    before, read, behind = source.read_text().partition(READ)
    assert read
    source.write_text(f"{before}{read}\n#line 1\n{bug}{behind}")
    built = build.build(kernel, generated, tools.form)
    work = folder / "work.sh"
    work.write_text(WORK)
    request = run.Request(cache, 0.2, folder / "run.log", run.Wanted(work=work, tools=tools))
    with pytest.raises(Refusal, match="it works by its user half"):
        run.run(kernel, DRIVER, built, request, lambda _line, _step: None)
    return (folder / "run.log").read_text()


def test_gdb_shows_who_calls_a_function_of_the_driver_with_its_file_and_line(
    kernel: Kernel, tmp_path: Path, cache: Path
) -> None:
    words = (
        "-batch",
        "-ex",
        "break snd_ensoniq_proc_read",
        "-ex",
        "run",
        "-ex",
        "bt",
        "-ex",
        "delete",
        "-ex",
        "continue",
    )
    log = looked_at(kernel, tmp_path, cache, Tools(gdb=True, words=words))
    assert "#0  snd_ensoniq_proc_read (" in log
    assert "at sound/pci/ens1370.c:" in log
    assert "in serve (" in log


def test_address_sanitizer_finds_a_write_beyond_a_struct_of_the_drivers(
    kernel: Kernel, tmp_path: Path, cache: Path
) -> None:
    log = looked_at(kernel, tmp_path, cache, Tools(asan=True), OVERFLOW)
    assert "ERROR: AddressSanitizer: heap-buffer-overflow" in log
    assert "in snd_ensoniq_proc_read sound/pci/ens1370.c:1" in log
    assert "0 bytes to the right of" in log or "0 bytes after" in log


def test_address_sanitizer_finds_a_write_to_an_object_of_an_upcall_that_is_over(
    kernel: Kernel, tmp_path: Path, cache: Path
) -> None:
    log = looked_at(kernel, tmp_path, cache, Tools(asan=True), AFTER_ITS_UPCALL)
    assert "ERROR: AddressSanitizer: heap-use-after-free" in log
    assert "in split_release" in log


def test_memcheck_finds_a_write_beyond_a_struct_of_the_drivers(
    kernel: Kernel, tmp_path: Path, cache: Path
) -> None:
    log = looked_at(kernel, tmp_path, cache, Tools(valgrind=True), OVERFLOW)
    assert "Invalid write of size 1" in log
    assert "snd_ensoniq_proc_read (ens1370.c:1)" in log
    assert "0 bytes after a block of size" in log
