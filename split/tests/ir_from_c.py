"""C text to IR, as the tests of the reader need it."""

from __future__ import annotations

import subprocess
from pathlib import Path

FLAGS = [
    "-w",
    "-O0",
    "-g",
    "-S",
    "-emit-llvm",
    "-Xclang",
    "-disable-llvm-passes",
    "-Xclang",
    "-fsanitize=kcfi",
]


def compile_c(clang: Path, folder: Path, text: str, *flags: str, name: str = "drivers/a.c") -> Path:
    """Compiles text as the file `name` of the tree `folder`; gives the path of its IR."""
    source = folder / name
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(text)
    out = folder / "out.ll"
    program = [str(clang), *FLAGS, *flags, str(source), "-o", str(out)]
    subprocess.run(program, check=True, timeout=60, cwd=folder)
    return out
