from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from ring3_split import reader, tree
from ring3_split.errors import Refusal
from ring3_split.gather import gather, gather_data
from ring3_split.kernel import Kernel
from ring3_split.model import Data, ModuleFacts, Unit
from ring3_split.store import open_store
from small_tree import plant, put


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    return plant(tmp_path / "linux")


def opened(planted: Path, clang: Path, tmp_path: Path) -> Kernel:
    return tree.open_kernel(planted, None, None, tmp_path / "cache", str(clang))


@pytest.fixture
def kernel(planted: Path, clang: Path, tmp_path: Path) -> Kernel:
    return opened(planted, clang, tmp_path)


def facts_of(kernel: Kernel, *names: str) -> list[ModuleFacts]:
    return gather(kernel, [kernel.module(name) for name in names], jobs=1)


def never(ir: Path, source: str, root: Path) -> tuple[Unit, Data]:
    """A reader for what is not to be read."""
    raise AssertionError(f"{source} of {root} was read again from {ir}")


def deadly(ir: Path, source: str, root: Path) -> tuple[Unit, Data]:
    """A reader that takes its process with it for one unit."""
    if source.endswith("card_hw.c"):
        os._exit(3)
    return reader.read(ir, source, root)


def stumbling(ir: Path, source: str, root: Path) -> tuple[Unit, Data]:
    """A reader with a defect."""
    raise IndexError(f"nothing in {ir.name} of {source} in {root.name}")


def test_a_module_has_the_facts_of_its_units_in_their_order(kernel: Kernel) -> None:
    (card,) = facts_of(kernel, "card")
    assert [unit.source for unit in card.units] == list(card.module.sources)
    assert "card_open" in {function.name for function in card.units[0].functions}


def test_functions_are_placed_relative_to_the_tree(kernel: Kernel) -> None:
    (card,) = facts_of(kernel, "card")
    assert {f.file for unit in card.units for f in unit.functions} == {
        *card.module.sources,
        "include/linux/module.h",
    }


def test_a_unit_that_does_not_parse_is_a_failure_and_the_others_live(kernel: Kernel) -> None:
    bad, card = facts_of(kernel, "bad-card", "card")
    assert [f.source for f in bad.failures] == ["drivers/net/bad-card.c"]
    assert bad.failures[0].reason.startswith(
        "drivers/net/bad-card.c:2:24: error: use of undeclared identifier 'missing_thing'"
    )
    assert (len(card.units), card.failures) == (3, ())


def test_what_was_read_is_not_read_again(kernel: Kernel) -> None:
    first = facts_of(kernel, "card")
    assert gather(kernel, [kernel.module("card")], read=never) == first


def test_an_edited_source_is_read_again(kernel: Kernel, planted: Path) -> None:
    facts_of(kernel, "card")
    put(planted / "drivers/net/card_wol.c", "int new_one(void) { return 0; }\n")
    (card,) = facts_of(kernel, "card")
    assert [function.name for function in card.units[2].functions] == ["new_one"]


def test_an_edited_header_of_the_driver_is_read_again(kernel: Kernel, planted: Path) -> None:
    facts_of(kernel, "card")
    put(
        planted / "drivers/net/card.h",
        "#include <registers.h>\nint card_reset(struct card *card);\n\n",
    )
    store = open_store(kernel)
    card = kernel.module("card")
    assert [store.unit(card, source) is None for source in card.sources] == [True, True, False]


def test_an_edited_header_of_the_kernel_makes_all_stale(
    planted: Path, clang: Path, tmp_path: Path
) -> None:
    facts_of(opened(planted, clang, tmp_path), "card")
    put(planted / "include/linux/other.h", "\n")
    kernel = opened(planted, clang, tmp_path)
    assert open_store(kernel).unit(kernel.module("card"), "drivers/net/card_hw.c") is None


def test_data_facts_are_kept_beside_and_read_when_asked_for(kernel: Kernel) -> None:
    data = gather_data(kernel, kernel.module("card"), jobs=1)
    assert [d.source for d in data] == list(kernel.module("card").sources)
    assert gather_data(kernel, kernel.module("card"), read=never) == data


def test_a_file_that_was_cut_off_is_read_again(kernel: Kernel) -> None:
    facts_of(kernel, "shout")
    (file,) = kernel.folder.rglob("shout.c.unit.json.z")
    file.write_bytes(file.read_bytes()[:-20])
    assert len(facts_of(kernel, "shout")[0].units) == 1


def test_a_process_that_dies_costs_its_unit_alone(kernel: Kernel) -> None:
    (card,) = gather(kernel, [kernel.module("card")], jobs=1, read=deadly)
    assert [unit.source[-5:] for unit in card.units] == ["ain.c", "wol.c"]
    assert [f.reason for f in card.failures] == ["its process ended"]


def test_a_defect_of_the_reader_is_said_with_its_place(kernel: Kernel) -> None:
    (shout,) = gather(kernel, [kernel.module("shout")], jobs=1, read=stumbling)
    assert shout.failures[0].reason.startswith("the reader failed: IndexError: nothing in unit.ll")
    assert "test_gather.py" in shout.failures[0].reason


def test_no_ir_is_left_behind(kernel: Kernel) -> None:
    facts_of(kernel, "card", "bad-card")
    assert list(kernel.folder.rglob("*.ll")) == []


def test_the_ir_of_a_run_that_was_killed_is_removed(kernel: Kernel) -> None:
    put(kernel.folder / "work-999999999/x/unit.ll", "left")
    facts_of(kernel, "shout")
    assert list(kernel.folder.glob("work-*")) == []


def test_a_cache_that_cannot_be_written_is_refused(
    planted: Path, clang: Path, tmp_path: Path
) -> None:
    put(tmp_path / "cache", "not a folder")
    with pytest.raises(Refusal, match=r"name another (folder )?for facts with --cache"):
        facts_of(opened(planted, clang, tmp_path), "shout")


def test_a_full_disk_is_said_as_such(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = open_store(kernel)
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(Refusal, match=r"no room left in .* what was read is kept"):
        store.put(
            kernel.module("shout"),
            (Unit(1, "sound/shout.c", ()), Data(1, "sound/shout.c")),
            "sound/shout.c",
            [],
        )


def test_facts_that_nobody_used_for_long_are_removed(kernel: Kernel) -> None:
    for name, age in (("facts-old", 30), ("facts-young", 1)):
        put(kernel.folder / name / "x", "")
        then = time.time() - age * 86400
        os.utime(kernel.folder / name, (then, then))
    put(kernel.folder / "pch/old.pch", "")
    os.utime(kernel.folder / "pch/old.pch", (0, 0))
    open_store(kernel)
    assert not (kernel.folder / "facts-old").exists()
    assert not (kernel.folder / "pch/old.pch").exists()
    assert (kernel.folder / "facts-young").exists()
