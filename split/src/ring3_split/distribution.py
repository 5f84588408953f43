"""A kernel out of the distribution's packages, as `lab/setup.sh source VERSION` unpacks them.

The source package has all sources, the headers package the configuration and the generated headers
of the very kernel that the lab boots. The two are used together as a build folder and its source
would be.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ring3_split import clang
from ring3_split.errors import Refusal
from ring3_split.kbuild import absent, catalogue, config, flags
from ring3_split.kbuild.makefiles import Setting
from ring3_split.kernel import Kernel
from ring3_split.stamps import digest


def open_kernel(
    name: str, cache: Path, compiler: str | None = None, facts: Path | None = None
) -> Kernel:
    """The kernel `name`, a version as lab/setup.sh knows it: "6.12".

    Its facts are kept in `facts`, or else in the cache.

    Raises:
        Refusal: its source is not in the cache, or not whole; no clang.
    """
    place = cache / "sources" / name
    if not (place / "release").is_file():
        raise Refusal(
            f"the source of kernel {name} is not in {cache}: run lab/setup.sh source "
            f"{name}{_present(cache)}"
        )
    release = (place / "release").read_text().strip()
    headers = place / "headers/src" / f"linux-headers-{release}"
    setting = Setting(place / "source", headers, headers / "include/config/auto.conf", "x86", "x86")
    for needed in (
        setting.config,
        setting.root / "drivers",
        headers / "include/generated/autoconf.h",
    ):
        if not needed.exists():
            raise Refusal(
                f"the source of kernel {name} is not whole: {needed} is missing; run lab/setup.sh "
                f"--update source {name}"
            )
    options = config.read(headers / ".config")
    machine = flags.architecture(setting.root, flags.architecture_of(options, headers / ".config"))
    base = flags.base(setting.root, headers, machine, options)
    # A package's files do not change: its release says all.
    key = digest(release, *base)
    folder = (facts or cache) / "split" / release
    load = partial(catalogue.load, setting, folder, key)
    return Kernel(
        release,
        setting.root,
        key,
        folder,
        clang.find(compiler, cache),
        base,
        load,
        partial(absent.reason, setting.root, options),
    )


def _present(cache: Path) -> str:
    names = sorted(path.parent.name for path in (cache / "sources").glob("*/release"))
    return f" (there: {', '.join(names)})" if names else ""
