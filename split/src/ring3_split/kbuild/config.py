"""A kernel's configuration: `.config` or `auto.conf`."""

from __future__ import annotations

import re
from pathlib import Path

from ring3_split.errors import Refusal

LINE = re.compile(r"^CONFIG_(\w+)=(.*)$", re.MULTILINE)


def read(path: Path) -> dict[str, str]:
    """Options that are set: name without CONFIG_ -> value, strings without quotes."""
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise Refusal(
            f"{path}: {error.strerror}; a kernel's configuration is to be there"
        ) from None
    options = {name: value.strip().strip('"') for name, value in LINE.findall(text)}
    if not options:
        raise Refusal(f"{path} is not a kernel configuration: it sets no CONFIG_ option")
    return options
