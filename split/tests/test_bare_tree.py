from __future__ import annotations

import os
from pathlib import Path

import pytest

from ring3_split import tree
from ring3_split.errors import Refusal
from ring3_split.kernel import Kernel
from small_tree import error, plant, put


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    return plant(tmp_path / "linux")


def opened(
    planted: Path, clang: Path, tmp_path: Path, config: Path | None = None, name: str | None = None
) -> Kernel:
    return tree.open_kernel(planted, config, name, tmp_path / "cache", str(clang))


# Stands for the configuration tool of an old tree: "-m" sets all, "-D FILE" takes a file.
TOOL = r"""
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    FILE *out = fopen(".config", "w");
    int c;
    if (!strcmp(argv[1], "-m"))
        fputs("CONFIG_X86=y\nCONFIG_CARD=m\nCONFIG_SHOUT=m\nCONFIG_HZ=250\n", out);
    else { FILE *in = fopen(argv[2], "r"); while ((c = getc(in)) != EOF) putc(c, out); }
    return fclose(out);
}
"""


@pytest.fixture
def bare(planted: Path) -> Path:
    for name in (
        ".config",
        "include/generated/autoconf.h",
        "include/config/auto.conf",
        "include/linux/kconfig.h",
    ):
        (planted / name).unlink()
    (planted / "arch/x86").rename(planted / "arch/i386")
    put(planted / "Makefile", "VERSION = 2\nPATCHLEVEL = 6\nSUBLEVEL = 18\n")
    (planted / "arch/i386/include/asm/port.h").unlink()
    put(planted / "include/asm-i386/port.h", "#define PORTS CONFIG_HZ\n")
    put(planted / "scripts/kconfig/conf.c", TOOL)
    put(planted / "scripts/kconfig/zconf.tab.c_shipped", "\n")
    return planted


def test_a_bare_old_tree_is_configured_with_its_own_tool(
    bare: Path, clang: Path, tmp_path: Path
) -> None:
    kernel = opened(bare, clang, tmp_path)
    assert (kernel.name, [m.name for m in kernel.modules()]) == (
        "2.6.18",
        ["shout", "card", "bad-card"],
    )


def test_a_bare_old_tree_is_not_written_to(bare: Path, clang: Path, tmp_path: Path) -> None:
    before = sorted(bare.rglob("*"))
    opened(bare, clang, tmp_path).modules()
    assert sorted(bare.rglob("*")) == before


def test_a_bare_old_tree_compiles_for_the_pc_of_its_time(
    bare: Path, clang: Path, tmp_path: Path
) -> None:
    facts = "PORTS == 250 && sizeof(long) == 4 && LINUX_VERSION_CODE == 0x20612"
    put(
        bare / "sound/shout.c",
        f"#include <asm/port.h>\n#include <linux/version.h>\nchar a[{facts} ? 1 : -1];\n",
    )
    kernel = opened(bare, clang, tmp_path)
    assert error(kernel, "shout", "sound/shout.c", tmp_path) == ""


def test_a_bare_old_tree_takes_a_configuration(bare: Path, clang: Path, tmp_path: Path) -> None:
    put(tmp_path / "mine", "CONFIG_X86=y\nCONFIG_SHOUT=m\n")
    assert [m.name for m in opened(bare, clang, tmp_path, config=tmp_path / "mine").modules()] == [
        "shout"
    ]


def test_a_tool_that_fails_is_quoted(bare: Path, clang: Path, tmp_path: Path) -> None:
    put(
        bare / "scripts/kconfig/conf.c",
        '#include <stdio.h>\nint main(void) { fputs("no such menu\\n", stderr); return 3; }\n',
    )
    with pytest.raises(Refusal, match="configuration tool failed: no such menu"):
        opened(bare, clang, tmp_path)


@pytest.mark.kernel
def test_linux_2_6_18_has_the_modules_of_an_allmodconfig(clang: Path, tmp_path: Path) -> None:
    if "RING3_OLD_TREE" not in os.environ:
        pytest.skip("RING3_OLD_TREE names no tree of Linux 2.6.18")
    kernel = opened(Path(os.environ["RING3_OLD_TREE"]), clang, tmp_path)
    families = {
        top: sum(f"{m.directory}/".startswith(top) for m in kernel.modules())
        for top in ("drivers/net/", "drivers/scsi/", "sound/")
    }
    assert families == {"drivers/net/": 241, "drivers/scsi/": 92, "sound/": 186}


def test_two_configurations_of_one_tree_do_not_disturb_each_other(
    bare: Path, clang: Path, tmp_path: Path
) -> None:
    put(tmp_path / "mine", "CONFIG_X86=y\nCONFIG_SHOUT=m\n")
    first = opened(bare, clang, tmp_path)
    opened(bare, clang, tmp_path, config=tmp_path / "mine")
    again = opened(bare, clang, tmp_path)
    assert (first.key, first.folder) == (again.key, again.folder)
