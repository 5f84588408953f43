from __future__ import annotations

from pathlib import Path

import pytest

from ring3_split.kbuild import catalogue
from ring3_split.kbuild.catalogue import Catalogue, Target
from ring3_split.kbuild.makefiles import Setting
from small_tree import plant, put


def read(tree: Path, cache: Path) -> Catalogue:
    return catalogue.load(
        Setting(tree, tree, tree / "include/config/auto.conf", "x86", "x86"), cache, "key"
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return plant(tmp_path / "linux")


@pytest.fixture
def targets(tree: Path, tmp_path: Path) -> dict[str, Target]:
    return {target.module.name: target for target in read(tree, tmp_path / "cache").targets}


def test_every_object_that_the_configuration_asks_for_is_a_target(
    targets: dict[str, Target],
) -> None:
    assert set(targets) == {"port", "card", "bad-card", "snd-bridge", "shout"}


def test_a_composite_module_has_the_sources_of_all_its_lists(targets: dict[str, Target]) -> None:
    assert targets["card"].module.sources == tuple(
        f"drivers/net/card_{part}.c" for part in ("main", "hw", "wol")
    )


def test_assembly_is_skipped_and_said(targets: dict[str, Target]) -> None:
    assert targets["card"].module.skipped == {"drivers/net/start.o": "assembly"}


def test_a_driver_in_the_kernel_is_found_and_marked(targets: dict[str, Target]) -> None:
    assert targets["port"].module.builtin
    assert not targets["card"].module.builtin


def test_a_kbuild_file_comes_before_a_makefile(targets: dict[str, Target]) -> None:
    assert targets["snd-bridge"].module.sources == ("drivers/net/bridge/bridge.c",)


def test_flags_of_a_directory_reach_its_units_without_warnings_and_tuning(
    targets: dict[str, Target],
) -> None:
    assert targets["card"].unit_flags("drivers/net/card_main.c") == (
        "-DDEEP",
        "-Idrivers/net/common",
    )


def test_flags_of_one_object_are_its_own(targets: dict[str, Target]) -> None:
    assert "-DHARDWARE=2" in targets["card"].unit_flags("drivers/net/card_hw.c")
    assert "-DHARDWARE=2" not in targets["card"].unit_flags("drivers/net/card_main.c")


def test_flags_for_subdirectories_go_down_and_the_old_names_count(
    targets: dict[str, Target],
) -> None:
    assert {"-DDEEP", "-DOLD_WAY"} <= set(targets["snd-bridge"].flags)


def test_a_shipped_file_is_found_and_the_tree_is_not_written_to(
    targets: dict[str, Target], tree: Path
) -> None:
    folder = next(
        flag for flag in targets["snd-bridge"].flags if flag.endswith("shipped/drivers/net/bridge")
    )
    assert (Path(folder.removeprefix("-I")) / "table.h").read_text() == "#define TABLE 3\n"
    assert not (tree / "drivers/net/bridge/table.h").exists()


def test_a_directory_that_make_cannot_evaluate_is_noted_and_the_others_are_read(
    tree: Path, tmp_path: Path
) -> None:
    put(tree / "drivers/net/bridge/Kbuild", "$(error not today)\n")
    found = read(tree, tmp_path / "cache")
    assert list(found.broken) == ["drivers/net/bridge"]
    assert "not today" in found.broken["drivers/net/bridge"]
    assert {"card", "shout"} <= {target.module.name for target in found.targets}


def test_a_source_that_a_rule_takes_from_another_folder_is_found(
    tree: Path, tmp_path: Path
) -> None:
    put(
        tree / "sound/Makefile",
        "obj-m := mix.o\nmix-y := near/bridge.o\n$(obj)/near/%.o: "
        "$(srctree)/drivers/net/bridge/%.c FORCE\n",
    )
    sources = {t.module.name: t.module.sources for t in read(tree, tmp_path / "cache").targets}
    assert sources["mix"] == ("drivers/net/bridge/bridge.c",)


def test_the_catalogue_is_kept(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read(tree, tmp_path / "cache")
    monkeypatch.setattr(catalogue, "read", lambda *_: pytest.fail("read again"))
    assert read(tree, tmp_path / "cache") == first


def test_a_changed_kbuild_file_is_read_again(tree: Path, tmp_path: Path) -> None:
    read(tree, tmp_path / "cache")
    put(tree / "sound/Makefile", "obj-m := shout.o whisper.o\n")
    assert "whisper" in {target.module.name for target in read(tree, tmp_path / "cache").targets}


def test_a_variable_of_one_directory_is_not_seen_in_the_next(tree: Path, tmp_path: Path) -> None:
    put(tree / "sound/Makefile", "obj-m := card.o\n")
    found = [
        t.module for t in read(tree, tmp_path / "cache").targets if t.module.directory == "sound"
    ]
    assert [m.skipped for m in found] == [
        {"sound/card.o": "generated during the build, or not there"}
    ]


@pytest.mark.kernel
@pytest.mark.parametrize("folder", ["drivers", "sound"])
def test_the_modules_of_the_distribution_are_those_that_its_package_installs(
    cache: Path, folder: str
) -> None:
    installed = next((cache / "kernels/6.12/lib/modules").glob("*/kernel"), cache) / folder
    if not installed.is_dir():
        pytest.skip("the kernel's modules are not here: lab/setup.sh kernel 6.12")
    expected = {path.name.partition(".ko")[0] for path in installed.rglob("*.ko*")}
    place = cache / "sources/6.12"
    headers = next((place / "headers/src").glob("linux-headers-*-amd64"))
    found = read_distribution(place / "source", headers, cache / "split/tests")
    assert {
        t.module.name
        for t in found.targets
        if t.module.directory.startswith(folder) and not t.module.builtin
    } == expected


def read_distribution(source: Path, headers: Path, cache: Path) -> Catalogue:
    return catalogue.load(
        Setting(source, headers, headers / "include/config/auto.conf", "x86", "x86"), cache, "test"
    )
