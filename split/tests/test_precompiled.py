from __future__ import annotations

import re
import time
from pathlib import Path

import msgspec
import pytest

from ring3_split import distribution, precompiled, reader, tree
from ring3_split.gather import Task, ways
from ring3_split.kernel import Kernel
from ring3_split.precompiled import Headers, headers_for
from small_tree import plant, put


@pytest.fixture
def kernel(clang: Path, tmp_path: Path) -> Kernel:
    return tree.open_kernel(plant(tmp_path / "linux"), None, None, tmp_path / "cache", str(clang))


def compiled(kernel: Kernel, name: str, source: str) -> bool:
    """Whether a unit is to be compiled with common headers."""
    return "-include-pch" in next(ways(kernel, Task(kernel.module(name), source)))


def test_units_have_the_headers_of_their_folder() -> None:
    assert "linux/netdevice.h" in headers_for("drivers/net/ethernet/intel/e1000/e1000_main.c")
    assert "sound/pcm.h" in headers_for("sound/pci/ens1370.c")
    assert headers_for("fs/ext4/inode.c") == ()


def test_an_ordinary_unit_is_compiled_with_common_headers(kernel: Kernel) -> None:
    assert compiled(kernel, "card", "drivers/net/card_main.c")


def test_a_unit_that_defines_a_name_of_the_headers_before_them_is_compiled_without(
    kernel: Kernel,
) -> None:
    assert not compiled(kernel, "card", "drivers/net/card_wol.c")


def test_such_a_name_on_the_command_line_counts_as_well(kernel: Kernel, tmp_path: Path) -> None:
    put(tmp_path / "linux/sound/Makefile", "obj-m += shout.o\nccflags-y := -DLOUD\n")
    assert not compiled(kernel, "shout", "sound/shout.c")


def test_names_that_the_headers_do_not_know_and_the_prefix_of_messages_are_harmless() -> None:
    headers = Headers(Path("x.pch"), frozenset({"pr_fmt", "DEBUG"}))
    text = (
        '#define pr_fmt(fmt) "x: " fmt\n#define CARD_NAME "x"\n#include '
        "<linux/module.h>\n#define DEBUG\n"
    )
    assert headers.fit(text, ("-Idrivers", "-DHARDWARE=2"))
    assert not headers.fit("#define DEBUG\n" + text, ())
    assert not headers.fit(text, ("-includex.h",))


def test_headers_that_do_not_compile_are_done_without(kernel: Kernel, tmp_path: Path) -> None:
    put(tmp_path / "linux/include/linux/pci.h", "this is not C\n")
    assert not compiled(kernel, "card", "drivers/net/card_main.c")


def test_changed_headers_are_compiled_again(clang: Path, tmp_path: Path, kernel: Kernel) -> None:
    first = next(ways(kernel, Task(kernel.module("shout"), "sound/shout.c")))
    put(tmp_path / "linux/include/linux/slab.h", "#define SLAB 1\n")
    changed = tree.open_kernel(tmp_path / "linux", None, None, tmp_path / "cache", str(clang))
    assert next(ways(changed, Task(changed.module("shout"), "sound/shout.c"))) != first


def test_headers_are_good_while_another_process_makes_the_same(
    kernel: Kernel, tmp_path: Path
) -> None:
    task = Task(kernel.module("card"), "drivers/net/card_main.c")
    flags = next(ways(kernel, task))
    (made,) = (tmp_path / "cache").rglob("*.pch")
    old = made.rename(tmp_path / "old.pch")
    time.sleep(1.1)  # clang counts seconds
    another = tree.open_kernel(
        tmp_path / "linux", None, None, tmp_path / "cache", str(kernel.compiler.program)
    )
    assert next(ways(another, task)) == flags
    old.replace(made)
    assert kernel.compiler.compile(task.source, tmp_path / "x.ll", flags, kernel.root) == ""


def facts(kernel: Kernel, name: str, source: str, folder: Path) -> list[bytes]:
    """What is read of a unit in every way that it may be compiled.

    Without the numbers by which macros make a name unique.
    """
    found = []
    for flags in ways(kernel, Task(kernel.module(name), source)):
        assert kernel.compiler.compile(source, folder / "x.ll", flags, kernel.root) == ""
        read = msgspec.json.encode(reader.read(folder / "x.ll", source, kernel.root))
        found.append(re.sub(rb"(__UNIQUE_ID_[a-z]\w*?)\d+", rb"\1", read))
    return found


def test_the_facts_are_the_same_with_and_without(kernel: Kernel, tmp_path: Path) -> None:
    with_them, without = facts(kernel, "card", "drivers/net/card_main.c", tmp_path)
    assert with_them == without


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("e1000", "drivers/net/ethernet/intel/e1000/e1000_main.c"),
        ("8139too", "drivers/net/ethernet/realtek/8139too.c"),
        ("virtio_scsi", "drivers/scsi/virtio_scsi.c"),
        ("ata_piix", "drivers/ata/ata_piix.c"),
        ("snd-ens1370", "sound/pci/ens1370.c"),
        ("usbhid", "drivers/hid/usbhid/hid-core.c"),
    ],
)
def test_the_facts_of_a_driver_are_the_same_with_and_without(
    cache: Path, tmp_path: Path, name: str, source: str
) -> None:
    with_them, without = facts(distribution.open_kernel("6.12", cache), name, source, tmp_path)
    assert with_them == without


def test_the_table_names_a_folder_once() -> None:
    text = precompiled.TABLE.read_text()
    folders = [
        word
        for line in text.splitlines()
        if line.startswith("folders")
        for word in line.split('"')[1::2]
    ]
    assert len(folders) == len(set(folders))
