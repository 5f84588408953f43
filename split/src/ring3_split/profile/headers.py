"""Where the parts of a distribution's kernel lie: see `lab/setup.sh source VERSION`."""

from __future__ import annotations

from pathlib import Path

from ring3_split.errors import Refusal
from ring3_split.kernel import Kernel


def version(kernel: Kernel) -> str:
    """The name under which the lab boots the kernel: "6.12".

    Raises:
        Refusal: it is not out of the distribution's packages.
    """
    headers(kernel)
    return kernel.root.parent.name


def headers(kernel: Kernel) -> Path:
    """The folder of its headers, where modules are built.

    Raises:
        Refusal: it is not out of the distribution's packages.
    """
    folder = kernel.root.parent / "headers/src" / f"linux-headers-{kernel.name}"
    if not folder.is_dir():
        raise Refusal(
            "a profile is taken from the distribution's kernel, which the lab boots: use --kernel "
            "VERSION"
        )
    return folder


def checks_itself(kernel: Kernel) -> bool:
    """Whether the kernel is built with its checks on, as `lab/debug-kernel.sh` builds it.

    Raises:
        Refusal: it is not out of the distribution's packages.
    """
    return (headers(kernel) / "include/config/PROVE_LOCKING").exists()


def shipped(kernel: Kernel, cache: Path) -> Path:
    """The folder of its binary modules."""
    return cache / "kernels" / version(kernel) / "lib/modules" / kernel.name
