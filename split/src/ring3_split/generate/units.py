"""A driver's units as clang sees them: preprocessed, asked for numbers, compiled for a process."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from ring3_split import programs
from ring3_split.annotate.outline import BLANKED
from ring3_split.errors import Refusal
from ring3_split.generate import declarations
from ring3_split.kernel import Kernel
from ring3_split.model import Module
from ring3_split.stamps import stamp

LIMIT = 120  # seconds
ANSWERS = 64  # of clang's, that are kept: some megabytes each


@dataclass
class Unit:
    """A unit of the driver."""

    kernel: Kernel
    module: Module
    source: str

    @property
    def stem(self) -> str:
        """Its name in the generated folder.

        Never the module's, whose object is made of all others.
        """
        stem = Path(self.source).stem
        return f"{stem}_main" if stem == self.module.name else stem

    @cached_property
    def code(self) -> str:
        """Its text without comments and strings."""
        return BLANKED.sub(" ", (self.kernel.root / self.source).read_text(errors="replace"))

    @cached_property
    def declared(self) -> declarations.Unit:
        """What it has at file scope."""
        return _declared(self._clang(["-E", self.source]))

    def numbers(self, expressions: Sequence[str]) -> list[int]:
        """The values of constant expressions at the unit's end, such as `offsetof(struct x, y)`.

        Raises:
            Refusal: one of them does not compile.
        """
        if not expressions:
            return []
        text = (
            f'#include "{self.source}"\nconst unsigned long split_numbers[] = {{ '
            f"{', '.join(expressions)}, 1 }};\n"
        )
        assembly = self._clang(["-O1", "-fno-pic", "-S", "-o", "-", "-iquote", ".", "-"], text)
        found = re.search(
            r"^split_numbers:\n((?:\s+\.(?:quad|zero)\s.*\n)+)", assembly, re.MULTILINE
        )
        values: list[int] = []
        for kind, value in re.findall(r"\.(quad|zero)\s+(\d+)", found[1] if found else ""):
            values += [0] * (int(value) // 8) if kind == "zero" else [int(value)]
        if len(values) != len(expressions) + 1:
            raise Refusal(f"{self.source}: clang says nothing of {', '.join(expressions[:3])}")
        return values[:-1]

    def flags(self) -> list[str]:
        """The flags of the kernel's build, less what is for the kernel's address space."""
        flags = self.kernel.flags(self.module, self.source)
        return [flag for flag in flags if flag != "-mcmodel=kernel"]

    def _clang(self, arguments: list[str], text: str = "") -> str:
        command = (str(self.kernel.compiler.program), "-x", "c", *self.flags(), *arguments)
        return _said(
            self.kernel.root,
            self.kernel.key,
            stamp(self.kernel.root / self.source),
            self.source,
            command,
            text,
        )


@lru_cache(ANSWERS)
def _said(
    root: Path, _key: str, _stamp: tuple[int, int], source: str, command: tuple[str, ...], text: str
) -> str:
    """What clang says, once for each state of the kernel and the source.

    A driver's plan is often made anew.
    """
    done = subprocess.run(
        command,
        cwd=root,
        env=programs.environment(),
        input=text,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LIMIT,
        check=False,
    )
    if done.returncode:
        errors = (line for line in done.stderr.splitlines() if "error" in line)
        raise Refusal(f"{source}: {next(errors, done.stderr[-200:])}")
    return done.stdout


@lru_cache(ANSWERS)
def _declared(text: str) -> declarations.Unit:
    return declarations.read(text)
