"""Files that a build puts beside the sources.

Those that come ready-made under another name, and those of a build folder.
"""

from __future__ import annotations

from pathlib import Path

from ring3_split.files import write
from ring3_split.kbuild.makefiles import Setting

SHIPPED = "_shipped"


def includes(setting: Setting, directory: str, folder: Path) -> tuple[str, ...]:
    """The flags by which the units of a directory find what is generated for them.

    A file "x.h_shipped" is what the kernel's build copies to "x.h". Here it is copied to `folder`,
    because the tree is not written to. [kbuild: the rule "%: %_shipped" of scripts/Makefile.lib]
    """
    places: list[Path] = []
    for shipped in (setting.root / directory).glob(f"*.[!c]*{SHIPPED}"):
        copy = folder / directory / shipped.name.removesuffix(SHIPPED)
        content = shipped.read_bytes()
        if not copy.is_file() or copy.read_bytes() != content:
            write(copy, content)
        places = [copy.parent]
    if setting.objects != setting.root and (setting.objects / directory).is_dir():
        places.insert(0, setting.objects / directory)
    return tuple(f"-I{place}" for place in places)
