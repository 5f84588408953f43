"""A bare tree of 2.6 made readable.

Its configuration, and the few headers that its build would generate.

All is written to a folder of ours; the tree stays as it is. Later kernels generate too much to be
imitated: of them a build folder is asked for, which their own `make modules_prepare` fills.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from ring3_split import programs
from ring3_split.errors import Refusal
from ring3_split.files import refused, write
from ring3_split.kbuild import config
from ring3_split.stamps import digest, stamp

# The configuration tool of a tree takes seconds to build and to run.
TIME_LIMIT = 120  # seconds


def configure(root: Path, directory: str, folder: Path, version: str, given: Path | None) -> Path:
    """Makes `folder` the build folder of a bare tree for arch/`directory`, and gives it back.

    `given` is its configuration; without one, everything that can be a module is one
    (allmodconfig).

    Raises:
        Refusal: the tree is too new for this, or its configuration tool does not work.
    """
    if not (root / "scripts/kconfig/zconf.tab.c_shipped").is_file() or not version.startswith(
        "2.6."
    ):
        raise Refusal(
            f"{root} is not configured: make -C {root} O=BUILD allmodconfig modules_prepare, then "
            "--tree BUILD; with a"
            " configuration of your own: put it in BUILD/.config, and say olddefconfig instead of "
            "allmodconfig"
        )
    tables = [
        stamp(root / name)
        for name in ("Makefile", "scripts/kconfig", f"arch/{directory}/Kconfig", "drivers/Kconfig")
    ]
    wanted = digest(
        version, directory, given and given.read_bytes(), *tables, Path(__file__).read_text()
    )
    done = folder / "prepared"
    if done.is_file() and done.read_text() == wanted:
        return folder
    new = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        _config(root, directory, new, given, version)
        _headers(root, directory, new, version)
        (new / "prepared").write_text(wanted)
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    except OSError as error:
        # Another run may have put its own in the place meanwhile; it is the same.
        if not (done.is_file() and done.read_text() == wanted):
            raise refused(error, folder) from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def _config(root: Path, directory: str, folder: Path, given: Path | None, version: str) -> None:
    """Writes .config with the tree's own configuration tool."""
    with tempfile.TemporaryDirectory() as name:
        tool = _tool(root, Path(name))
        if given:
            shutil.copyfile(given, folder / "given.config")
        how = ["-D", "given.config"] if given else ["-m"]
        names = {
            "srctree": str(root),
            "ARCH": directory,
            "SRCARCH": directory,
            "KERNELVERSION": version,
            "KERNELRELEASE": version,
        }
        (folder / "include/linux").mkdir(parents=True)
        (folder / "include/config").mkdir()
        _run([str(tool), *how, f"arch/{directory}/Kconfig"], folder, names)
    config.read(folder / ".config")


def _tool(root: Path, work: Path) -> Path:
    """Compiles the tree's configuration tool from a copy of its source and the shipped parser."""
    source = work / "kconfig"
    shutil.copytree(root / "scripts/kconfig", source)
    for shipped in source.glob("*_shipped"):
        shipped.rename(shipped.with_name(shipped.name.removesuffix("_shipped")))
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Refusal(
            "gcc is missing: it compiles the tree's configuration tool; as root: apt-get install "
            "gcc libc6-dev"
        )
    _run(
        [compiler, "-w", "-O1", "-std=gnu89", "-I.", "-o", "conf", "conf.c", "zconf.tab.c"],
        source,
        {},
    )
    return source / "conf"


def _run(command: list[str], folder: Path, names: dict[str, str]) -> None:
    try:
        done = programs.run(command, folder, TIME_LIMIT, names)
    except subprocess.TimeoutExpired:
        raise Refusal(
            f"{Path(command[0]).name} did not come to an end in {TIME_LIMIT} s with the tree's "
            "configuration"
        ) from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Refusal(
            "the tree's configuration tool failed: "
            f"{said[-1] if said else f'code {done.returncode}'}"
        )


def _headers(root: Path, directory: str, folder: Path, version: str) -> None:
    """Writes what the build would have generated.

    autoconf.h, version.h, utsrelease.h, and the link include/asm.
    """
    numbers = [int(n) for n in re.findall(r"\d+", version)[:3]]
    code = numbers[0] << 16 | numbers[1] << 8 | min(numbers[2], 255)
    texts = {
        "autoconf.h": autoconf(config.read(folder / ".config")),
        "version.h": f"#define LINUX_VERSION_CODE {code}\n#define KERNEL_VERSION(a,b,c) (((a) << "
        "16) + ((b) << 8) + (c))\n",
        "utsrelease.h": f'#define UTS_RELEASE "{version}"\n',
    }
    # The place moved from include/linux to include/generated with 2.6.33.
    for place in ("linux", "generated"):
        for name, text in texts.items():
            write(folder / "include" / place / name, text.encode())
    if (root / f"include/asm-{directory}").is_dir():
        (folder / "include/asm").symlink_to(root / f"include/asm-{directory}")


def autoconf(options: dict[str, str]) -> str:
    """A configuration as C sees it."""
    lines = ["#define AUTOCONF_INCLUDED"]
    for name, value in options.items():
        if value in ("y", "m"):
            lines.append(f"#define CONFIG_{name}{'_MODULE' if value == 'm' else ''} 1")
        else:
            number = re.fullmatch(r"-?\d+|0[xX][0-9a-fA-F]+", value)
            lines.append(
                f"#define CONFIG_{name} {value}" if number else f'#define CONFIG_{name} "{value}"'
            )
    return "\n".join([*lines, ""])
