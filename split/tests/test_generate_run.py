"""The scenario in which a split driver is tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomlkit

from ring3_split.errors import Refusal
from ring3_split.generate import run
from ring3_split.generate.run import Wanted, check, text
from ring3_split.profile.devices import device
from ring3_split.profile.scenario import Run


def scenario(driver: str, work: Path | None = None) -> dict[str, Any]:
    found = device(driver)
    revision = Path("/revision.ko") if found.revision is not None else None
    made = Run(driver, found, "load", 0.5, "6.12", (Path("/r.ko"), Path("/d.ko")), (), (), revision)
    return tomlkit.parse(text(made, found.kind, "1", Wanted(work=work), Path("/disk.img"))).unwrap()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "mine.sh"
    file.write_text("works() { :; }\n")
    return file


def test_a_script_of_the_drivers_own_comes_last_so_that_its_functions_are_taken(
    script: Path,
) -> None:
    found = scenario("8139cp", script)
    assert found["files"]["/lib/ring3/mine.sh"] == str(script)
    assert ". /lib/ring3/network-split.sh; . /lib/ring3/mine.sh; works" in found["step"][1]["run"]


def test_a_kind_for_which_nothing_is_known_needs_a_script(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "KINDS", ("sound", "network"))
    with pytest.raises(Refusal, match="--work"):
        check("nvme")
    assert check("nvme", script) == "disk"
    assert not any("-split.sh" in name for name in scenario("nvme", script)["files"])


def test_a_script_that_is_not_there_is_told_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"none\.sh: is not there"):
        check("8139cp", tmp_path / "none.sh")


def test_a_device_is_shown_with_the_revision_that_the_driver_wants_before_it_is_loaded() -> None:
    assert "revision=16 && prepare && split_load" in scenario("8139too")["step"][0]["run"]
    assert "revision" not in scenario("8139cp")["step"][0]["run"]


def test_a_disk_on_an_adapter_keeps_what_is_written_and_takes_a_file_system() -> None:
    found = scenario("vmw_pvscsi")
    assert found["qemu_arguments"][1] == "file,node-name=disk,filename=/disk.img"
    assert "ext4" in found["modules"]
    assert any(step["run"].endswith("disk-split.sh; often") for step in found["step"])


def test_one_that_knows_types_lies_in_a_kernel_that_poisons_what_is_freed() -> None:
    found = device("e1000")
    made = Run("e1000", found, "load", 0.5, "6.12", (Path("/r.ko"), Path("/d.ko")), (), ())
    lies = tomlkit.parse(text(made, found.kind, "1", Wanted(upcalls=40))).unwrap()
    assert "slub_debug=FZPU" in lies["kernel_arguments"]
    assert [step["run"].rpartition(" ")[2] for step in lies["step"]][-6:-2] == [
        "split_kill",
        "knows",
        "honest",
        "works",
    ]
    usual = tomlkit.parse(text(made, found.kind, "1", Wanted(lies=40))).unwrap()
    assert "slub_debug=FZPU" not in usual.get("kernel_arguments", [])
    assert not any(step["run"].endswith("; knows") for step in usual["step"])
