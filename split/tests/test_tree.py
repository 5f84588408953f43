from __future__ import annotations

from pathlib import Path

import pytest

from ring3_split import tree
from ring3_split.errors import Refusal
from ring3_split.kernel import Kernel
from small_tree import configure, error, plant, put


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    return plant(tmp_path / "linux")


def opened(
    planted: Path, clang: Path, tmp_path: Path, config: Path | None = None, name: str | None = None
) -> Kernel:
    return tree.open_kernel(planted, config, name, tmp_path / "cache", str(clang))


@pytest.fixture
def kernel(planted: Path, clang: Path, tmp_path: Path) -> Kernel:
    return opened(planted, clang, tmp_path)


def test_a_tree_has_the_version_of_its_makefile(kernel: Kernel) -> None:
    assert kernel.name == "6.12.3-small"


def test_a_unit_knows_what_it_is_part_of(kernel: Kernel) -> None:
    flags = kernel.flags(kernel.module("bad-card"), "drivers/net/bad-card.c")
    assert {
        "-DMODULE",
        '-DKBUILD_MODNAME="bad_card"',
        '-DKBUILD_BASENAME="bad_card"',
        '-DKBUILD_MODFILE="drivers/net/bad-card"',
    } <= set(flags)


def test_a_driver_in_the_kernel_is_no_module(kernel: Kernel) -> None:
    port = kernel.module("port")
    assert port.builtin
    assert "-DMODULE" not in kernel.flags(port, "drivers/port.c")
    assert port not in kernel.modules()
    assert port in kernel.modules(builtin=True)


def test_the_dialect_is_the_kernels_and_not_that_of_host_programs(kernel: Kernel) -> None:
    assert "-std=gnu11" in kernel.base
    assert "-std=gnu99" not in kernel.base
    assert "-funsigned-char" not in kernel.base


def test_dash_and_underscore_are_the_same(kernel: Kernel) -> None:
    assert (
        kernel.module("snd_bridge")
        == kernel.module("snd-bridge")
        == kernel.module("drivers/net/bridge/snd-bridge")
    )


def test_an_unknown_name_brings_near_names(kernel: Kernel) -> None:
    with pytest.raises(Refusal, match=r"has no driver cart; near names: card"):
        kernel.module("cart")


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("drivers/net/bridge", "a folder"),
        ("drivers/net/bridge/", "a folder"),
        ("drivers/net/card_main.c", "a source file"),
    ],
)
def test_a_path_is_answered_with_the_drivers_that_are_made_of_it(
    kernel: Kernel, path: str, what: str
) -> None:
    name = "card" if path.endswith(".c") else "snd-bridge"
    with pytest.raises(Refusal, match=f"{path} is {what}, not a driver; of it are made: {name}"):
        kernel.module(path)


def test_a_driver_not_in_the_config_names_the_option_and_its_kconfig_file(kernel: Kernel) -> None:
    with pytest.raises(
        Refusal,
        match=r"other is not in the config: CONFIG_OTHER is not set \(drivers/net/Kconfig\)",
    ):
        kernel.module("other")


def test_an_option_above_the_driver_is_named_when_that_is_the_one_missing(
    planted: Path, clang: Path, tmp_path: Path
) -> None:
    configure(planted, ("X86_64=y", "DISK=m"))
    with pytest.raises(
        Refusal, match=r"disk is not in the config: CONFIG_BLOCKS is not set \(drivers/Kconfig\)"
    ):
        opened(planted, clang, tmp_path).module("disk")


def test_a_build_folder_leads_to_its_source(planted: Path, clang: Path, tmp_path: Path) -> None:
    build = tmp_path / "build"
    for name in (".config", "include/config/auto.conf", "include/generated/autoconf.h"):
        put(build / name, (planted / name).read_text())
        (planted / name).unlink()
    (build / "source").symlink_to(planted)
    kernel = opened(build, clang, tmp_path)
    assert kernel.root == planted
    assert error(kernel, "card", "drivers/net/card_main.c", tmp_path) == ""


def test_a_kernels_key_is_of_its_headers_and_configuration(
    planted: Path, clang: Path, tmp_path: Path
) -> None:
    before = opened(planted, clang, tmp_path).key
    assert opened(planted, clang, tmp_path).key == before
    put(planted / "include/linux/new.h", "\n")
    assert opened(planted, clang, tmp_path).key != before


def test_a_new_tree_that_is_not_configured_is_refused_with_the_command_that_configures_it(
    planted: Path, clang: Path, tmp_path: Path
) -> None:
    (planted / "include/generated/autoconf.h").unlink()
    with pytest.raises(Refusal, match=r"is not configured: make -C .* modules_prepare"):
        opened(planted, clang, tmp_path)


def test_a_tree_that_is_configured_and_not_prepared_is_refused_with_the_command_that_prepares_it(
    planted: Path, clang: Path, tmp_path: Path
) -> None:
    (planted / "kernel").mkdir()
    (planted / "kernel/bounds.c").write_text("")
    with pytest.raises(Refusal, match=f"make -C {planted} ARCH=x86 modules_prepare"):
        opened(planted, clang, tmp_path)
    (planted / "include/generated/bounds.h").write_text("")
    assert opened(planted, clang, tmp_path).name == "6.12.3-small"


def test_another_configuration_than_that_of_the_generated_headers_is_refused(
    planted: Path, clang: Path, tmp_path: Path
) -> None:
    put(tmp_path / "other.config", "CONFIG_X86_64=y\n")
    with pytest.raises(Refusal, match="configured otherwise"):
        opened(planted, clang, tmp_path, config=tmp_path / "other.config")


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("nowhere", "no such folder"),
        ("empty", "not a kernel's source folder"),
        ("linux/drivers", "not a kernel's source folder"),
    ],
)
def test_a_folder_that_is_no_tree_is_refused(
    planted: Path, clang: Path, tmp_path: Path, missing: str, says: str
) -> None:
    (tmp_path / "empty").mkdir()
    assert planted.is_dir()
    with pytest.raises(Refusal, match=says):
        opened(tmp_path / missing, clang, tmp_path)


def test_an_architecture_that_is_not_known_is_refused_with_those_that_are(
    planted: Path, clang: Path, tmp_path: Path
) -> None:
    with pytest.raises(Refusal, match="--arch vax is not known; known are x86_64, i386"):
        opened(planted, clang, tmp_path, name="vax")


def test_a_dialect_that_the_configuration_names_is_spoken(
    planted: Path, clang: Path, tmp_path: Path
) -> None:
    configure(planted, ("X86_64=y", "SHOUT=m", 'CC_MS_EXTENSIONS="-fms-extensions"'))
    put(
        planted / "sound/shout.c",
        "struct in { int a; };\nstruct out { struct in; };\nint f(struct out *o) { return o->a; "
        "}\n",
    )
    assert error(opened(planted, clang, tmp_path), "shout", "sound/shout.c", tmp_path) == ""


def test_an_architecture_that_the_tree_has_not_is_refused_with_those_that_it_has(
    planted: Path, clang: Path, tmp_path: Path
) -> None:
    with pytest.raises(Refusal, match="has no arch/arm64; --arch can be i386, x86_64"):
        opened(planted, clang, tmp_path, name="arm64")
