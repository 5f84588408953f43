"""The distribution's own binary of a module."""

from __future__ import annotations

import lzma
from pathlib import Path

from ring3_split.errors import Refusal


def unpack(modules: Path, name: str, folder: Path) -> Path:
    """Finds the module `name` below `modules` and puts it, as the kernel loads it, in `folder`.

    Raises:
        Refusal: it is not there, or packed in a way that is not read.
    """
    plain = name.replace("-", "_")
    for file in modules.rglob("*.ko*"):
        if file.name.split(".ko")[0].replace("-", "_") != plain:
            continue
        content = file.read_bytes()
        if file.suffix == ".xz":
            content = lzma.decompress(content)
        elif file.suffix != ".ko":
            raise Refusal(
                f"{file} is packed as {file.suffix}, which is not read; profile without --stock"
            )
        target = folder / f"{name}.ko"
        target.write_bytes(content)
        return target
    raise Refusal(
        f"{modules} has no module {name}: fetch the kernel with lab/setup.sh kernel VERSION"
    )
