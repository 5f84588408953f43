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

CONSTANT = "split_number_"
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
        constants = (f"{CONSTANT}{n} = ({one})" for n, one in enumerate(expressions))
        text = f'#include "{self.source}"\nenum {{ {", ".join(constants)} }};\n'
        # Nothing is compiled: clang says the values when it prints what it has parsed.
        tree = ("-ast-dump", f"-ast-dump-filter={CONSTANT}")
        asked = ["-fsyntax-only", *(word for one in tree for word in ("-Xclang", one))]
        values = _numbers(self._question([*asked, "-iquote", ".", "-"], text))
        if len(values) != len(expressions):
            raise Refusal(f"{self.source}: clang says nothing of {', '.join(expressions[:3])}")
        return values

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
            (str(compiler.program), "-x", "c-header", *self.flags(), self.source) if text else (),
        )


# Once for each state of the kernel and the source: a driver's plan is often made anew.


@lru_cache(ANSWERS)
def _declared(question: Question) -> declarations.Unit:
    return question.answer(declarations.Unit, declarations.read)


@lru_cache(ANSWERS)
def _numbers(question: Question) -> list[int]:
    return question.answer(list[int], _values)


def _values(tree: str) -> list[int]:
    """The values in the trees of constants, in the order of the constants."""
    heads = re.split(rf"^EnumConstantDecl .* {CONSTANT}(\d+) ", tree, flags=re.MULTILINE)
    found = {
        int(number): value[1]
        for number, text in zip(heads[1::2], heads[2::2], strict=True)
        if (value := re.search(r"value: Int (\d+)", text))
    }
    return [int(value) for _, value in sorted(found.items())]
