"""A driver's units as clang sees them: preprocessed, asked for numbers, compiled for a process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from ring3_split.annotate.outline import BLANKED
from ring3_split.errors import Refusal
from ring3_split.generate import declarations
from ring3_split.generate.answers import Question
from ring3_split.kernel import Kernel
from ring3_split.model import Module
from ring3_split.stamps import stamp

ANSWERS = 64  # that are kept at hand: some megabytes each


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
        return _declared(self._question(["-E", self.source]))

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
        values = _numbers(
            self._question(["-O1", "-fno-pic", "-S", "-o", "-", "-iquote", ".", "-"], text)
        )
        if len(values) != len(expressions) + 1:
            raise Refusal(f"{self.source}: clang says nothing of {', '.join(expressions[:3])}")
        return values[:-1]

    def flags(self) -> list[str]:
        """The flags of the kernel's build, less what is for the kernel's address space."""
        flags = self.kernel.flags(self.module, self.source)
        return [flag for flag in flags if flag != "-mcmodel=kernel"]

    def _question(self, arguments: list[str], text: str = "") -> Question:
        compiler = self.kernel.compiler
        return Question(
            self.kernel.folder,
            self.kernel.root,
            self.kernel.key,
            self.source,
            stamp(self.kernel.root / self.source),
            compiler.version,
            (str(compiler.program), "-x", "c", *self.flags(), *arguments),
            text,
        )


# Once for each state of the kernel and the source: a driver's plan is often made anew.


@lru_cache(ANSWERS)
def _declared(question: Question) -> declarations.Unit:
    return question.answer(declarations.Unit, declarations.read)


@lru_cache(ANSWERS)
def _numbers(question: Question) -> list[int]:
    return question.answer(list[int], _values)


def _values(assembly: str) -> list[int]:
    found = re.search(r"^split_numbers:\n((?:\s+\.(?:quad|zero)\s.*\n)+)", assembly, re.MULTILINE)
    values: list[int] = []
    for kind, value in re.findall(r"\.(quad|zero)\s+(\d+)", found[1] if found else ""):
        values += [0] * (int(value) // 8) if kind == "zero" else [int(value)]
    return values
